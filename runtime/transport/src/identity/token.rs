//! Tokens: what a user shows on another host (ADR 77).
//!
//! A token says who its holder is, until when, and on which volume. A key of the volume signs it
//! (Ed25519, RFC 8032), of which servers need the public part only. docs/protocol.md has its bytes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use runtime::identity::{Credentials, GROUPS_MAX, Principal, SubtreePath};
use runtime::wire::{from_bytes, to_bytes};

/// Bytes of a public key, and of the seed of a private one.
pub const KEY_BYTES: usize = 32;
/// Bytes of a token, at most.
pub const TOKEN_BYTES_MAX: usize = 6 << 10;
/// The longest validity.
pub const VALIDITY_MAX: Duration = Duration::from_hours(24 * 365);

/// Clocks of hosts differ: a token is valid from this much before it is made.
const BACKDATED: Duration = Duration::from_mins(5);

/// The version of the bytes of a token.
const VERSION: u8 = 1;
const SIGNATURE_BYTES: usize = 64;
/// Before what is signed: a signature of such a key means nothing else.
const SIGNED_CONTEXT: &[u8] = b"mdfs token\0";

const BEGIN: &str = "-----BEGIN MDFS TOKEN-----";
const END: &str = "-----END MDFS TOKEN-----";
/// Characters of base64 in a line, as in PEM (RFC 7468).
const LINE_LENGTH: usize = 64;

runtime::record! {
    /// What a token says.
    pub struct TokenClaims {
        /// The number of the key that signed it.
        key: u32,
        /// The beginning of the public key, which tells a key of another volume.
        issuer: u64,
        /// The user and the groups of its holder.
        who: Credentials,
        /// Not valid before this time, in seconds since 1970.
        not_before: u64,
        /// Not valid from this time on, in seconds since 1970.
        expires: u64,
        /// The directory to which it is limited, a [`SubtreePath`]; empty if it is not.
        subtree: Vec<u8>,
        /// Distinguishes tokens that are otherwise equal.
        nonce: u64,
    }
}

/// A token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// The bytes are not those of a token.
    #[error("this is no token of this version of MDFS; make one with `mdfs token create`")]
    Malformed,
    /// Its key is not valid, or not any more.
    #[error(
        "its key was retired by `mdfs token rotate`; make another one with `mdfs token create`"
    )]
    RetiredKey,
    /// The key did not sign this.
    #[error("its signature is wrong; make another one with `mdfs token create`")]
    Forged,
    /// It is for another volume.
    #[error("it is for another volume; make one for this volume with `mdfs token create`")]
    OtherVolume,
    /// Its time has not come.
    #[error("it is not valid yet; check the clocks of this host and of the server")]
    NotYet,
    /// Its time is over.
    #[error("it is no longer valid; make another one with `mdfs token create`")]
    Expired,
    /// Its limit is no path of a directory.
    #[error(
        "it is limited to a directory that has no proper path; make one with `mdfs token create`"
    )]
    Subtree,
    /// Its key may have been made since the server has read the keys.
    #[error("the server does not know its key yet; try again")]
    NewKey,
    /// The server has not read the keys lately.
    #[error("the server cannot read the keys of the volume now; try again")]
    NoKeys,
}

impl TokenRefused {
    /// May the same token be accepted a little later?
    pub fn is_transient(self) -> bool {
        matches!(self, Self::NoKeys | Self::NewKey)
    }
}

/// The public part of a key that signs tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Its number, from 1 on.
    pub number: u32,
    /// The key.
    pub public: [u8; KEY_BYTES],
}

impl TokenKey {
    /// The public part of a key as it is stored in a volume; `None` if it is none.
    pub fn of_stored(number: u32, stored: &[u8]) -> Option<Self> {
        let is_one = [KEY_BYTES, 2 * KEY_BYTES].contains(&stored.len());
        let public = stored.first_chunk().filter(|_| is_one)?;
        Some(Self { number, public: *public })
    }

    fn issuer(&self) -> u64 {
        u64::from_le_bytes(*self.public.first_chunk().expect("a key is longer"))
    }
}

/// A key that signs tokens.
pub struct SigningKey {
    number: u32,
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is secret.
        f.debug_struct("SigningKey").field("number", &self.number).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Key `number` of 32 secret bytes.
    pub fn from_seed(number: u32, seed: &[u8; KEY_BYTES]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("a seed has 32 bytes");
        Self { number, pair }
    }

