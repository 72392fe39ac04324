//! Who clients are to a server, over real sockets: what they say of themselves does not count.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::LocalBoxFuture;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::identity::{Credentials, SubtreePath};
use runtime::net::Address;
use runtime::{Caller, ClientHandle, Epoch, NodeId, Server, Undelivered, VolumeId};
use table::{FileHandle, Forbidden, Identity, Move, Own, Request, WhoAmI};
use transport::identity::TokenVerifier;
use transport::identity::token::{self, SigningKey};
use transport::tls::{ALL_IDS, ClientKeys, HostCertificate, KeyFolder, write_secret};
use transport::{
    Authentication, ClientOptions, ClientPort, ClientSecurity, Guard, Security, ServerAddress,
};

mod table {
    use runtime::Undelivered as Error;
    use runtime::identity::Credentials;

    runtime::record! {
        /// A handle.
        #[derive(Copy)]
        handle pub struct FileHandle {
            /// The number.
            ino: u64,
            /// Which file of it.
            generation: u64,
        }
    }

    runtime::protocol! {
        /// Says as whom a request is judged.
        Identity id 7 version 1;
        /// The user of the request.
        1 Control WhoAmI { who: Credentials } -> Credentials,
            by caller, retry idempotent, from any, after recovery;
        /// Uses the number of a client.
        2 Control Own { client: u64 } -> (), by caller, retry idempotent, from any, after recovery;
        /// For servers.
        3 Control Forbidden {} -> (), by caller, retry idempotent, from servers, after recovery;
        /// Names two files; the answer names them too.
        4 Control Move { from: FileHandle, to: FileHandle } -> Vec<FileHandle>,
            by caller, retry idempotent, from any, after recovery;
    }
}

struct Mirror;

impl Server<Identity> for Mirror {
    fn handle(
        self: Rc<Self>,
        _: Caller,
        request: Request,
    ) -> LocalBoxFuture<'static, table::Reply> {
        async move {
            match request {
                Request::WhoAmI(WhoAmI { who }) => table::Reply::WhoAmI(Ok(who)),
                Request::Own(_) => table::Reply::Own(Ok(())),
                Request::Forbidden(_) => table::Reply::Forbidden(Ok(())),
                Request::Move(Move { from, to }) => table::Reply::Move(Ok(vec![from, to])),
            }
        }
        .boxed_local()
    }
}

/// The user of the server, who is not the one of the tests.
const OWNER: u32 = 4_000_000_000;

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec() }
}

/// A server at a TCP port and at a local socket, and its keys.
struct Site {
    machine: Embedded,
    folder: tempfile::TempDir,
    keys: KeyFolder,
    address: String,
    tokens: Arc<TokenVerifier>,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Other users come through to the socket.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let keys = KeyFolder::of_volume(folder.path());
        keys.certify(&[0], 30, false).unwrap();
        let machine = Embedded::start(Config {
            threads: 1,
            fs_nodes: 1,
            disk_nodes: 1,
            epoch: Epoch(1),
            pool_bytes: 1 << 20,
            disk_access: DiskAccess::Best,
        })
        .unwrap();
        let served = machine.on_node(NodeId::fs(0), |context| async move {
            context.serve::<Identity>(Rc::new(Mirror));
        });
        block_on(served).unwrap();
        let tokens = Arc::new(TokenVerifier::default());
        let (socket, verifier) = (folder.path().join("socket"), tokens.clone());
        let guard = Arc::new(Guard::new(Security::Tls(Box::new(keys.keys(0).unwrap()))));
        let listening = machine.on_node(machine.application(), move |context| async move {
            let local = context.listen(&Address::Unix(socket)).await.unwrap();
            let port = || ClientPort::local(VolumeId(1), "v".into(), 0, OWNER);
            context.task(transport::serve::<Identity>(context.clone(), local, port()));
            let remote = context.listen(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
            let address = remote.address().to_string();
            let authentication = Authentication { owner: OWNER, tokens: Some(verifier) };
            let port = ClientPort { authentication, guard, ..port() };
            context.task(transport::serve::<Identity>(context.clone(), remote, port));
            address
        });
        let address = block_on(listening).unwrap();
        let site = Self { machine, folder, keys, address, tokens };
        site.set_keys(&[1]);
        site
    }

