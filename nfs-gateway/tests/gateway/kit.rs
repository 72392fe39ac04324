//! A world with a gateway in it, and a client that speaks NFS.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use fileio::model::Model;
use fileio::protocol::{FileIo, Reply, Request};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{World, WorldShape};
use nfs_gateway::{Config, Exports, Gateway};
use nfs3_types::mount;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{RPC_VERSION_2, auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use runtime::net::{Address, ByteStream, StreamReader, StreamWriter};
use runtime::seed::Rng;
use runtime::{Caller, Context, NodeId, Server, VolumeId};

/// File-system nodes of the world.
const NODES: u32 = 4;

/// The volume that the gateway serves.
pub(crate) const VOLUME: VolumeId = VolumeId(0x1234_5678_9abc_def0_1122_3344_5566_7788);

/// What a test lets file I/O do with a request.
pub(crate) enum Act {
    /// What it should.
    Answer,
    /// Give this answer and do nothing.
    AnswerWith(Reply),
    /// What it should, later.
    After(Duration),
    /// Never answer.
    Hang,
}

type Rule = Box<dyn FnMut(&Request) -> Act>;

/// File I/O: the reference, and a test's rule before it.
pub(crate) struct Service {
    model: Model,
    rule: RefCell<Rule>,
    losses: Cell<u64>,
    asked: RefCell<Vec<Request>>,
}

impl Service {
    /// From now on `rule` decides.
    pub(crate) fn rule(&self, rule: impl FnMut(&Request) -> Act + 'static) {
        *self.rule.borrow_mut() = Box::new(rule);
    }

    /// What was written and not committed is lost, as far as a write verifier tells.
    pub(crate) fn loses_writes(&self) {
        self.losses.set(self.losses.get() + 1);
    }

    /// All requests since the last time.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.take()
    }
}

/// The service at one node.
struct AtNode(Context, Rc<Service>);

impl Server<FileIo> for AtNode {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move {
            let Self(ctx, service) = &*self;
            service.asked.borrow_mut().push(request.clone());
            let act = (service.rule.borrow_mut())(&request);
            match act {
                Act::Answer => {}
                Act::AnswerWith(reply) => return reply,
                Act::After(duration) => ctx.sleep(duration).await,
                Act::Hang => futures::future::pending().await,
            }
            let mut reply = service.model.answer(&request);
            if let Reply::Write(Ok(verified)) | Reply::Commit(Ok(verified)) = &mut reply {
                verified.write_verifier += service.losses.get();
            }
            reply
        }
        .boxed_local()
    }
}

/// The usual settings, for all clients of the emulated network.
pub(crate) fn config(volume: VolumeId) -> Config {
    let entropy = std::array::from_fn(|index| index as u8);
    Config { exports: Exports::all_clients(), ..Config::new(volume, entropy) }
}

/// A world with a gateway in it.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) service: Rc<Service>,
    pub(crate) gateway: Rc<Gateway>,
}

impl Stage {
    /// With the usual limits.
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self::with(rng, config(VOLUME))
    }

    /// With these settings.
    pub(crate) fn with(rng: &mut Rng, config: Config) -> Self {
        let world = World::new(rng.bits(), WorldShape { fs_nodes: NODES, disk_nodes: 0 });
        let service = Rc::new(Service {
            model: Model::default(),
            rule: RefCell::new(Box::new(|_| Act::Answer)),
            losses: Cell::new(0),
            asked: RefCell::default(),
        });
        for index in 0..NODES {
            let ctx = world.context(NodeId::fs(index));
            ctx.serve::<FileIo>(Rc::new(AtNode(ctx.clone(), service.clone())));
        }
        let address = Address::Tcp("gateway:2049".into());
        let ctx = world.context(NodeId::application(0));
        let gateway =
            world.run(Gateway::start(ctx, &address, config)).expect("the address is free");
        Self { world, service, gateway: Rc::new(gateway) }
    }

    /// A new connection to the gateway.
    pub(crate) fn client(&self) -> Client {
        Client::over(self.world.connect(self.gateway.address()).expect("the gateway listens"))
    }

    /// The same from `peer`, as `10.0.0.1:700`.
    pub(crate) fn client_at(&self, peer: &str) -> Client {
        let stream = self.world.connect_from(peer, self.gateway.address());
        Client::over(stream.expect("the gateway listens"))
    }

    /// Connects, mounts `/`, runs `body`.
    pub(crate) fn run<F, B>(&self, body: B) -> F::Output
    where
        F: Future,
        B: FnOnce(Client, nfs_fh3) -> F,
    {
        let mut client = self.client();
        self.world.run(async move {
            let root = client.mount("/").await;
            body(client, root).await
        })
    }
}

