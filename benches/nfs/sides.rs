//! The servers: ours, and those of others that are installed.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use benches::in_earnest;
use tempfile::TempDir;

use crate::{nfsserve, ours};

/// Set in the process that has a network of its own.
pub(crate) const APART: &str = "MDFS_BENCH_APART";

/// Ports of the others, in a network of their own.
const GANESHA: (u16, u16) = (20_800, 20_801);
const UNFS3: (u16, u16) = (20_810, 20_811);

/// Attempts to connect to a new server, and the pause between them.
const TRIES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// A server, and what of it is exported.
#[derive(Debug)]
pub(crate) struct NfsServerSide {
    pub(crate) name: &'static str,
    /// When a change of names is safe; and data, after COMMIT.
    pub(crate) durability: &'static str,
    pub(crate) nfs: SocketAddr,
    pub(crate) mount: SocketAddr,
    pub(crate) export: String,
    process: Arc<ServerProcess>,
}

impl NfsServerSide {
    /// Processor time of all threads of the server so far.
    pub(crate) fn cpu(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.child.id()));
        let nanos = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            schedstat.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }
}

/// A process that ends with this, and the folder that it works in.
#[derive(Debug)]
struct ServerProcess {
    child: Child,
    _folder: TempDir,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is there one that works only beside rpcbind, and may that be started here?
pub(crate) fn needs_rpcbind() -> bool {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    is_root && ["ganesha.nfsd", "unfsd"].iter().any(|name| is_there(name)) && is_there("rpcbind")
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Starts all of them; the first is the one that the others are compared with.
pub(crate) fn start() -> Vec<NfsServerSide> {
    let mut sides = vec![
        ours("mdfs async", "names within 2 s; data safe", (1, "async")),
        ours("mdfs sync", "names safe; data safe", (1, "sync")),
    ];
    if in_earnest() {
        sides.push(ours("mdfs async, all cores", "as mdfs async", (0, "async")));
    }
    sides.push(nfsserve());
    if std::env::var_os(APART).is_some() {
        let rpcbind = Command::new("rpcbind")
            .arg("-f")
            .spawn()
            .map(|child| ServerProcess { child, _folder: folder() });
        sides.extend(ganesha());
        sides.extend(unfs3());
        // It is asked while they start only.
        drop(rpcbind);
    } else if in_earnest() {
        eprintln!("only our own server: others need root, rpcbind, and nfs-ganesha or unfs3");
    }
    sides
}

fn folder() -> TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    tempfile::tempdir_in(target).expect("the target directory takes files")
}

fn ours(
    name: &'static str,
    durability: &'static str,
    (threads, sync): (usize, &str),
) -> NfsServerSide {
    let folder = folder();
    let directory = folder.path().display().to_string();
    let arguments = [ours::SERVE, &directory, &threads.to_string(), sync].map(str::to_owned);
    this_program(name, durability, folder, &arguments)
}

/// The crate `nfsserve`, before tables in memory.
fn nfsserve() -> NfsServerSide {
    let durability = "nothing; says that data is safe";
    this_program("nfsserve", durability, folder(), &[nfsserve::SERVE.to_owned()])
}

/// A server that this program is, if it is told so by `arguments`.
fn this_program(
    name: &'static str,
    durability: &'static str,
    folder: TempDir,
    arguments: &[String],
) -> NfsServerSide {
    let program = std::env::current_exe().expect("a program knows its file");
    let mut command = Command::new(program);
    command.args(arguments);
    // Its input stays open as long as its process is held here.
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = ServerProcess { child: child.expect("this program starts"), _folder: folder };
    let mut line = String::new();
    let output = process.child.stdout.take().expect("it is a pipe");
    BufReader::new(output).read_line(&mut line).expect("it says where it listens");
    let address: SocketAddr = line.trim().parse().expect("an address");
    let (nfs, mount, export) = (address, address, "/".to_owned());
    NfsServerSide { name, durability, nfs, mount, export, process: process.into() }
}

/// nfs-ganesha, with a directory of this disk and with its file system in memory.
fn ganesha() -> Vec<NfsServerSide> {
    if !is_there("ganesha.nfsd") {
        eprintln!("nfs-ganesha is not installed (nfs-ganesha-vfs, nfs-ganesha-mem)");
        return Vec::new();
    }
    let folder = folder();
    let exported = exported(&folder);
    let config = folder.path().join("ganesha.conf");
    let export = |id: u32, path: &str, name: &str| {
        format!(
            "EXPORT {{ Export_Id = {id}; Path = {path}; Pseudo = /{name}; Protocols = 3; \
             Transports = TCP; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; \
             MaxRead = 1048576; MaxWrite = 1048576; FSAL {{ Name = {name}; }} }}\n"
        )
    };
    let core = format!(
        "NFS_CORE_PARAM {{ NFS_Port = {}; MNT_Port = {}; Enable_UDP = false; Enable_NLM = false; \
         Enable_RQUOTA = false; Protocols = 3; }}\n",
        GANESHA.0, GANESHA.1
    );
    let path = exported.display().to_string();
    let text = [core, export(1, &path, "VFS"), export(2, "/memory", "MEM")].concat();
    fs::write(&config, text).expect("the folder takes files");
    let mut command = Command::new("ganesha.nfsd");
    command.args(["-F", "-f"]).arg(&config).arg("-L").arg(folder.path().join("log"));
    command.arg("-p").arg(folder.path().join("pid"));
    let Some(process) = started(command, folder, GANESHA) else { return Vec::new() };
    let process = Arc::new(process);
    let side = |name, durability, export: &str| NfsServerSide {
        name,
        durability,
        nfs: local(GANESHA.0),
        mount: local(GANESHA.1),
        export: export.to_owned(),
        process: process.clone(),
    };
    vec![
        side("ganesha VFS", "names when ext4 likes; data safe", &path),
        side("ganesha MEM", "nothing; keeps 64 KiB of a file", "/memory"),
    ]
}

fn unfs3() -> Option<NfsServerSide> {
    if !is_there("unfsd") {
        eprintln!("unfs3 is not installed (unfsd)");
        return None;
    }
    let folder = folder();
    let export = exported(&folder).display().to_string();
    let exports = folder.path().join("exports");
    fs::write(&exports, format!("{export} 127.0.0.1(rw,no_root_squash,insecure)\n")).ok()?;
    let mut command = Command::new("unfsd");
    command.args(["-d", "-t", "-p", "-e"]).arg(exports);
    command.args(["-n", &UNFS3.0.to_string(), "-m", &UNFS3.1.to_string()]);
    let process = started(command, folder, UNFS3)?.into();
    let (nfs, mount) = (local(UNFS3.0), local(UNFS3.1));
    let durability = "names when ext4 likes; data safe";
    Some(NfsServerSide { name: "unfs3", durability, nfs, mount, export, process })
}

/// A directory of the disk that all sides use.
fn exported(folder: &TempDir) -> PathBuf {
    let exported = folder.path().join("exported");
    fs::create_dir_all(&exported).expect("the folder takes directories");
    exported.canonicalize().expect("it was just made")
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Starts a server and waits until both of its ports answer.
fn started(mut command: Command, folder: TempDir, ports: (u16, u16)) -> Option<ServerProcess> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().ok()?;
    let mut process = ServerProcess { child, _folder: folder };
    for _ in 0..TRIES_MAX {
        std::thread::sleep(PAUSE);
        let answers = |port| TcpStream::connect(local(port)).is_ok();
        if answers(ports.0) && answers(ports.1) {
            return Some(process);
        }
        if let Ok(Some(status)) = process.child.try_wait() {
            eprintln!("{command:?} ends with {status}");
            return None;
        }
    }
    eprintln!("{command:?} does not answer");
    None
}
