//! Clients under TLS: each is refused that does not prove who it is, and refuses servers that are
//! not of its volume.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use futures::future::join;
use runtime::identity::{Credentials, SubtreePath};
use runtime::net::ByteStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use transport::identity::token::{self, SigningKey};
use transport::tls::{
    Authority, ClientKeys, HostCertificate, Identity, KeyFolder, Keys, PeerCertificate, id_range,
    write_secret,
};

const DAY: Duration = Duration::from_hours(24);

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// Both ends of a connection.
fn connection() -> (ByteStream, ByteStream) {
    let (one, other) = tokio::io::duplex(64 << 10);
    let end = |stream| {
        let (reader, writer) = tokio::io::split(stream);
        runtime::embedded::stream(reader, writer, "test".into())
    };
    (end(one), end(other))
}

/// What both sides make of a connection of `client` to `server`, over which a word was sent.
fn meet(
    client: &ClientKeys,
    server: &Keys,
    expected: Option<u32>,
) -> (io::Result<u32>, io::Result<PeerCertificate>) {
    let (here, there) = connection();
    let connecting = async {
        let (mut stream, process) = client.connect(here, expected).await?;
        stream.writer.write(vec![Bytes::from_static(b"word")]).await?;
        let mut answer = BytesMut::new();
        stream.reader.read(&mut answer).await?;
        assert_eq!(&answer[..], b"word");
        Ok(process)
    };
    let serving = async {
        let (mut stream, certificate) = server.receive(there).await?;
        let mut asked = BytesMut::new();
        stream.reader.read(&mut asked).await?;
        stream.writer.write(vec![asked.freeze()]).await?;
        Ok(certificate)
    };
    block_on(join(connecting, serving))
}

/// The keys of a volume, and files of its clients.
struct Site {
    folder: tempfile::TempDir,
    keys: KeyFolder,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::of_volume(folder.path());
        keys.certify(&[1, 2], 30, false).unwrap();
        Self { folder, keys }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        write_secret(&path, text).unwrap();
        path
    }

    fn token_file(&self, validity: Duration) -> PathBuf {
        let holder = Credentials { uid: 7, gid: 8, groups: vec![9] };
        let key = SigningKey::from_seed(1, &[1; 32]);
        let token = token::to_text(&key.token(&holder, now(), validity, 0));
        self.file("token", &format!("{token}{}", self.keys.authority_certificate().unwrap()))
    }

    fn host_file(&self, host: &HostCertificate) -> PathBuf {
        self.file("host", &self.keys.certify_host(host, 30).unwrap())
    }

    fn token(&self) -> ClientKeys {
        ClientKeys::from_token_file(&self.token_file(DAY)).unwrap()
    }

    fn host(&self, host: &HostCertificate) -> ClientKeys {
        ClientKeys::from_host_file(&self.host_file(host)).unwrap()
    }

    fn authority(&self) -> Authority {
        let key = fs::read_to_string(self.keys.0.join("authority.key")).unwrap();
        Authority::of_key(&key).unwrap()
    }
}

fn refused(outcome: io::Result<impl std::fmt::Debug>, word: &str) {
    let error = outcome.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(word), "{error:?}: {text} lacks {word}");
}

#[test]
fn a_client_with_a_token_shows_no_certificate_and_knows_its_server() {
    let site = Site::new();
    let (client, server) = (site.token(), site.keys.keys(2).unwrap());
    for expected in [None, Some(2)] {
        let (process, certificate) = meet(&client, &server, expected);
        assert_eq!(process.unwrap(), 2);
        assert_eq!(certificate.unwrap(), PeerCertificate::None);
    }
    refused(meet(&client, &server, Some(1)).0, "process 2 of the volume, and not process 1");
    assert_eq!(client.claims().unwrap().who.uid, 7);
    assert_eq!(client.reread().unwrap().token(), client.token());
}

#[test]
fn a_host_shows_its_limits_and_a_process_its_number() {
    let site = Site::new();
    let server = site.keys.keys(1).unwrap();
    let limited = HostCertificate {
        uids: id_range("1000-1999").unwrap(),
        gids: id_range("5").unwrap(),
        squash_root: false,
        subtree: SubtreePath::new("/a b/\u{e9}".as_bytes()),
        ..HostCertificate::new("n1.example.org")
    };
    for host in [HostCertificate::new("n2"), limited] {
        let (process, certificate) = meet(&site.host(&host), &server, None);
        assert_eq!(process.unwrap(), 1);
        assert_eq!(certificate.unwrap(), PeerCertificate::Client(host));
    }
    let (here, there) = connection();
    let second = site.keys.keys(2).unwrap();
    let (connected, received) = block_on(join(second.greet(here, 1), server.receive(there)));
    connected.unwrap();
    assert_eq!(received.unwrap().1, PeerCertificate::Process(2));
}

