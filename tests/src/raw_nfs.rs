//! An NFS client of our own, that can also send what no client should.
//!
//! A few lines of XDR (RFC 4506), RPC (RFC 5531), MOUNT and NFS (RFC 1813): written here, so that
//! the gateway is not checked against the code that it is made of.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::served::Served;

/// Longer than any answer takes. A gateway that neither answers nor hangs up fails the test.
const PATIENCE: Duration = Duration::from_mins(1);

/// Bytes of a reply that a client believes in.
const REPLY_MAX: usize = 4 << 20;

/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;

/// NFS, version 3.
pub const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);

/// Procedures of NFS.
pub mod procedure {
    /// Attributes of a file.
    pub const GETATTR: u32 = 1;
    /// The handle of a name.
    pub const LOOKUP: u32 = 3;
    /// Bytes of a file.
    pub const READ: u32 = 6;
    /// New bytes of a file.
    pub const WRITE: u32 = 7;
    /// A new file.
    pub const CREATE: u32 = 8;
    /// A new directory.
    pub const MKDIR: u32 = 9;
    /// A name less.
    pub const REMOVE: u32 = 12;
    /// Another name.
    pub const RENAME: u32 = 14;
    /// The names in a directory.
    pub const READDIR: u32 = 16;
    /// What was written becomes durable.
    pub const COMMIT: u32 = 21;
}

/// Outcomes of NFS procedures.
pub mod status {
    /// It was done.
    pub const OK: u32 = 0;
    /// No such name.
    pub const NOENT: u32 = 2;
    /// May not be looked at.
    pub const ACCES: u32 = 13;
    /// The name is taken.
    pub const EXIST: u32 = 17;
    /// Not an argument.
    pub const INVAL: u32 = 22;
    /// The volume is full.
    pub const NOSPC: u32 = 28;
    /// The name has more than 255 bytes.
    pub const NAMETOOLONG: u32 = 63;
    /// The file is gone.
    pub const STALE: u32 = 70;
    /// Not a handle.
    pub const BADHANDLE: u32 = 10001;
    /// Later.
    pub const JUKEBOX: u32 = 10008;
}

/// Arguments in the making.
#[derive(Clone, Debug, Default)]
pub struct Args(pub Vec<u8>);

impl Args {
    /// Adds a number of 32 bits.
    #[must_use]
    pub fn word(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Adds a number of 64 bits.
    #[must_use]
    pub fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Adds bytes behind their length: a name, a handle, data.
    #[must_use]
    pub fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.word(bytes.len() as u32);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds attributes of a new file: its mode, nothing else.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        [0; 5].into_iter().fold(self.word(1).word(mode), Self::word)
    }
}

/// The results of a call, to be taken from the front.
#[derive(Clone, Debug)]
pub struct Results(Vec<u8>);

impl Results {
    fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.0.split_off(length);
        std::mem::replace(&mut self.0, rest)
    }

    /// A number of 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    /// A number of 64 bits.
    pub fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    /// Bytes behind their length.
    pub fn opaque(&mut self) -> Vec<u8> {
        let length = self.word() as usize;
        let padded = self.take(length.next_multiple_of(4));
        padded[..length].to_vec()
    }

    /// Skips attributes that may be there.
    pub fn skip_attributes(&mut self) {
        if self.word() == 1 {
            self.take(84);
        }
    }

    /// Skips what a change tells of a file as it was before and is after it.
    pub fn skip_change(&mut self) {
        if self.word() == 1 {
            self.take(24);
        }
        self.skip_attributes();
    }
}

/// A socket that the servers which tests start do not inherit: they would keep its port in use.
fn socket() -> TcpStream {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap().into()
}

/// The number of the first call: drawn, as clients do that come and go on one host, since a server
/// knows a call that comes again by its number and its host.
fn first_number() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u32
}

/// One connection.
#[derive(Debug)]
pub struct RawNfs {
    stream: TcpStream,
    call: u32,
}

