//! What a client needs to prove who it is, and to tell the servers of its volume from others.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError as Why, ClientConfig, ClientConnection, DigitallySignedStruct,
    Error as TlsError, RootCertStore, SignatureScheme,
};

use super::certificate::{process_of, server_name};
use super::files::{FileError, read_secret};
use super::{SPOKEN, provider, session};
use crate::identity::token::{self, TokenClaims, TokenRefused};
use runtime::net::ByteStream;

/// A client cannot use a file that says who it is.
#[derive(Debug, thiserror::Error)]
pub enum ClientKeyError {
    /// It cannot be read, or others can read it.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not what it should be.
    #[error("the {what} in {} cannot be used: {why}; {next}", path.display())]
    Unusable {
        /// Which part.
        what: &'static str,
        /// In which file.
        path: PathBuf,
        /// Why.
        why: String,
        /// What to do.
        next: &'static str,
    },
}

const NEW_TOKEN: &str = "make another one with `mdfs token create`";
const NEW_HOST: &str = "make another one with `mdfs cluster certify --client`";

/// Makes the error of one part of a file.
#[derive(Clone, Copy)]
struct InFile<'a> {
    path: &'a Path,
    next: &'static str,
}

impl InFile<'_> {
    #[allow(clippy::needless_pass_by_value, reason = "errors are passed on as they are")]
    fn unusable(&self, what: &'static str, why: impl ToString) -> ClientKeyError {
        let Self { path, next } = *self;
        ClientKeyError::Unusable { what, path: path.to_owned(), why: why.to_string(), next }
    }

    /// The certificates of a file in their order.
    fn certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, ClientKeyError> {
        let found = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>();
        found.map_err(|error| self.unusable("certificate", error))
    }

    fn roots(&self, authority: CertificateDer<'static>) -> Result<RootCertStore, ClientKeyError> {
        let mut roots = RootCertStore::empty();
        let added = roots.add(authority);
        added.map_err(|error| self.unusable("certificate of the authority", error))?;
        Ok(roots)
    }
}

/// What a client has to prove who it is: a token, or the certificate of its host.
pub struct ClientKeys {
    path: PathBuf,
    config: Arc<ClientConfig>,
    token: Option<(Vec<u8>, TokenClaims)>,
}

