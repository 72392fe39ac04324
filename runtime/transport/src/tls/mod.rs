//! Connections between processes under TLS 1.3 (RFC 8446), with certificates of both sides (ADR
//! 43).
//!
//! One authority vouches for the processes of one cluster, for the hosts of its clients, and for
//! nothing else. The certificate of process 7 has the name `process-7.mdfs`; the side that connects
//! checks that name, and the other side compares the certificate with what is said in `Hello`. A
//! host of clients has the name `client-HOST.mdfs` and the limits of ADR 77, and can be no server;
//! a client without a certificate must show a token. No session is resumed and nothing is sent
//! before the handshake is over, so each connection has keys of its own and nothing of one can be
//! used in another; within one, TLS numbers its records.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the keys of a process |
//! | `authority.rs` | who makes certificates |
//! | `certificate.rs` | whom a certificate names |
//! | `client.rs` | the keys of a client |
//! | `files.rs`, `folder.rs` | files with secrets; the keys of a cluster or volume |
//! | `session.rs` | a protected byte stream over any other |

mod authority;
mod certificate;
mod client;
mod files;
mod folder;
mod session;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError as Why, ClientConfig, ClientConnection, Error as TlsError, RootCertStore,
    ServerConfig, ServerConnection,
};

pub use self::authority::{Authority, AuthorityError, Identity};
use self::certificate::server_name;
pub use self::certificate::{ALL_IDS, HostCertificate, PeerCertificate, id_range, process_name};
pub use self::client::{ClientKeyError, ClientKeys};
pub use self::files::{FileError, read_secret, write_secret};
pub use self::folder::{
    CERTIFICATE_DAYS, IssuedCertificates, KeyFolder, KeyFolderError, VOLUME_PROCESS, volume_keys,
};
use runtime::net::ByteStream;

/// What both sides speak above TLS (RFC 7301): a key of a cluster serves no other purpose.
const SPOKEN: &[u8] = b"mdfs/1";

/// The certificate of the other side, which the authority has signed.
pub type Certificate = CertificateDer<'static>;

/// The keys of a process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file is not what it should be.
    #[error("the {what} cannot be used: {why}")]
    Unusable {
        /// Which.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// Its time is over.
    #[error("the certificate of process {0} is no longer valid")]
    Expired(u32),
    /// Its time has not come.
    #[error("the certificate of process {0} is not valid yet: is the clock of this host right?")]
    NotYet(u32),
    /// It is another's.
    #[error("the certificate is not that of process {0}")]
    OtherName(u32),
    /// Another authority made it.
    #[error("the certificate of process {0} is not of this cluster's authority")]
    OtherAuthority(u32),
}

/// What a process needs to prove who it is, and to tell who others are.
pub struct Keys {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    certificate: Certificate,
    verifier: Arc<WebPkiServerVerifier>,
    number: u32,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is secret.
        f.debug_struct("Keys").field("number", &self.number).finish_non_exhaustive()
    }
}

fn unusable<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> KeyError {
    move |error| KeyError::Unusable { what, why: error.to_string() }
}

/// The algorithms: the shorter key of AES first, for it is as good here and a fifth faster.
fn provider() -> CryptoProvider {
    let all = ring::default_provider();
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    CryptoProvider { cipher_suites, ..all }
}

impl Keys {
    /// The keys of process `number`, all in PEM. Refuses what others would refuse.
    pub fn new(number: u32, authority: &[u8], identity: &Identity) -> Result<Self, KeyError> {
        let authority = CertificateDer::from_pem_slice(authority)
            .map_err(unusable("certificate of the authority"))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(unusable("certificate of the authority"))?;
        let roots = Arc::new(roots);
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())
            .map_err(unusable("certificate of the process"))?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
            .map_err(unusable("key of the process"))?;
        let provider = Arc::new(provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(unusable("certificate of the authority"))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            // A client without one shows a token; what it may do is decided above.
            .allow_unauthenticated()
            .build()
            .map_err(unusable("certificate of the authority"))?;

        let fits = "key of the process with its certificate";
        let chain = vec![certificate.clone()];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable("algorithms"))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable(fits))?;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![SPOKEN.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable("algorithms"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(unusable(fits))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![SPOKEN.to_vec()];
        let keys =
            Self { client: client.into(), server: server.into(), certificate, verifier, number };
        keys.hold_at(UnixTime::now())?;
        Ok(keys)
    }

    /// Would the others still take them after `later`?
    pub fn hold_for(&self, later: Duration) -> Result<(), KeyError> {
        let now = Duration::from_secs(UnixTime::now().as_secs());
        self.hold_at(UnixTime::since_unix_epoch(now + later))
    }

    fn hold_at(&self, time: UnixTime) -> Result<(), KeyError> {
        let (verifier, own) = (&self.verifier, &self.certificate);
        let number = self.number;
        match verifier.verify_server_cert(own, &[], &server_name(number), &[], time) {
            Ok(_) => Ok(()),
            Err(TlsError::InvalidCertificate(why)) => Err(match why {
                Why::Expired | Why::ExpiredContext { .. } => KeyError::Expired(number),
                Why::NotValidYet | Why::NotValidYetContext { .. } => KeyError::NotYet(number),
                Why::NotValidForName | Why::NotValidForNameContext { .. } => {
                    KeyError::OtherName(number)
                }
                Why::UnknownIssuer | Why::BadSignature => KeyError::OtherAuthority(number),
                why => unusable("certificate of the process")(TlsError::InvalidCertificate(why)),
            }),
            Err(error) => Err(unusable("certificate of the process")(error)),
        }
    }

    /// As the side that connects, to process `wanted` and to no other.
    pub async fn greet(&self, stream: ByteStream, wanted: u32) -> io::Result<ByteStream> {
        let connection = ClientConnection::new(self.client.clone(), server_name(wanted));
        let connection = connection.map_err(session::invalid)?;
        Ok(session::open(connection.into(), stream).await?.0)
    }

    /// As the side that is connected to; with what the other side has proved.
    pub async fn receive(&self, stream: ByteStream) -> io::Result<(ByteStream, PeerCertificate)> {
        let connection = ServerConnection::new(self.server.clone()).map_err(session::invalid)?;
        let (stream, certificate) = session::open(connection.into(), stream).await?;
        Ok((stream, PeerCertificate::of(certificate.as_ref())?))
    }
}