impl RawNfs {
    /// Connects.
    pub fn connect(served: &Served) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", served.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, call: first_number() }
    }

    /// Connects from this address of the host: another peer.
    pub fn connect_from(served: &Served, source: Ipv4Addr) -> io::Result<Self> {
        let stream = socket();
        rustix::net::bind(&stream, &SocketAddrV4::new(source, 0))?;
        rustix::net::connect(&stream, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, served.port()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, call: first_number() })
    }

    /// By a connection that stands already; no answer takes longer than `patience`.
    pub fn over(stream: TcpStream, patience: Duration) -> Self {
        stream.set_read_timeout(Some(patience)).unwrap();
        stream.set_write_timeout(Some(patience)).unwrap();
        Self { stream, call: 0 }
    }

    /// Its own port.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Ends the connection at once and leaves nothing of it, so that its port can be used again.
    pub fn hang_up(&mut self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        self.stream = socket();
    }

    /// The client that comes back from `port`, or from any if that is 0, after it has hung up.
    #[must_use]
    pub fn again(&self, served: &Served, port: u16) -> Self {
        let local = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let stream = socket();
        rustix::net::sockopt::set_socket_reuseaddr(&stream, true).unwrap();
        rustix::net::bind(&stream, &local(port)).unwrap();
        rustix::net::connect(&stream, &local(served.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, call: self.call }
    }

    /// Sends bytes as they are; an error if the gateway has hung up.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more is sent.
    pub fn end(&mut self) {
        // It may have hung up already.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// The next record; `None` if the gateway hangs up instead.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        match self.read_record() {
            Ok(record) => Some(record),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("neither an answer nor an end within {PATIENCE:?}")
            }
            Err(_) => None,
        }
    }

    fn read_record(&mut self) -> io::Result<Vec<u8>> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        assert!(mark & LAST != 0, "replies come in one fragment");
        let length = (mark & !LAST) as usize;
        assert!(length <= REPLY_MAX, "a reply of {length} bytes");
        let mut record = vec![0; length];
        self.stream.read_exact(&mut record)?;
        Ok(record)
    }

    /// The record of the next call, with its mark, as root of this host.
    pub fn record(&mut self, program: (u32, u32), procedure: u32, args: &Args) -> Vec<u8> {
        self.call = self.call.wrapping_add(1);
        let who = Args::default().word(0).opaque(b"test").word(0).word(0).word(0);
        let head = Args::default().word(self.call).word(0).word(2);
        let head = head.word(program.0).word(program.1).word(procedure);
        let head = head.word(1).opaque(&who.0).word(0).word(0);
        let length = (head.0.len() + args.0.len()) as u32;
        [&(length | LAST).to_be_bytes(), &head.0[..], &args.0].concat()
    }

    /// Calls a procedure of NFS and returns its status and what follows that.
    pub fn nfs(&mut self, procedure: u32, args: &Args) -> (u32, Results) {
        self.ask(NFS, procedure, args)
    }

    pub(crate) fn ask(
        &mut self,
        program: (u32, u32),
        procedure: u32,
        args: &Args,
    ) -> (u32, Results) {
        let record = self.record(program, procedure, args);
        self.send(&record).unwrap();
        let reply = self.receive().expect("the gateway hangs up");
        self.taken_apart(reply)
    }

    /// The same where the gateway may be gone: an error if there is no answer.
    pub fn try_nfs(&mut self, procedure: u32, args: &Args) -> io::Result<(u32, Results)> {
        self.try_ask(NFS, procedure, args)
    }

    fn try_ask(
        &mut self,
        program: (u32, u32),
        procedure: u32,
        args: &Args,
    ) -> io::Result<(u32, Results)> {
        let record = self.record(program, procedure, args);
        self.send(&record)?;
        let reply = self.read_record()?;
        Ok(self.taken_apart(reply))
    }

    fn taken_apart(&self, reply: Vec<u8>) -> (u32, Results) {
        let mut reply = Results(reply);
        // A reply to this call, accepted, without a verifier, done.
        for expected in [self.call, 1, 0, 0, 0, 0] {
            assert_eq!(reply.word(), expected, "{reply:?}");
        }
        (reply.word(), reply)
    }

    /// The record of a call of NFS that asks for attributes.
    pub fn getattr_record(&mut self, file: &[u8]) -> Vec<u8> {
        self.record(NFS, procedure::GETATTR, &Args::default().opaque(file))
    }

    /// The handle of the root.
    pub fn root(&mut self) -> Vec<u8> {
        let (status, mut results) = self.ask(MOUNT, 1, &Args::default().opaque(b"/"));
        assert_eq!(status, status::OK);
        results.opaque()
    }

    /// The same where the gateway may be gone, or cannot say now.
    pub fn try_root(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (status, mut results) = self.try_ask(MOUNT, 1, &Args::default().opaque(b"/"))?;
        Ok((status == status::OK).then(|| results.opaque()))
    }

    /// How asking for the attributes of a handle ends.
    pub fn getattr(&mut self, file: &[u8]) -> u32 {
        self.nfs(procedure::GETATTR, &Args::default().opaque(file)).0
    }

    /// The handle of a name, or why there is none.
    pub fn lookup(&mut self, directory: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
        let args = Args::default().opaque(directory).opaque(name);
        match self.nfs(procedure::LOOKUP, &args) {
            (status::OK, mut results) => Ok(results.opaque()),
            (status, _) => Err(status),
        }
    }

    /// Makes a file that must not exist; its handle, or why not.
    pub fn create(&mut self, directory: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
        let args = Args::default().opaque(directory).opaque(name).word(1).mode(0o644);
        self.made(procedure::CREATE, &args)
    }

    /// Makes a directory; its handle, or why not.
    pub fn mkdir(&mut self, directory: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
        self.made(procedure::MKDIR, &Args::default().opaque(directory).opaque(name).mode(0o755))
    }

    fn made(&mut self, procedure: u32, args: &Args) -> Result<Vec<u8>, u32> {
        match self.nfs(procedure, args) {
            (status::OK, mut results) => {
                assert_eq!(results.word(), 1, "a handle comes with it");
                Ok(results.opaque())
            }
            (status, _) => Err(status),
        }
    }

    /// How removing a name ends.
    pub fn remove(&mut self, directory: &[u8], name: &[u8]) -> u32 {
        self.nfs(procedure::REMOVE, &Args::default().opaque(directory).opaque(name)).0
    }

    /// How renaming ends.
    pub fn rename(&mut self, directory: &[u8], from: &[u8], to: &[u8]) -> u32 {
        let args = Args::default().opaque(directory).opaque(from).opaque(directory).opaque(to);
        self.nfs(procedure::RENAME, &args).0
    }

    /// How writing durably ends.
    pub fn write(&mut self, file: &[u8], offset: u64, data: &[u8]) -> u32 {
        let args = Args::default().opaque(file).long(offset).word(data.len() as u32);
        self.nfs(procedure::WRITE, &args.word(2).opaque(data)).0
    }

    /// Bytes of a file, or why there are none.
    pub fn read_file(&mut self, file: &[u8], offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let args = Args::default().opaque(file).long(offset).word(count);
        match self.nfs(procedure::READ, &args) {
            (status::OK, mut results) => {
                results.skip_attributes();
                let (count, _end) = (results.word(), results.word());
                let data = results.opaque();
                assert_eq!(data.len(), count as usize);
                Ok(data)
            }
            (status, _) => Err(status),
        }
    }

    /// All names in a directory, in replies of at most `count` bytes.
    pub fn names(&mut self, directory: &[u8], count: u32) -> Vec<Vec<u8>> {
        let (mut cookie, mut verifier, mut names) = (0, 0, Vec::new());
        loop {
            let args = Args::default().opaque(directory).long(cookie).long(verifier).word(count);
            let (status, mut results) = self.nfs(procedure::READDIR, &args);
            assert_eq!(status, status::OK);
            assert!(results.0.len() <= count as usize, "a reply is longer than was asked for");
            results.skip_attributes();
            verifier = results.long();
            let before = names.len();
            while results.word() == 1 {
                let _number = results.long();
                names.push(results.opaque());
                cookie = results.long();
            }
            if results.word() == 1 {
                return names;
            }
            assert!(names.len() > before, "a reply without an entry that is not the last");
        }
    }
}
