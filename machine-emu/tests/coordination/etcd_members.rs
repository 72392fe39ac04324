//! Three members of etcd on loopback, one of which stands still.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::coordination::{Coordination as _, CoordinationError, Etcd, EtcdConfig, LeaseId};

use super::etcd::{free_ports, now};
use super::host_sleep;

/// Servers of etcd.
const MEMBERS: usize = 3;
/// As keepers of processes call it.
const CALL_TIME_MAX: Duration = Duration::from_millis(400);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_secs(10);
/// A frozen member stays so: longer than the client's own limit of a call.
const FROZEN: Duration = Duration::from_secs(6);
/// Without the leader calls fail until there is another: etcd's election timeout is one second,
/// and a split vote takes another one. A lease of 10 s outlasts that.
const ELECTED_WITHIN: Duration = Duration::from_secs(5);
/// Without a follower they do not: a dropped call, a pause, and the call at the next endpoint.
const NEXT_ENDPOINT_WITHIN: Duration = Duration::from_secs(1);
const START_TIME_MAX: Duration = Duration::from_secs(30);

struct EtcdMembers {
    _directory: tempfile::TempDir,
    clients: Vec<u16>,
    processes: Vec<Child>,
}

impl EtcdMembers {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports: Vec<[u16; 2]> = (0..MEMBERS).map(|_| free_ports()).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(at, [_, peer])| format!("m{at}={}", url(*peer)))
            .collect();
        let start = |(at, [client, peer]): (usize, &[u16; 2])| {
            start_member(directory.path(), at, [&url(*client), &url(*peer)], &all.join(","))
        };
        let processes = ports.iter().enumerate().map(start).collect();
        let clients = ports.iter().map(|[client, _]| *client).collect();
        Self { _directory: directory, clients, processes }
    }

    /// A client that asks the member `first` first.
    fn client(&self, first: usize) -> Etcd {
        let order = (0..MEMBERS).map(|at| self.clients[(first + at) % MEMBERS]);
        let endpoints = order.map(|port| format!("http://127.0.0.1:{port}")).collect();
        let config = EtcdConfig { endpoints, prefix: "mdfs/test/".to_owned(), tls: None };
        Etcd::new(&config).unwrap()
    }

    #[allow(clippy::disallowed_methods, reason = "a test asks etcd itself")]
    fn leader(&self) -> Option<usize> {
        self.clients.iter().position(|port| {
            let mut text = String::new();
            let address = SocketAddr::from(([127, 0, 0, 1], *port));
            let Ok(mut stream) = TcpStream::connect(address) else { return false };
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            let _ = stream.read_to_string(&mut text);
            text.lines().any(|line| line == "etcd_server_is_leader 1")
        })
    }

    fn signal(&self, member: usize, signal: &str) {
        let id = self.processes[member].id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for EtcdMembers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn start_member(directory: &Path, at: usize, [client, peer]: [&str; 2], all: &str) -> Child {
    let log = std::fs::File::create(directory.join(format!("log{at}"))).unwrap();
    let mut command = Command::new("etcd");
    command.args(["--name", &format!("m{at}"), "--log-level", "error"]);
    command.args(["--data-dir", directory.join(format!("data{at}")).to_str().unwrap()]);
    command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
    command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
    command.args(["--initial-cluster", all]);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().expect("etcd can be started: sudo apt-get install etcd-server")
}

/// Calls as a keeper does, which gives up a call after [`CALL_TIME_MAX`].
async fn within<T>(
    call: impl Future<Output = Result<T, CoordinationError>>,
) -> Result<T, CoordinationError> {
    let call = std::pin::pin!(call);
    match futures::future::select(call, host_sleep(CALL_TIME_MAX)).await {
        futures::future::Either::Left((answer, _)) => answer,
        futures::future::Either::Right(_) => Err(CoordinationError::Unknown("too late".to_owned())),
    }
}

async fn granted(client: &Etcd) -> LeaseId {
    let begun = now();
    loop {
        match within(client.grant(LEASE)).await {
            Ok(lease) => return lease,
            Err(error) => assert!(begun.elapsed() < START_TIME_MAX, "{error}"),
        }
        host_sleep(RETRY_PAUSE).await;
    }
}

/// Renews `lease` for some time; the longest time between two renewals that succeeded.
async fn renewed_for(client: &Etcd, lease: LeaseId, time: Duration) -> Duration {
    let (begun, mut last, mut longest): (Instant, Instant, _) = (now(), now(), Duration::ZERO);
    while begun.elapsed() < time {
        match within(client.keep_alive(lease)).await {
            Ok(()) => {
                longest = longest.max(last.elapsed());
                last = now();
            }
            Err(error) => assert_ne!(error, CoordinationError::LeaseOver),
        }
        host_sleep(RETRY_PAUSE).await;
    }
    longest.max(last.elapsed())
}

/// Each of three members stands still in turn, and the client asks that one first.
pub(super) async fn one_frozen_member_hinders_no_renewal() {
    let members = EtcdMembers::start();
    let begun = now();
    while members.leader().is_none() {
        assert!(begun.elapsed() < START_TIME_MAX, "no leader");
        host_sleep(RETRY_PAUSE).await;
    }
    let leader = members.leader().unwrap();
    for frozen in (1..=MEMBERS).map(|after| (leader + after) % MEMBERS) {
        let client = members.client(frozen);
        let lease = granted(&client).await;
        renewed_for(&client, lease, RETRY_PAUSE).await;
        let is_leader = frozen == leader;
        members.signal(frozen, "-STOP");
        let longest = renewed_for(&client, lease, FROZEN).await;
        members.signal(frozen, "-CONT");
        eprintln!("member {frozen} (leader: {is_leader}) frozen: renewed after {longest:?}");
        let limit = if is_leader { ELECTED_WITHIN } else { NEXT_ENDPOINT_WITHIN };
        assert!(longest < limit, "{longest:?}");
        renewed_for(&client, lease, Duration::from_secs(2)).await;
    }
}