    /// The key as it is stored in a volume, if its private part is there.
    pub fn of_stored(number: u32, stored: &[u8]) -> Option<Self> {
        let (public, seed) = stored.split_at_checked(KEY_BYTES)?;
        let key = Self::from_seed(number, seed.try_into().ok()?);
        (key.public().public == public).then_some(key)
    }

    /// As it is stored in a volume: the public part, then the private one.
    pub fn stored_of(seed: &[u8; KEY_BYTES]) -> Vec<u8> {
        [Self::from_seed(0, seed).public().public, *seed].concat()
    }

    /// The part that servers need.
    pub fn public(&self) -> TokenKey {
        let public = self.pair.public_key().as_ref().try_into();
        TokenKey { number: self.number, public: public.expect("a public key has 32 bytes") }
    }

    /// Makes a token of `holder`, who has at most [`GROUPS_MAX`] groups: valid from `now` (since
    /// 1970) for `validity`, which is shortened to [`VALIDITY_MAX`].
    pub fn token(
        &self,
        holder: &Credentials,
        now: Duration,
        validity: Duration,
        nonce: u64,
    ) -> Vec<u8> {
        self.token_within(None, holder, now, validity, nonce)
    }

    /// The same, limited to a directory if `subtree` is given.
    pub fn token_within(
        &self,
        subtree: Option<&SubtreePath>,
        holder: &Credentials,
        now: Duration,
        validity: Duration,
        nonce: u64,
    ) -> Vec<u8> {
        self.sign(&TokenClaims {
            key: self.number,
            issuer: self.public().issuer(),
            who: holder.clone(),
            not_before: now.saturating_sub(BACKDATED).as_secs(),
            expires: (now + validity.min(VALIDITY_MAX)).as_secs(),
            subtree: subtree.map_or_else(Vec::new, |path| path.as_bytes().to_vec()),
            nonce,
        })
    }

    fn sign(&self, claims: &TokenClaims) -> Vec<u8> {
        let mut token = vec![VERSION];
        token.extend(to_bytes(claims));
        let signature = self.pair.sign(&signed(&token));
        token.extend_from_slice(signature.as_ref());
        token
    }
}

/// What is signed of a token.
fn signed(body: &[u8]) -> Vec<u8> {
    [SIGNED_CONTEXT, body].concat()
}

/// Takes a token apart: what is signed, and the signature.
fn parts(token: &[u8]) -> Result<(&[u8], &[u8]), TokenRefused> {
    let length = token.len().checked_sub(SIGNATURE_BYTES);
    let length = length.filter(|_| token.len() <= TOKEN_BYTES_MAX);
    let (body, signature) = token.split_at(length.ok_or(TokenRefused::Malformed)?);
    if body.first() == Some(&VERSION) {
        Ok((body, signature))
    } else {
        Err(TokenRefused::Malformed)
    }
}

impl TokenClaims {
    /// What `token` says. Nothing of it is proved.
    pub fn read(token: &[u8]) -> Result<Self, TokenRefused> {
        let (body, _) = parts(token)?;
        let claims: Self = from_bytes(&body[1..]).map_err(|_| TokenRefused::Malformed)?;
        if claims.who.groups.len() > GROUPS_MAX {
            return Err(TokenRefused::Malformed);
        }
        Ok(claims)
    }

    /// What `token` says, if one of `keys` has signed it and its time is now (`unix`, since 1970).
    pub fn verified(token: &[u8], keys: &[TokenKey], unix: Duration) -> Result<Self, TokenRefused> {
        let claims = Self::read(token)?;
        let (body, signature) = parts(token)?;
        let key = keys.iter().find(|key| key.number == claims.key);
        let is_newer = keys.iter().all(|key| key.number < claims.key);
        let missing = if is_newer { TokenRefused::NewKey } else { TokenRefused::RetiredKey };
        let key = key.ok_or(missing)?;
        if key.issuer() != claims.issuer {
            return Err(TokenRefused::OtherVolume);
        }
        let public = UnparsedPublicKey::new(&ED25519, key.public);
        public.verify(&signed(body), signature).map_err(|_| TokenRefused::Forged)?;
        claims.subtree()?;
        claims.holds_at(unix).map(|()| claims)
    }

    /// Who its holder is.
    pub fn principal(&self) -> Principal {
        Principal::User(self.who.clone())
    }