    /// From now on these keys are valid.
    fn set_keys(&self, numbers: &[u32]) {
        let keys = numbers.iter().map(|number| signing_key(*number).public()).collect();
        let tokens = self.tokens.clone();
        let set = self.machine.on_node(self.machine.application(), |context| async move {
            tokens.set_keys(keys, context.now());
        });
        block_on(set).unwrap();
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        write_secret(&path, text).unwrap();
        path
    }

    fn token(&self, key: &SigningKey, who: &Credentials, validity: Duration) -> ClientSecurity {
        let token = token::to_text(&key.token(who, now(), validity, 0));
        let text = token + &self.keys.authority_certificate().unwrap();
        let file = self.file(&format!("token-{}", validity.as_secs()), &text);
        ClientSecurity::Tls(Arc::new(ClientKeys::from_token_file(&file).unwrap()))
    }

    fn host(&self, host: &HostCertificate) -> ClientSecurity {
        let file = self.file("host", &self.keys.certify_host(host, 30).unwrap());
        ClientSecurity::Tls(Arc::new(ClientKeys::from_host_file(&file).unwrap()))
    }

    fn connect(&self, security: ClientSecurity, session: u128) -> io::Result<ClientHandle> {
        connect(&ServerAddress::Tcp(vec![self.address.clone()]), security, session)
    }
}

fn signing_key(number: u32) -> SigningKey {
    SigningKey::from_seed(number, &[number as u8; 32])
}

fn connect(
    address: &ServerAddress,
    security: ClientSecurity,
    session: u128,
) -> io::Result<ClientHandle> {
    let timeout = Some(Duration::from_secs(2));
    transport::connect(address, ClientOptions { security, timeout, ..Default::default() }, session)
}

fn judged(client: &ClientHandle, who: &Credentials) -> Result<Credentials, Undelivered> {
    block_on(client.spawn(NodeId::fs(0), WhoAmI { who: who.clone() }))
}

/// The client is not let in, and is told why.
fn is_refused(connected: io::Result<ClientHandle>, words: &[&str]) {
    let error = connected.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
}

/// The call on whose way the link ended may have been done, for all that the client knows; the next
/// ones are refused.
fn is_shut_out(client: &ClientHandle, who: &Credentials) {
    let first = judged(client, who);
    assert!(matches!(first, Err(Undelivered::Refused | Undelivered::TimedOut)), "{first:?}");
    assert_eq!(judged(client, who), Err(Undelivered::Refused));
}

#[test]
fn a_token_makes_its_holder_and_no_other_user() {
    let site = Site::new();
    let alice = user(1001, 100, &[27]);
    let security = site.token(&signing_key(1), &alice, Duration::from_hours(1));
    let client = site.connect(security, 1).unwrap();
    for said in [Credentials::root(), user(1002, 0, &[0]), alice.clone()] {
        assert_eq!(judged(&client, &said), Ok(alice.clone()));
    }
    assert_eq!(block_on(client.spawn(NodeId::fs(0), Forbidden {})), Err(Undelivered::Refused));
}

#[test]
fn foreign_unknown_and_missing_tokens_are_refused_with_the_reason() {
    let site = Site::new();
    let alice = user(1001, 100, &[]);
    let hour = Duration::from_hours(1);
    let foreign = SigningKey::from_seed(1, &[9; 32]);
    is_refused(site.connect(site.token(&foreign, &alice, hour), 1), &["another volume"]);
    let retired = site.token(&signing_key(1), &alice, hour);
    site.set_keys(&[3, 2]);
    is_refused(site.connect(retired, 1), &["retired", "mdfs token create"]);
    // The owner of the volume is nothing special here, and a token of root is of root.
    let owner = user(OWNER, 5, &[]);
    let client = site.connect(site.token(&signing_key(2), &owner, hour), 1).unwrap();
    assert_eq!(judged(&client, &Credentials::root()), Ok(owner));
}

