//! A private etcd on loopback, in a directory of its own; ended with the test.

use std::cell::RefCell;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cluster::coordination::{
    Coordination, CoordinationError, Etcd, EtcdConfig, Expect, Tls, Version,
};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{Arm, host_sleep};

/// It has so much time to begin: on a busy machine its first election takes a while.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// A cluster authority, and what it vouches for: etcd and one client have the same certificate.
pub(crate) struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        Self { authority: authority.pem(), certificate, key: key.serialize_pem() }
    }

    fn write(&self, directory: &Path) {
        let files =
            [("ca", &self.authority), ("certificate", &self.certificate), ("key", &self.key)];
        for (name, text) in files {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }
}

pub(crate) struct EtcdArm {
    directory: tempfile::TempDir,
    ports: [u16; 2],
    certificates: Option<Certificates>,
    process: RefCell<Option<Child>>,
}

impl Drop for EtcdArm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Two ports that were free just now.
#[allow(clippy::disallowed_methods, reason = "this test starts a program of the host")]
pub(super) fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

#[allow(clippy::disallowed_methods, reason = "this test runs on the host's clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl EtcdArm {
    /// A fresh one; with certificates it answers clients with a certificate only.
    pub(crate) async fn new(certificates: Option<Certificates>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if let Some(certificates) = &certificates {
            certificates.write(directory.path());
        }
        let process = RefCell::new(None);
        let arm = Self { directory, ports: free_ports(), certificates, process };
        arm.start();
        arm.wait_until_it_answers().await;
        arm
    }

    fn endpoint(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports[0])
    }

    fn start(&self) {
        let (directory, client) = (self.directory.path(), self.endpoint());
        let peer = format!("http://127.0.0.1:{}", self.ports[1]);
        let mut command = Command::new("etcd");
        command.args(["--data-dir", directory.join("data").to_str().unwrap()]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
        if self.certificates.is_some() {
            command.arg("--client-cert-auth");
            for (option, file) in
                [("--trusted-ca-file", "ca"), ("--cert-file", "certificate"), ("--key-file", "key")]
            {
                command.arg(option).arg(directory.join(file));
            }
        }
        let log = directory.join("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = command.spawn().unwrap_or_else(|error| {
            panic!("etcd cannot be started ({error}): sudo apt-get install etcd-server")
        });
        *self.process.borrow_mut() = Some(process);
    }

    /// Kills it, as a crash does; it hears nothing of it before.
    fn kill(&self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    async fn wait_until_it_answers(&self) {
        let begun = now();
        let client = self.client();
        while let Err(error) = client.get("x").await {
            let log = std::fs::read_to_string(self.directory.path().join("log"));
            assert!(begun.elapsed() < START_TIME_MAX, "{error}\n{}", log.unwrap_or_default());
            host_sleep(Duration::from_millis(50)).await;
        }
    }

    fn config(&self) -> EtcdConfig {
        let tls = self.certificates.as_ref().map(|certificates| {
            let bytes = |text: &String| text.clone().into_bytes();
            Tls {
                authorities_pem: bytes(&certificates.authority),
                identity_pem: Some((bytes(&certificates.certificate), bytes(&certificates.key))),
            }
        });
        // No server listens at the first endpoint: the next one is used.
        let endpoints = vec!["http://127.0.0.1:1".to_owned(), self.endpoint()];
        EtcdConfig { endpoints, prefix: "mdfs/test/".to_owned(), tls }
    }
}

impl Arm for EtcdArm {
    fn client(&self) -> Rc<dyn Coordination> {
        Rc::new(Etcd::new(&self.config()).unwrap())
    }
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        host_sleep(duration)
    }
    fn restart(&self) -> LocalBoxFuture<'_, ()> {
        async move {
            self.kill();
            host_sleep(Duration::from_millis(300)).await;
            self.start();
            self.wait_until_it_answers().await;
        }
        .boxed_local()
    }
}

/// Without the certificate of a client, or with that of another authority, nothing is answered.
pub(crate) async fn a_stranger_is_refused(arm: &EtcdArm) {
    let ours = arm.config();
    let known = ours.tls.clone().unwrap();
    let foreign = Certificates::new();
    let identity = (foreign.certificate.into_bytes(), foreign.key.into_bytes());
    let anonymous = Tls { identity_pem: None, ..known.clone() };
    let stranger = Tls { identity_pem: Some(identity), ..known.clone() };
    let misled = Tls { authorities_pem: foreign.authority.into_bytes(), ..known };
    for tls in [anonymous, stranger, misled] {
        let client = Etcd::new(&EtcdConfig { tls: Some(tls), ..ours.clone() }).unwrap();
        let answer = client.get("x").await;
        assert!(matches!(answer, Err(CoordinationError::Unreachable(_))), "{answer:?}");
    }
    let answer = Etcd::new(&EtcdConfig { tls: None, ..ours });
    assert!(matches!(answer, Err(CoordinationError::Refused(_))));
}

/// Two volumes in one etcd do not see each other.
pub(crate) async fn prefixes_are_apart(arm: &EtcdArm) {
    let other = EtcdConfig { prefix: "mdfs/testament/".to_owned(), ..arm.config() };
    let other = Etcd::new(&other).unwrap();
    other.put("a", b"other").await.unwrap();
    assert_eq!(arm.client().get("a").await.unwrap(), None);
    assert_eq!(arm.client().list("").await.unwrap().records, []);
    let mut watch = arm.client().watch("", Version(0));
    other.put("b", b"other").await.unwrap();
    arm.client().put("c", b"ours").await.unwrap();
    let answer = format!("{:?}", watch.next().await);
    assert!(answer.contains("\"c\""), "{answer}");
    arm.client().remove("c", Expect::Any {}).await.unwrap();
}

/// Prints what calls take on this machine.
pub(crate) async fn measure(arm: &EtcdArm) {
    const ROUNDS: usize = 300;
    let (engine, other) = (arm.client(), arm.client());
    let lease = engine.grant(Duration::from_mins(1)).await.unwrap();
    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut version = engine.put("m", b"0").await.unwrap();
    let value = [7; 1000];
    for _ in 0..ROUNDS {
        let mut watch = other.watch("m", version);
        // The watch is up once it has told something.
        engine.put("m", b"begin").await.unwrap();
        watch.next().await.unwrap();
        let begun = now();
        let telling = async {
            watch.next().await.unwrap();
            begun.elapsed()
        };
        let putting = async {
            let version = engine.put("m", &value).await.unwrap();
            (version, begun.elapsed())
        };
        let (answer, (put_version, put)) = join(telling, putting).await;
        times[0].push(put);
        times[1].push(answer);
        let begun = now();
        engine.get("m").await.unwrap();
        times[2].push(begun.elapsed());
        let begun = now();
        let expect = Expect::Unchanged { since: put_version };
        engine.write("m", &value, expect, None).await.unwrap();
        times[3].push(begun.elapsed());
        let begun = now();
        engine.keep_alive(lease).await.unwrap();
        times[4].push(begun.elapsed());
        version = engine.get("m").await.unwrap().unwrap().version;
    }
    println!("etcd, 1000 bytes, {ROUNDS} rounds, microseconds: median, 99 of 100");
    for (name, mut times) in
        ["put", "put until told", "get", "swap", "keep alive"].iter().zip(times)
    {
        times.sort_unstable();
        let [median, late] = [ROUNDS / 2, ROUNDS * 99 / 100].map(|at| times[at].as_micros());
        println!("{name:<16} {median:>8} {late:>8}");
    }
}