    /// The directory to which it is limited.
    pub fn subtree(&self) -> Result<Option<SubtreePath>, TokenRefused> {
        if self.subtree.is_empty() {
            return Ok(None);
        }
        SubtreePath::new(&self.subtree).map(Some).ok_or(TokenRefused::Subtree)
    }

    /// Is it valid at this time (since 1970)?
    pub fn holds_at(&self, unix: Duration) -> Result<(), TokenRefused> {
        match unix.as_secs() {
            now if now < self.not_before => Err(TokenRefused::NotYet),
            now if now >= self.expires => Err(TokenRefused::Expired),
            _ => Ok(()),
        }
    }
}

/// A token as it stands in a file.
pub fn to_text(token: &[u8]) -> String {
    let base64 = STANDARD.encode(token);
    let mut text = format!("{BEGIN}\n");
    let mut rest = &base64[..];
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE_LENGTH));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + END + "\n"
}

/// The token in a text, which may hold more.
pub fn from_text(text: &str) -> Result<Vec<u8>, TokenRefused> {
    let lines = text.lines().map(str::trim).skip_while(|line| *line != BEGIN).skip(1);
    let mut base64 = String::new();
    let mut is_whole = false;
    for line in lines {
        if line == END {
            is_whole = true;
            break;
        }
        base64.push_str(line);
        if base64.len() > 2 * TOKEN_BYTES_MAX {
            return Err(TokenRefused::Malformed);
        }
    }
    let token = STANDARD.decode(base64).map_err(|_| TokenRefused::Malformed);
    if is_whole { token } else { Err(TokenRefused::Malformed) }
}

#[cfg(test)]
mod tests {
    use runtime::seed::{Rng, with_seed};
    use runtime::wire::Wire as _;

    use super::*;

    const NOW: Duration = Duration::from_hours(500_000);
    const HOUR: Duration = Duration::from_hours(1);

    fn key(number: u32) -> SigningKey {
        SigningKey::from_seed(number, &[number as u8; KEY_BYTES])
    }

    fn holder() -> Credentials {
        Credentials { uid: 1001, gid: 100, groups: vec![27, 44] }
    }

    fn keys() -> [TokenKey; 2] {
        [key(2).public(), key(1).public()]
    }

    fn verify(token: &[u8], unix: Duration) -> Result<TokenClaims, TokenRefused> {
        TokenClaims::verified(token, &keys(), unix)
    }

    #[test]
    fn a_token_says_who_its_holder_is_for_its_time() {
        for number in [1, 2] {
            let token = key(number).token(&holder(), NOW, HOUR, 5);
            let claims = verify(&token, NOW).unwrap();
            assert_eq!(claims.principal(), Principal::User(holder()));
            assert_eq!(verify(&token, NOW + HOUR), Err(TokenRefused::Expired));
            assert!(verify(&token, NOW + HOUR.saturating_sub(Duration::from_secs(1))).is_ok());
            assert!(verify(&token, NOW.saturating_sub(BACKDATED)).is_ok());
            assert_eq!(verify(&token, NOW.saturating_sub(HOUR)), Err(TokenRefused::NotYet));
        }
    }

    #[test]
    fn the_longest_limited_token_is_read() {
        let path = SubtreePath::new(format!("/{}/{}", "a".repeat(255), "b".repeat(255)).as_bytes());
        let groups = (0..GROUPS_MAX as u32).collect();
        let holder = Credentials { groups, ..holder() };
        let token = key(1).token_within(path.as_ref(), &holder, NOW, HOUR, 5);
        let claims = verify(&from_text(&to_text(&token)).unwrap(), NOW).unwrap();
        assert!(path.is_some());
        assert_eq!((claims.subtree(), claims.who), (Ok(path), holder));
    }

    #[test]
    fn foreign_and_retired_tokens_are_refused() {
        let retired = key(0).token(&holder(), NOW, HOUR, 5);
        assert_eq!(verify(&retired, NOW), Err(TokenRefused::RetiredKey));
        let new = key(3).token(&holder(), NOW, HOUR, 5);
        assert_eq!(verify(&new, NOW), Err(TokenRefused::NewKey));
        let other = SigningKey::from_seed(1, &[9; KEY_BYTES]);
        let foreign = other.token(&holder(), NOW, HOUR, 5);
        assert_eq!(verify(&foreign, NOW), Err(TokenRefused::OtherVolume));
        let named = TokenClaims::read(&key(1).token(&holder(), NOW, HOUR, 5)).unwrap();
        assert_eq!(verify(&other.sign(&named), NOW), Err(TokenRefused::Forged));
        let limited = TokenClaims {
            subtree: b"home".to_vec(),
            ..verify(&key(1).token(&holder(), NOW, HOUR, 5), NOW).unwrap()
        };
        assert_eq!(verify(&key(1).sign(&limited), NOW), Err(TokenRefused::Subtree));
        let crowd = TokenClaims {
            subtree: Vec::new(),
            who: Credentials { groups: (0..=GROUPS_MAX as u32).collect(), ..holder() },
            ..limited
        };
        assert_eq!(verify(&key(1).sign(&crowd), NOW), Err(TokenRefused::Malformed));
    }