#[test]
fn certificates_of_another_cluster_are_refused_on_both_sides() {
    let (ours, theirs) = (Site::new(), Site::new());
    let server = ours.keys.keys(1).unwrap();
    let foreign_host = theirs.host(&HostCertificate::new("n1"));
    for client in [theirs.token(), foreign_host] {
        let (connected, received) = meet(&client, &server, None);
        refused(connected, "leads to another volume");
        assert!(received.is_err());
    }
    // It trusts our authority, but its own certificate is of another one.
    let mixed = theirs.keys.certify_host(&HostCertificate::new("n1"), 30).unwrap();
    let own = mixed.rfind("-----BEGIN").unwrap();
    let authority = ours.keys.authority_certificate().unwrap();
    let path = ours.file("mixed", &format!("{}{authority}", &mixed[..own]));
    let text = ClientKeys::from_host_file(&path).unwrap_err().to_string();
    assert!(text.contains("certificate of the host") && text.contains("mdfs cluster"), "{text}");
}

#[test]
fn a_server_refuses_a_certificate_of_another_authority_by_itself() {
    let (ours, theirs) = (Site::new(), Site::new());
    let server = ours.keys.keys(1).unwrap();
    for (authority, is_let_in) in [(ours.authority(), true), (theirs.authority(), false)] {
        let own = authority.certify_host(&HostCertificate::new("n1"), now(), DAY).unwrap();
        let (here, there) = tokio::io::duplex(64 << 10);
        let (reader, writer) = tokio::io::split(there);
        let stream = runtime::embedded::stream(reader, writer, "test".into());
        // A client that does not look at its own certificate.
        let connecting = async {
            let config = careless_client(&ours.keys.authority_certificate().unwrap(), &own);
            let name = transport::tls::process_name(1).try_into().unwrap();
            TlsConnector::from(Arc::new(config)).connect(name, here).await
        };
        let (_, received) = block_on(join(connecting, server.receive(stream)));
        assert_eq!(received.is_ok(), is_let_in, "{:?}", received.err());
    }
}

fn careless_client(authority: &str, own: &Identity) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let config = config.unwrap().with_root_certificates(roots);
    let mut config = config.with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"mdfs/1".to_vec()];
    config
}

#[test]
fn the_certificate_of_a_host_makes_no_server_and_no_process() {
    let site = Site::new();
    let own = site.authority().certify_host(&HostCertificate::new("n1"), now(), DAY).unwrap();
    let authority = site.keys.authority_certificate().unwrap();
    for number in [0, 1] {
        assert!(Keys::new(number, authority.as_bytes(), &own).is_err());
    }
    // As a process that connects: it is a client to those whom it reaches.
    let server = site.keys.keys(1).unwrap();
    let (_, certificate) = meet(&site.host(&HostCertificate::new("process-2.mdfs")), &server, None);
    let host = HostCertificate::new("process-2.mdfs");
    assert_eq!(certificate.unwrap(), PeerCertificate::Client(host));
}

#[test]
fn a_file_that_others_can_read_or_that_is_used_up_is_refused_with_the_next_step() {
    let site = Site::new();
    let text = |path: &Path, is_token: bool| {
        let keys = if is_token {
            ClientKeys::from_token_file(path)
        } else {
            ClientKeys::from_host_file(path)
        };
        keys.unwrap_err().to_string()
    };
    let says = |text: String, words: &[&str]| {
        assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
    };
    let (token, host) = (site.token_file(DAY), site.host_file(&HostCertificate::new("n1")));
    for path in [&token, &host] {
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    says(text(&token, true), &["token", "644", "chmod 600"]);
    says(text(&host, false), &["host", "644", "chmod 600"]);
    let old = site.token_file(Duration::ZERO);
    says(text(&old, true), &["token", "no longer valid", "mdfs token create"]);
    let host = HostCertificate::new("n1");
    let Identity { certificate, key } =
        site.authority().certify_host(&host, now().saturating_sub(DAY * 2), DAY).unwrap();
    let authority = site.keys.authority_certificate().unwrap();
    let old = site.file("old", &format!("{key}{certificate}{authority}"));
    says(text(&old, false), &["old", "xpired", "mdfs cluster certify --client"]);
    let swapped = site.file("swapped", &format!("{key}{authority}{certificate}"));
    says(text(&swapped, false), &["swapped", "mdfs cluster certify --client"]);
    says(text(&site.file("empty", ""), true), &["empty", "no token"]);
    says(text(&site.file("empty", ""), false), &["empty", "there must be two"]);
    says(text(&site.folder.path().join("absent"), true), &["absent", "No such file"]);
}