/// The bytes of `value`.
pub(crate) fn encode(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).expect("it is small enough");
    bytes
}

/// `bytes` as exactly one `T`.
pub(crate) fn decode<T: Unpack>(bytes: &[u8]) -> T {
    let mut input = bytes;
    let (value, length) = T::unpack(&mut input).expect("a reply of this type");
    assert_eq!((input.len(), length), (0, bytes.len()), "the reply is longer than its type");
    value
}

/// How a call was received by RPC, and its result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done(Vec<u8>),
    NoProgram,
    ProgramMismatch(u32, u32),
    NoProcedure,
    Garbage,
    RpcMismatch(u32, u32),
    BadAuthentication(u32),
}

impl Verdict {
    /// From what follows the number of the call.
    fn parse(mut reply: Bytes) -> Self {
        let mut word = || reply.get_u32();
        assert_eq!(word(), 1, "this is a reply");
        if word() == 1 {
            return if word() == 0 {
                Self::RpcMismatch(word(), word())
            } else {
                Self::BadAuthentication(word())
            };
        }
        assert_eq!((word(), word()), (0, 0), "an empty verifier");
        match word() {
            0 => Self::Done(reply.to_vec()),
            1 => Self::NoProgram,
            2 => Self::ProgramMismatch(word(), word()),
            3 => Self::NoProcedure,
            4 => Self::Garbage,
            other => panic!("accept_stat {other}"),
        }
    }

