//! The keys by which a server checks tokens.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use runtime::Context;

use super::token::{TokenClaims, TokenKey, TokenRefused};

/// Keys that were read longer ago are not used: a retired key counts for this long, at most.
pub const KEYS_AGE_MAX: Duration = Duration::from_secs(30);

/// Checks tokens by the keys that were last read from the volume. Until they have been read, and
/// if they could not be read for [`KEYS_AGE_MAX`], each token is refused.
#[derive(Debug, Default)]
pub struct TokenVerifier {
    known: Mutex<Option<ReadKeys>>,
    /// A token came whose key may be newer than the known ones.
    is_behind: AtomicBool,
}

#[derive(Debug)]
struct ReadKeys {
    keys: Vec<TokenKey>,
    /// By the clock of the machine.
    read_at: Duration,
}

impl TokenVerifier {
    /// The valid keys, as a reading that began at `read_at` ([`Context::now`]) found them.
    pub fn set_keys(&self, keys: Vec<TokenKey>, read_at: Duration) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known.read_at <= read_at) {
            *known = Some(ReadKeys { keys, read_at });
        }
    }

    /// Should the keys be read now, since a token came whose key may be newer? Asking clears it.
    pub fn take_behind(&self) -> bool {
        self.is_behind.swap(false, Relaxed)
    }

    /// What a token says, if it is valid now.
    pub fn verify(&self, context: &Context, token: &[u8]) -> Result<TokenClaims, TokenRefused> {
        self.verify_at(context.now(), context.unix_time(), token)
    }

    /// Is a token that was verified once still valid? Costs no signature: each request may ask.
    pub fn still_holds(&self, context: &Context, claims: &TokenClaims) -> Result<(), TokenRefused> {
        self.still_holds_at(context.now(), context.unix_time(), claims)
    }

    fn verify_at(
        &self,
        now: Duration,
        unix: Duration,
        token: &[u8],
    ) -> Result<TokenClaims, TokenRefused> {
        let keys = self.with_keys(now, |keys| Ok(keys.to_vec()))?;
        let verified = TokenClaims::verified(token, &keys, unix);
        if verified == Err(TokenRefused::NewKey) {
            self.is_behind.store(true, Relaxed);
        }
        verified
    }

    fn still_holds_at(
        &self,
        now: Duration,
        unix: Duration,
        claims: &TokenClaims,
    ) -> Result<(), TokenRefused> {
        claims.holds_at(unix)?;
        self.with_keys(now, |keys| {
            let is_valid = keys.iter().any(|key| key.number == claims.key);
            if is_valid { Ok(()) } else { Err(TokenRefused::RetiredKey) }
        })
    }

    fn with_keys<T>(
        &self,
        now: Duration,
        check: impl FnOnce(&[TokenKey]) -> Result<T, TokenRefused>,
    ) -> Result<T, TokenRefused> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(known) if now.saturating_sub(known.read_at) < KEYS_AGE_MAX => check(&known.keys),
            _ => Err(TokenRefused::NoKeys),
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::identity::Credentials;

    use super::super::token::SigningKey;
    use super::*;

    const UNIX: Duration = Duration::from_hours(500_000);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn tokens_are_refused_without_keys_and_with_old_ones_and_once_retired() {
        let key = |number| SigningKey::from_seed(number, &[number as u8; 32]);
        let holder = Credentials { uid: 7, gid: 7, groups: Vec::new() };
        let token = key(1).token(&holder, UNIX, seconds(3600), 0);
        let verifier = TokenVerifier::default();
        let verify = |now| verifier.verify_at(now, UNIX, &token);
        assert_eq!(verify(seconds(0)), Err(TokenRefused::NoKeys), "nothing was read yet");

        verifier.set_keys(vec![key(1).public()], seconds(10));
        let claims = verify(seconds(39)).unwrap();
        let holds = |now, unix| verifier.still_holds_at(now, unix, &claims);
        assert_eq!(holds(seconds(39), UNIX), Ok(()));
        assert_eq!(holds(seconds(39), UNIX + seconds(3600)), Err(TokenRefused::Expired));
        assert_eq!(verify(seconds(40)), Err(TokenRefused::NoKeys));
        assert_eq!(holds(seconds(40), UNIX), Err(TokenRefused::NoKeys));

        verifier.set_keys(vec![key(2).public(), key(1).public()], seconds(41));
        assert_eq!(holds(seconds(41), UNIX), Ok(()), "a token survives one rotation");
        verifier.set_keys(vec![key(3).public(), key(2).public()], seconds(42));
        assert_eq!(holds(seconds(42), UNIX), Err(TokenRefused::RetiredKey));
        // A reading that began earlier ends later.
        verifier.set_keys(vec![key(2).public(), key(1).public()], seconds(41));
        assert_eq!(verify(seconds(42)), Err(TokenRefused::RetiredKey));
    }
}