    #[test]
    fn any_change_of_a_token_is_refused() {
        with_seed(|rng| {
            for _ in 0..20 {
                let claims = TokenClaims {
                    key: 1,
                    issuer: key(1).public().issuer(),
                    not_before: 0,
                    expires: u64::MAX,
                    subtree: Vec::new(),
                    who: Credentials { groups: (0..rng.below(5) as u32).collect(), ..holder() },
                    ..TokenClaims::sample(rng)
                };
                let token = key(1).sign(&claims);
                assert_eq!(verify(&token, NOW), Ok(claims));
                for bit in 0..token.len() * 8 {
                    let mut changed = token.clone();
                    changed[bit / 8] ^= 1 << (bit % 8);
                    assert!(verify(&changed, NOW).is_err(), "bit {bit} does not count");
                }
                assert!(mutated(&token, rng).iter().all(|changed| verify(changed, NOW).is_err()));
            }
        });
    }

    /// Cut, lengthened and doubled tokens.
    fn mutated(token: &[u8], rng: &mut Rng) -> Vec<Vec<u8>> {
        let at = rng.index(token.len());
        let mut inserted = token.to_vec();
        inserted.insert(at, rng.bits() as u8);
        let mut removed = token.to_vec();
        removed.remove(at);
        let mut long = token.to_vec();
        long.resize(TOKEN_BYTES_MAX + 1, 0);
        let cut = token[..at].to_vec();
        vec![cut, inserted, removed, [token, token].concat(), [token, &[0]].concat(), long, vec![]]
    }

    #[test]
    fn the_bytes_of_a_token_are_frozen() {
        let token = key(1).token(&holder(), NOW, HOUR, 5);
        let text = to_text(&token);
        assert_eq!(from_text(&format!("before\n{text}after\n")), Ok(token.clone()));
        let frozen = "-----BEGIN MDFS TOKEN-----\n\
            AQEAAACKiOPddAnxlekDAABkAAAAAgAAABsAAAAsAAAA1NBJawAAAAAQ4ElrAAAA\n\
            AAAAAAAFAAAAAAAAAGo5EukPexJhOhkU24fkNUMT2gfB21t+9Fuwgyj578/nYsKQ\n\
            xa5dC9ELJeIIrHvcXDLWKhEf1fsyMOdblZwChAY=\n\
            -----END MDFS TOKEN-----\n";
        assert_eq!(text, frozen);
    }

    #[test]
    fn a_stored_key_is_whole_or_public_only() {
        let stored = SigningKey::stored_of(&[3; KEY_BYTES]);
        let key = SigningKey::of_stored(7, &stored).unwrap().public();
        assert_eq!(key, SigningKey::from_seed(7, &[3; KEY_BYTES]).public());
        for public in [&stored[..], &stored[..KEY_BYTES]] {
            assert_eq!(TokenKey::of_stored(7, public), Some(key));
        }
        let mut swapped = stored.clone();
        swapped.rotate_left(KEY_BYTES);
        for bad in [&stored[..KEY_BYTES], &stored[..63], &swapped, &[]] {
            assert!(SigningKey::of_stored(7, bad).is_none());
        }
        assert_eq!(TokenKey::of_stored(7, &stored[..63]), None);
    }

    #[test]
    fn a_text_without_a_whole_token_is_refused() {
        let text = to_text(&key(1).token(&holder(), NOW, HOUR, 5));
        let half = &text[..text.len() - END.len() - 1];
        let endless = format!("{BEGIN}\n{}", "A".repeat(1 << 20));
        for bad in ["", "x", half, &text.replace("MDFS", "MDGS"), &endless, BEGIN] {
            assert_eq!(from_text(bad), Err(TokenRefused::Malformed));
        }
    }
}