#[test]
fn a_token_ends_open_links_when_it_expires_and_when_its_key_is_dropped() {
    let site = Site::new();
    let alice = user(1001, 100, &[]);
    let short = site.token(&signing_key(1), &alice, Duration::from_secs(2));
    let long = site.token(&signing_key(1), &alice, Duration::from_hours(1));
    let short = site.connect(short, 1).unwrap();
    let long = site.connect(long, 2).unwrap();
    let begun = Instant::now();
    assert_eq!(judged(&short, &alice), Ok(alice.clone()));
    while judged(&short, &alice).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "an expired token still counts");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(judged(&short, &alice), Err(Undelivered::Refused));
    assert_eq!(judged(&long, &alice), Ok(alice.clone()));
    site.set_keys(&[2, 1]);
    assert_eq!(judged(&long, &alice), Ok(alice.clone()), "it survives one rotation");
    site.set_keys(&[3, 2]);
    is_shut_out(&long, &alice);
}

#[test]
fn a_client_goes_on_with_the_token_that_replaces_its_own() {
    let site = Site::new();
    let (alice, hour) = (user(1001, 100, &[]), Duration::from_hours(1));
    let client = site.connect(site.token(&signing_key(1), &alice, hour), 1).unwrap();
    assert_eq!(judged(&client, &alice), Ok(alice.clone()));
    site.set_keys(&[3, 2]);
    is_shut_out(&client, &alice);
    // In the same file.
    site.token(&signing_key(2), &alice, hour);
    let begun = Instant::now();
    while judged(&client, &alice) != Ok(alice.clone()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "the new token is not read");
    }
}

#[test]
fn a_host_names_users_within_its_limits_only() {
    let site = Site::new();
    let host = |uids: RangeInclusive<u32>, squash_root| HostCertificate {
        uids,
        gids: 5..=9,
        squash_root,
        ..HostCertificate::new("n1")
    };
    let client = site.connect(site.host(&host(1000..=1999, true)), 1).unwrap();
    let within = user(1500, 5, &[9]);
    assert_eq!(judged(&client, &within), Ok(within.clone()));
    for outside in [user(2000, 5, &[]), user(1500, 4, &[]), user(1500, 5, &[10])] {
        assert_eq!(judged(&client, &outside), Err(Undelivered::Refused), "{outside:?}");
    }
    assert_eq!(judged(&client, &Credentials::root()), Ok(Credentials::unmapped()));
    let trusted = HostCertificate { squash_root: false, gids: ALL_IDS, ..host(ALL_IDS, true) };
    let client = site.connect(site.host(&trusted), 2).unwrap();
    assert_eq!(judged(&client, &Credentials::root()), Ok(Credentials::root()));
}

#[test]
fn certificates_of_another_cluster_and_connections_without_tls_are_refused() {
    let (ours, theirs) = (Site::new(), Site::new());
    let foreign = theirs.host(&HostCertificate::new("n1"));
    let alice = user(1001, 100, &[]);
    let token = theirs.token(&signing_key(1), &alice, Duration::from_hours(1));
    for security in [foreign, token] {
        is_refused(ours.connect(security, 1), &["leads to another volume"]);
    }
    assert!(ours.connect(ClientSecurity::None, 1).is_err());
    // The key of a process is not one of a client: it would be anyone.
    let both = std::fs::read_to_string(ours.keys.of_process(0)).unwrap();
    let text = format!("{both}{}", ours.keys.authority_certificate().unwrap());
    let keys = ClientKeys::from_host_file(&ours.file("process", &text)).unwrap();
    let connected = ours.connect(ClientSecurity::Tls(Arc::new(keys)), 1);
    is_refused(connected, &["key of a process"]);
}

#[test]
fn a_client_uses_no_number_of_another_one() {
    let site = Site::new();
    let hour = Duration::from_hours(1);
    let connect = |uid, session| {
        let security = site.token(&signing_key(1), &user(uid, 1, &[]), hour);
        site.connect(security, session).unwrap()
    };
    // The same session number, drawn on purpose.
    let (alice, mallory) = (connect(1, 7), connect(2, 7));
    let own = |client: &ClientHandle, number| {
        block_on(client.spawn(NodeId::fs(0), Own { client: number }))
    };
    let number_of = |client: &ClientHandle| client.call_numbers().unwrap().client();
    assert_ne!(number_of(&alice), number_of(&mallory));
    assert_eq!(own(&alice, number_of(&alice)), Ok(()));
    assert_eq!(own(&mallory, number_of(&alice)), Err(Undelivered::Refused));
    assert_eq!(own(&mallory, number_of(&mallory)), Ok(()));
}