impl std::fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Token and key are secret.
        f.debug_struct("ClientKeys").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ClientKeys {
    /// Reads a token and the certificate of the authority from a file of `mdfs token create`.
    pub fn from_token_file(path: &Path) -> Result<Self, ClientKeyError> {
        let at = InFile { path, next: NEW_TOKEN };
        let text = read_secret(path)?;
        let token = token::from_text(&text).map_err(|error| at.unusable("token", error))?;
        let claims = TokenClaims::read(&token).map_err(|error| at.unusable("token", error))?;
        if UnixTime::now().as_secs() >= claims.expires {
            return Err(at.unusable("token", TokenRefused::Expired));
        }
        let mut certificates = at.certificates(&text)?.into_iter();
        let (Some(authority), None) = (certificates.next(), certificates.next()) else {
            return Err(at.unusable("certificate of the authority", "there must be one"));
        };
        let config = client_config(at.roots(authority)?, at)?.with_no_client_auth();
        Ok(Self { path: path.to_owned(), config: finished(config), token: Some((token, claims)) })
    }

    /// Reads key and certificate of a host, and the certificate of the authority, from a file of
    /// `mdfs cluster certify --client`.
    pub fn from_host_file(path: &Path) -> Result<Self, ClientKeyError> {
        let at = InFile { path, next: NEW_HOST };
        let text = read_secret(path)?;
        let mut certificates = at.certificates(&text)?.into_iter();
        let (Some(own), Some(authority), None) =
            (certificates.next(), certificates.next(), certificates.next())
        else {
            let why = "there must be two: that of the host, then that of the authority";
            return Err(at.unusable("certificates", why));
        };
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| at.unusable("key", error))?;
        let roots = at.roots(authority)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone().into(), Arc::new(provider()))
                .build()
                .map_err(|error| at.unusable("certificate of the authority", error))?;
        let held = verifier.verify_client_cert(&own, &[], UnixTime::now());
        held.map_err(|error| at.unusable("certificate of the host", error))?;
        let config = client_config(roots, at)?
            .with_client_auth_cert(vec![own], key)
            .map_err(|error| at.unusable("key of the host with its certificate", error))?;
        Ok(Self { path: path.to_owned(), config: finished(config), token: None })
    }

    /// Reads the file again: a token may have been renewed.
    pub fn reread(&self) -> Result<Self, ClientKeyError> {
        match self.token {
            Some(_) => Self::from_token_file(&self.path),
            None => Self::from_host_file(&self.path),
        }
    }

    /// The token, which a server gets after [`connect`](Self::connect) has verified it.
    pub fn token(&self) -> Option<&[u8]> {
        self.token.as_ref().map(|(token, _)| &token[..])
    }

    /// What the token says, which is not proved here.
    pub fn claims(&self) -> Option<&TokenClaims> {
        self.token.as_ref().map(|(_, claims)| claims)
    }

    /// Protects a connection to process `expected` of the volume, or to any of its processes, and
    /// returns the number of the process.
    pub async fn connect(
        &self,
        stream: ByteStream,
        expected: Option<u32>,
    ) -> io::Result<(ByteStream, u32)> {
        // The verifier goes by the certificate; this name is not sent.
        let name = server_name(expected.unwrap_or(0));
        let connection = ClientConnection::new(self.config.clone(), name);
        let connection = connection.map_err(session::invalid)?;
        let opened = session::open(connection.into(), stream).await;
        let (stream, certificate) = opened.map_err(|error| self.explained(error))?;
        let process = certificate.as_ref().and_then(process_of);
        let process = process.ok_or(io::ErrorKind::PermissionDenied)?;
        match expected {
            Some(expected) if expected != process => {
                let wrong = ServerRefused::OtherProcess { expected, process };
                Err(io::Error::new(io::ErrorKind::PermissionDenied, wrong))
            }
            _ => Ok((stream, process)),
        }
    }

    /// Says what a refused certificate means for the user.
    fn explained(&self, error: io::Error) -> io::Error {
        let cause = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
        let Some(TlsError::InvalidCertificate(why)) = cause else { return error };
        let path = self.path.clone();
        let refused = match why {
            Why::Expired | Why::ExpiredContext { .. } => ServerRefused::Expired,
            Why::UnknownIssuer | Why::BadSignature => ServerRefused::OtherAuthority(path),
            why => ServerRefused::Certificate(why.clone()),
        };
        io::Error::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// A client does not trust the server that it reached.
#[derive(Debug, thiserror::Error)]
enum ServerRefused {
    #[error("this is process {process} of the volume, and not process {expected}")]
    OtherProcess { expected: u32, process: u32 },
    #[error("the server's certificate is no longer valid; its operator renews it")]
    Expired,
    #[error(
        "the server's certificate is not of the authority in {}: the address leads to another \
         volume, or the file is for another one", .0.display()
    )]
    OtherAuthority(PathBuf),
    #[error("the server's certificate cannot be used: {0}")]
    Certificate(Why),
}

type ConfigBuilder = tokio_rustls::rustls::ConfigBuilder<
    ClientConfig,
    tokio_rustls::rustls::client::WantsClientCert,
>;

fn client_config(roots: RootCertStore, at: InFile<'_>) -> Result<ConfigBuilder, ClientKeyError> {
    let provider = Arc::new(provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
    let verifier = verifier.build();
    let verifier = verifier.map_err(|error| at.unusable("certificate of the authority", error))?;
    let versions = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let versions = versions.map_err(|error| at.unusable("algorithms", error))?;
    let verifier = Arc::new(AnyProcess(verifier));
    Ok(versions.dangerous().with_custom_certificate_verifier(verifier))
}

fn finished(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![SPOKEN.to_vec()];
    config.enable_sni = false;
    config.into()
}

/// Accepts the certificate of each process of the authority. Which one it is, the caller compares.
#[derive(Debug)]
struct AnyProcess(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyProcess {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let own = end_entity.clone().into_owned();
        let number = process_of(&own).ok_or(TlsError::InvalidCertificate(Why::NotValidForName))?;
        let name = server_name(number);
        self.0.verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