    /// The result of a call that was done.
    pub(crate) fn done<T: Unpack>(self) -> T {
        match self {
            Self::Done(bytes) => decode(&bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// A call of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) procedure: u32,
    /// The flavour and the body of the credential.
    pub(crate) credential: (u32, Vec<u8>),
    pub(crate) arguments: Bytes,
}

impl Callback {
    /// From what follows the number of the call.
    fn parse(xid: u32, mut call: Bytes) -> Self {
        let mut word = || call.get_u32();
        assert_eq!((word(), word()), (0, RPC_VERSION_2), "a call");
        let program = word();
        assert_eq!(word(), 1, "the version of the callback program");
        let (procedure, flavour, length) = (word(), word(), word());
        let body = call.split_to(length as usize).to_vec();
        assert_eq!((call.get_u32(), call.get_u32()), (0, 0), "an empty verifier");
        Self { xid, program, procedure, credential: (flavour, body), arguments: call }
    }
}

/// One connection of an NFS client.
pub(crate) struct Client {
    reader: Box<dyn StreamReader>,
    writer: Box<dyn StreamWriter>,
    received: BytesMut,
    /// Calls of the gateway that came while a reply was awaited.
    called: VecDeque<Callback>,
    xid: u32,
    credential: opaque_auth<'static>,
}

impl Client {
    /// Over any stream, as root.
    pub(crate) fn over(stream: ByteStream) -> Self {
        let ByteStream { reader, writer, .. } = stream;
        let mut client = Self {
            reader,
            writer,
            received: BytesMut::new(),
            called: VecDeque::new(),
            xid: 0,
            credential: opaque_auth::default(),
        };
        client.be(0, 0);
        client
    }

    /// Asks as this user from now on.
    pub(crate) fn be(&mut self, uid: u32, gid: u32) {
        self.be_in(uid, gid, &[]);
    }

    /// The same with further groups.
    pub(crate) fn be_in(&mut self, uid: u32, gid: u32, gids: &[u32]) {
        let (machinename, gids) = (Opaque::borrowed(b"test"), gids.to_vec());
        let sent = auth_unix { uid, gid, machinename, gids, ..auth_unix::default() };
        self.credential = opaque_auth::auth_unix(&sent);
    }

    /// Does not say who asks from now on.
    pub(crate) fn be_anonymous(&mut self) {
        self.credential = opaque_auth::default();
    }

    /// Sends bytes as they are; false if the stream is gone.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.writer.write(vec![Bytes::copy_from_slice(bytes)]).await.is_ok()
    }

    /// Sends a record.
    pub(crate) async fn send_record(&mut self, record: &[u8]) -> bool {
        let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
        self.send_raw(&[&mark[..], record].concat()).await
    }

    /// The record of a call with the next number, and the number.
    pub(crate) fn record(&mut self, program: [u32; 3], arguments: &[u8]) -> (u32, Vec<u8>) {
        self.xid += 1;
        let [prog, vers, procedure] = program;
        let call = msg_body::CALL(call_body {
            rpcvers: RPC_VERSION_2,
            prog,
            vers,
            proc: procedure,
            cred: self.credential.borrow(),
            verf: opaque_auth::default(),
        });
        (self.xid, [encode(&rpc_msg { xid: self.xid, body: call }), arguments.to_vec()].concat())
    }

    /// Sends a call and returns its number.
    pub(crate) async fn send(&mut self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> u32 {
        let program = [PROGRAM, VERSION, procedure as u32];
        let (xid, record) = self.record(program, &encode(arguments));
        assert!(self.send_record(&record).await, "the gateway hung up");
        xid
    }

    /// The next reply: its number and its verdict; `None` at the end of the stream. Calls of the
    /// gateway wait until they are asked for.
    pub(crate) async fn receive(&mut self) -> Option<(u32, Verdict)> {
        loop {
            let mut message = self.receive_record().await?;
            let xid = message.get_u32();
            if message.starts_with(&[0; 4]) {
                self.called.push_back(Callback::parse(xid, message));
            } else {
                return Some((xid, Verdict::parse(message)));
            }
        }
    }

    /// The next call of the gateway; `None` at the end of the stream.
    pub(crate) async fn called(&mut self) -> Option<Callback> {
        if let Some(call) = self.called.pop_front() {
            return Some(call);
        }
        let mut message = self.receive_record().await?;
        let xid = message.get_u32();
        assert!(message.starts_with(&[0; 4]), "a call, not a reply");
        Some(Callback::parse(xid, message))
    }

    /// Has the gateway called while a reply was awaited?
    pub(crate) fn has_calls(&self) -> bool {
        !self.called.is_empty()
    }

    /// Answers a call of the gateway: it was accepted and done, with this result.
    pub(crate) async fn answer(&mut self, call: &Callback, result: &[u8]) {
        let words = [call.xid, 1, 0, 0, 0, 0];
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert!(self.send_record(&[&head[..], result].concat()).await, "the gateway hung up");
    }

    /// The next record.
    async fn receive_record(&mut self) -> Option<Bytes> {
        loop {
            if let Some(mark) = self.received.first_chunk().copied().map(u32::from_be_bytes) {
                assert!(mark >> 31 == 1, "records come in one fragment");
                let length = (mark & 0x7fff_ffff) as usize;
                assert_eq!(length % 4, 0, "XDR is padded");
                if self.received.len() >= 4 + length {
                    self.received.advance(4);
                    return Some(self.received.split_to(length).freeze());
                }
            }
            if self.reader.read(&mut self.received).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Sends a call and waits for its reply.
    pub(crate) async fn call(&mut self, program: [u32; 3], arguments: &[u8]) -> Verdict {
        let (xid, record) = self.record(program, arguments);
        assert!(self.send_record(&record).await, "the gateway hung up");
        let (answered, verdict) = self.receive().await.expect("a reply");
        assert_eq!(answered, xid);
        verdict
    }

    /// Calls an NFS procedure.
    pub(crate) async fn nfs<R: Unpack>(&mut self, procedure: NFS_PROGRAM, a: &impl Pack) -> R {
        self.call([PROGRAM, VERSION, procedure as u32], &encode(a)).await.done()
    }

    /// Calls a MOUNT procedure.
    pub(crate) async fn mount3<R: Unpack>(
        &mut self,
        procedure: mount::MOUNT_PROGRAM,
        arguments: &impl Pack,
    ) -> R {
        let program = [mount::PROGRAM, mount::VERSION, procedure as u32];
        self.call(program, &encode(arguments)).await.done()
    }

    /// The handle of a directory that can be mounted.
    pub(crate) async fn mount(&mut self, path: &str) -> nfs_fh3 {
        let path = mount::dirpath(Opaque::borrowed(path.as_bytes()));
        match self.mount3(mount::MOUNT_PROGRAM::MOUNTPROC3_MNT, &path).await {
            mount::mountres3::Ok(mounted) => nfs_fh3 { data: mounted.fhandle.0 },
            mount::mountres3::Err(status) => panic!("{status}"),
        }
    }

    pub(crate) async fn getattr(&mut self, object: &nfs_fh3) -> GETATTR3res {
        let arguments = GETATTR3args { object: object.clone() };
        self.nfs(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments).await
    }

    /// The attributes of what exists.
    pub(crate) async fn attributes(&mut self, object: &nfs_fh3) -> fattr3 {
        self.getattr(object).await.unwrap().obj_attributes
    }

    pub(crate) async fn setattr(&mut self, object: &nfs_fh3, new: sattr3) -> SETATTR3res {
        let arguments =
            SETATTR3args { object: object.clone(), new_attributes: new, guard: Nfs3Option::None };
        self.nfs(NFS_PROGRAM::NFSPROC3_SETATTR, &arguments).await
    }

    pub(crate) async fn lookup(&mut self, dir: &nfs_fh3, name: &[u8]) -> LOOKUP3res {
        let arguments = LOOKUP3args { what: at(dir, name) };
        self.nfs(NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments).await
    }

    pub(crate) async fn create(
        &mut self,
        dir: &nfs_fh3,
        name: &[u8],
        how: createhow3,
    ) -> CREATE3res {
        let arguments = CREATE3args { where_: at(dir, name), how };
        self.nfs(NFS_PROGRAM::NFSPROC3_CREATE, &arguments).await
    }

    /// A new file.
    pub(crate) async fn file(&mut self, dir: &nfs_fh3, name: &str) -> nfs_fh3 {
        let how = createhow3::GUARDED(mode(0o644));
        self.create(dir, name.as_bytes(), how).await.unwrap().obj.unwrap()
    }

    pub(crate) async fn mkdir(&mut self, dir: &nfs_fh3, name: &[u8]) -> MKDIR3res {
        let arguments = MKDIR3args { where_: at(dir, name), attributes: mode(0o755) };
        self.nfs(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments).await
    }

    /// A new directory.
    pub(crate) async fn directory(&mut self, dir: &nfs_fh3, name: &str) -> nfs_fh3 {
        self.mkdir(dir, name.as_bytes()).await.unwrap().obj.unwrap()
    }

    pub(crate) async fn symlink(&mut self, dir: &nfs_fh3, name: &[u8], to: &[u8]) -> SYMLINK3res {
        let symlink = symlinkdata3 {
            symlink_attributes: sattr3::default(),
            symlink_data: nfspath3::from(to),
        };
        let arguments = SYMLINK3args { where_: at(dir, name), symlink };
        self.nfs(NFS_PROGRAM::NFSPROC3_SYMLINK, &arguments).await
    }

    pub(crate) async fn remove(&mut self, dir: &nfs_fh3, name: &[u8]) -> REMOVE3res {
        let arguments = REMOVE3args { object: at(dir, name) };
        self.nfs(NFS_PROGRAM::NFSPROC3_REMOVE, &arguments).await
    }

    pub(crate) async fn rmdir(&mut self, dir: &nfs_fh3, name: &[u8]) -> RMDIR3res {
        let arguments = RMDIR3args { object: at(dir, name) };
        self.nfs(NFS_PROGRAM::NFSPROC3_RMDIR, &arguments).await
    }

    pub(crate) async fn rename(
        &mut self,
        from: (&nfs_fh3, &[u8]),
        to: (&nfs_fh3, &[u8]),
    ) -> RENAME3res {
        let arguments = RENAME3args { from: at(from.0, from.1), to: at(to.0, to.1) };
        self.nfs(NFS_PROGRAM::NFSPROC3_RENAME, &arguments).await
    }

    pub(crate) async fn link(&mut self, file: &nfs_fh3, dir: &nfs_fh3, name: &[u8]) -> LINK3res {
        let arguments = LINK3args { file: file.clone(), link: at(dir, name) };
        self.nfs(NFS_PROGRAM::NFSPROC3_LINK, &arguments).await
    }

    pub(crate) async fn write(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> WRITE3res {
        self.nfs(NFS_PROGRAM::NFSPROC3_WRITE, &write_arguments(file, offset, data, stable)).await
    }

    pub(crate) async fn read(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> READ3res<'static> {
        let arguments = READ3args { file: file.clone(), offset, count };
        self.nfs(NFS_PROGRAM::NFSPROC3_READ, &arguments).await
    }
}

pub(crate) fn write_arguments<'a>(
    file: &nfs_fh3,
    offset: u64,
    data: &'a [u8],
    stable: stable_how,
) -> WRITE3args<'a> {
    let count = data.len() as u32;
    WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(data) }
}

/// A name in a directory.
pub(crate) fn at<'a>(dir: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: filename3::from(name) }
}

/// Only the mode.
pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

/// How a call ended.
pub(crate) fn status<T, E>(result: &Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => *status,
    }
}