#[test]
fn limited_clients_come_in_only_where_limits_are_known() {
    let site = Site::new();
    let subtree = SubtreePath::new(b"/in");
    assert!(subtree.is_some());
    let (who, hour) = (Credentials::root(), Duration::from_hours(1));
    let token = signing_key(1).token_within(subtree.as_ref(), &who, now(), hour, 0);
    let text = token::to_text(&token) + &site.keys.authority_certificate().unwrap();
    let file = site.file("limited", &text);
    let token = ClientSecurity::Tls(Arc::new(ClientKeys::from_token_file(&file).unwrap()));
    let host = site.host(&HostCertificate { subtree, ..HostCertificate::new("n1") });
    for security in [token, host] {
        is_refused(site.connect(security, 1), &["limited to a directory"]);
    }
}

#[test]
fn no_client_names_any_file_of_a_number() {
    let site = Site::new();
    let trusted = HostCertificate { squash_root: false, ..HostCertificate::new("n1") };
    let client = site.connect(site.host(&trusted), 1).unwrap();
    let file = |ino, generation| FileHandle { ino, generation };
    let named = |from, to| block_on(client.spawn(NodeId::fs(0), Move { from, to }));
    assert_eq!(named(file(1, 1), file(2, 9)), Ok(vec![file(1, 1), file(2, 9)]));
    for (from, to) in [(file(1, 0), file(2, 9)), (file(1, 1), file(2, 0))] {
        assert_eq!(named(from, to), Err(Undelivered::Refused));
    }
}

/// Where the other user of the test below finds the socket.
const SOCKET_VARIABLE: &str = "MDFS_TEST_SOCKET";
const OTHER: u32 = 4_000_000_001;

#[test]
fn another_user_of_the_host_is_who_the_kernel_says() {
    if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
        return be_the_other_user(Path::new(&socket));
    }
    let site = Site::new();
    let socket = site.folder.path().join("socket");
    // Root acts as anyone; other tests run as other users, and cannot change to one.
    let address = ServerAddress::Local(socket.clone());
    let client = connect(&address, ClientSecurity::None, 1).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let judged_as = judged(&client, &user(5, 6, &[7])).unwrap();
    if own != 0 {
        assert_eq!(judged_as.uid, own);
        return;
    }
    assert_eq!(judged_as, user(5, 6, &[7]));
    // This program again, at a place that the other user can reach.
    let program = site.folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "another_user_of_the_host_is_who_the_kernel_says"]);
    command.env(SOCKET_VARIABLE, &socket).current_dir("/").gid(OTHER).uid(OTHER);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn be_the_other_user(socket: &Path) {
    assert_eq!(rustix::process::geteuid().as_raw(), OTHER);
    let address = ServerAddress::Local(socket.to_owned());
    let client = connect(&address, ClientSecurity::None, 2).unwrap();
    for said in [Credentials::root(), user(OWNER, 0, &[]), user(1001, 0, &[0])] {
        let who = judged(&client, &said).unwrap();
        assert_eq!((who.uid, who.gid), (OTHER, OTHER), "{said:?} was said");
        assert!(!who.in_group(0));
    }
    let folder = socket.parent().unwrap();
    for path in [folder.to_owned(), folder.join("keys"), folder.join("keys/authority.key")] {
        let opened = std::fs::File::open(&path);
        assert_eq!(
            opened.unwrap_err().kind(),
            io::ErrorKind::PermissionDenied,
            "{}",
            path.display()
        );
    }
}

#[test]
fn silent_connections_are_few_and_keep_no_client_out() {
    const SILENT: usize = 600;
    let site = Site::new();
    let begun = Instant::now();
    let open = |_| TcpStream::connect(&site.address).unwrap();
    let silent: Vec<TcpStream> = (0..SILENT).map(open).collect();
    let security = site.token(&signing_key(1), &user(7, 7, &[]), Duration::from_hours(1));
    let client = site.connect(security, 1).unwrap();
    assert!(judged(&client, &Credentials::root()).is_ok());
    // Those that came first are closed long before their time for a hello is over.
    let is_closed = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!((&*stream).read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    };
    if begun.elapsed() >= Duration::from_secs(2) {
        // On a host this slow they are closed for their silence.
        return;
    }
    let open = silent.iter().filter(|stream| !is_closed(stream)).count();
    assert!(open <= 256, "{open} connections wait");
}
