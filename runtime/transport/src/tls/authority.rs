//! Who makes certificates: the authority of one cluster.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

use super::certificate::{HostCertificate, process_name};

/// Ten years: then the cluster needs a new authority.
const AUTHORITY_DAYS: u32 = 3_653;
/// Clocks of hosts differ: certificates are valid from this much before they are made.
const BACKDATED: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// A key could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The library refused.
    #[error("a key or certificate cannot be made: {0}")]
    Library(#[from] rcgen::Error),
    /// A host cannot have this name.
    #[error(
        "'{0}' cannot be the name of a host: take its host name, in lower-case letters, digits, '-' \
         and '.', with at most 56 characters before the first '.'"
    )]
    HostName(String),
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// For everybody.
    pub certificate: String,
    /// For its process only.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Vouches for the processes of one cluster and the hosts of its clients.
pub struct Authority(Issuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// What all authorities have in common: so the key alone is enough to go on.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("MDFS cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn valid(params: &mut CertificateParams, now: Duration, length: Duration) {
    let first = date_time_ymd(1970, 1, 1);
    params.not_before = first + now.saturating_sub(BACKDATED);
    params.not_after = first + now + length;
}

impl Authority {
    /// A new one, with its certificate and key. `now` is the time since 1970.
    pub fn make(now: Duration) -> Result<(Self, Identity), AuthorityError> {
        let mut params = params();
        valid(&mut params, now, DAY * AUTHORITY_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let identity = Identity { certificate, key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), identity))
    }

    /// The one of this key, in PEM.
    pub fn of_key(key: &str) -> Result<Self, AuthorityError> {
        Ok(Self(Issuer::new(params(), KeyPair::from_pem(key)?)))
    }

    /// A new key for process `number`, and its certificate, valid from `now` (since 1970) for
    /// `length`.
    pub fn certify(
        &self,
        number: u32,
        now: Duration,
        length: Duration,
    ) -> Result<Identity, AuthorityError> {
        let name = process_name(number);
        let params = CertificateParams::new(vec![name.clone()])?;
        // Each process connects, and is connected to.
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, &name, usages, (now, length))
    }

    /// A new key for a host of clients, and its certificate, valid from `now` (since 1970) for
    /// `length`.
    pub fn certify_host(
        &self,
        host: &HostCertificate,
        now: Duration,
        length: Duration,
    ) -> Result<Identity, AuthorityError> {
        let name = host.dns_name();
        let name = name.ok_or_else(|| AuthorityError::HostName(host.name.clone()))?;
        let mut params = CertificateParams::new(vec![name.clone()])?;
        params.subject_alt_names.push(SanType::URI(host.uri().try_into()?));
        // It connects only: its key makes no server.
        self.issue(params, &name, vec![ExtendedKeyUsagePurpose::ClientAuth], (now, length))
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        name: &str,
        usages: Vec<ExtendedKeyUsagePurpose>,
        (now, length): (Duration, Duration),
    ) -> Result<Identity, AuthorityError> {
        params.distinguished_name = named(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, now, length);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}
