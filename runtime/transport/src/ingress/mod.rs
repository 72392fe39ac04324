//! Where clients are let in: each speaks under the identity that it has proved, and asks for
//! requests of one table only.
//!
//! A client has one session with a process, over one link at a time. When a link breaks the client
//! makes another one and sends its open calls again, with their numbers; `session.rs` knows them.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | who is let in, and how many |
//! | `authentication.rs` | whom a client speaks for |
//! | `session.rs` | the open calls of a client, and the outcomes that it may not have received |
//! | `connection.rs` | the requests of one link |

mod authentication;
mod connection;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use runtime::context::Context;
use runtime::embedded::connections_within_limit;
use runtime::ids::VolumeId;
use runtime::net::{Address, ByteStream, Listener, StreamWriter};
use runtime::protocol::Protocol;
use runtime::wire::{Encoder, Wire as _, from_bytes};

use self::authentication::Admission;
pub use self::authentication::Authentication;
use self::session::SessionState;
use crate::frame::{
    ClientHello, ClientMap, ClientRefusal, FrameHeader, FrameReader, Welcome, garbled, kind, pack,
};
use crate::guard::{Guard, PeerIdentity};
use crate::server::{ACCEPT_PAUSE, HELLO_TIME_MAX, within};

/// Links of clients to one listener, at most, as far as the limit of open files allows.
const LINKS_MAX: usize = 4096;
/// Sessions that a listener knows, at most; the one that was left first is forgotten first.
const SESSIONS_MAX: usize = 8192;
/// A session whose client has not come back for this long is forgotten.
const ABSENT_MAX: Duration = Duration::from_secs(600);

/// What a listener tells its clients, and how it knows them.
pub struct ClientPort {
    /// The volume.
    pub volume: VolumeId,
    /// The name by which clients ask for it.
    pub name: String,
    /// The number of this process; 0 if it is the only one.
    pub process: u32,
    /// The map of the present epoch.
    pub map: Box<dyn Fn(&Context) -> ClientMap>,
    /// Who the clients are.
    pub authentication: Authentication,
    /// How connections from other hosts are protected.
    pub guard: Arc<Guard>,
}

impl std::fmt::Debug for ClientPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientPort").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ClientPort {
    /// For clients of this host; `owner` is the user of this process.
    pub fn local(volume: VolumeId, name: String, process: u32, owner: u32) -> Self {
        Self {
            volume,
            name,
            process,
            map: Box::new(ClientMap::of_one),
            authentication: Authentication { owner, ..Authentication::default() },
            guard: Arc::default(),
        }
    }
}

/// Lets clients ask for requests of `P`, for as long as the machine lives.
pub async fn serve<P: Protocol>(
    context: Context,
    mut listener: Box<dyn Listener>,
    port: ClientPort,
) {
    let ingress = ClientIngress::new(&context, port);
    let is_local = matches!(listener.address(), Address::Unix(_));
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let (ingress, served) = (ingress.clone(), context.clone());
                context.task(async move { ingress.receive::<P>(&served, stream, is_local).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of a client; trying again");
                context.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The clients of one listener.
pub(crate) struct ClientIngress {
    port: ClientPort,
    /// Drawn at the start.
    instance: u64,
    links: Cell<usize>,
    /// By the number of the client and its session.
    sessions: RefCell<BTreeMap<(u64, u128), Rc<SessionState>>>,
}

/// What comes from a client, and what goes to it.
pub(crate) type LinkHalves = (FrameReader, Box<dyn StreamWriter>);

/// A client that was let in.
struct Admitted {
    admission: Admission,
    number: u64,
    session: Rc<SessionState>,
    link: u64,
    frames: FrameReader,
    writer: Box<dyn StreamWriter>,
    welcome: Welcome,
}

impl ClientIngress {
    pub(crate) fn new(context: &Context, port: ClientPort) -> Rc<Self> {
        let (links, sessions) = (Cell::new(0), RefCell::default());
        Rc::new(Self { port, instance: context.random(), links, sessions })
    }

    /// Deals with a connection of a client from its first byte to its end.
    async fn receive<P: Protocol>(&self, context: &Context, stream: ByteStream, is_local: bool) {
        let name = stream.peer.clone();
        let coming = self.hello(stream, is_local).boxed_local();
        match within(context, HELLO_TIME_MAX, coming).await.flatten() {
            Ok((link, hello, peer)) => {
                self.converse::<P>(context, link, hello, (peer, name)).await;
            }
            Err(error) => tracing::debug!(peer = name, %error, "a connection of no client"),
        }
    }

    /// Waits for a client to prove who it is, and to introduce itself.
    async fn hello(
        &self,
        stream: ByteStream,
        is_local: bool,
    ) -> io::Result<(LinkHalves, ClientHello, PeerIdentity)> {
        let (stream, peer) = if is_local {
            let peer = PeerIdentity::Local(stream.user.clone());
            (stream, peer)
        } else {
            self.port.guard.receive(stream).await?
        };
        let mut frames = FrameReader::new(stream.reader);
        let first = frames.first().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if first.header.kind != kind::CLIENT_HELLO {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let hello = from_bytes(&first.head).map_err(garbled)?;
        Ok(((frames, stream.writer), hello, peer))
    }

    /// Lets in a client that has said `hello`, or refuses it, and answers it until the link ends.
    pub(crate) async fn converse<P: Protocol>(
        &self,
        context: &Context,
        (frames, mut writer): LinkHalves,
        hello: ClientHello,
        (peer, name): (PeerIdentity, String),
    ) {
        let (session, (admission, number), resumed) = match self.admit(context, &hello, &peer) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let (program, why) = (&hello.program, &refusal.why);
                tracing::warn!(peer = name, program, why, "a client is refused");
                let mut head = Encoder::new();
                refusal.put(&mut head);
                let header = FrameHeader { kind: kind::REFUSAL, ..FrameHeader::default() };
                // It may be gone.
                let _ = within(context, HELLO_TIME_MAX, writer.write(pack(header, head))).await;
                return;
            }
        };
        let welcome = Welcome {
            volume: self.port.volume,
            process: self.port.process,
            instance: self.instance,
            resumed,
            client: number,
            map: (self.port.map)(context),
        };
        tracing::debug!(peer = name, program = hello.program, resumed, "a client");
        self.links.set(self.links.get() + 1);
        let admitted = Admitted {
            admission,
            number,
            session: session.clone(),
            link: hello.link,
            frames,
            writer,
            welcome,
        };
        let ended = connection::answer::<P>(self, context, admitted).await;
        self.links.set(self.links.get() - 1);
        session.leave(hello.link, context.now());
        if let Err(error) = ended {
            tracing::debug!(peer = name, %error, "the link of a client has ended");
        }
    }

    /// The session of a client that may come in, and whether it was known; or why not.
    fn admit(
        &self,
        context: &Context,
        hello: &ClientHello,
        peer: &PeerIdentity,
    ) -> Result<(Rc<SessionState>, (Admission, u64), bool), ClientRefusal> {
        let refused = |is_final| move |why| ClientRefusal { is_final, why };
        if !hello.volume.is_empty() && hello.volume != self.port.name {
            let (wanted, name) = (&hello.volume, &self.port.name);
            let why = format!("there is no volume '{wanted}' here; this one is called '{name}'");
            return Err(refused(true)(why));
        }
        let links_max = connections_within_limit(LINKS_MAX);
        if self.links.get() >= links_max {
            let why = format!("there are {links_max} links of clients already");
            return Err(refused(false)(why));
        }
        let admission = self.port.authentication.admit(context, hello, peer)?;
        let number = admission.principal.client_number(hello.session);
        self.forget_absent(context.now());
        let mut sessions = self.sessions.borrow_mut();
        let known = sessions.get(&(number, hello.session)).cloned();
        let resumed = known.is_some();
        let session = known.unwrap_or_default();
        session.take_over(hello.link).map_err(refused(false))?;
        sessions.insert((number, hello.session), session.clone());
        Ok((session, (admission, number), resumed))
    }

    /// Forgets sessions that nothing can come of any more, and the longest absent ones if there are
    /// too many.
    fn forget_absent(&self, now: Duration) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.len() < SESSIONS_MAX / 2 {
            return;
        }
        sessions.retain(|_, session| {
            session.absent_since().is_none_or(|since| now.saturating_sub(since) < ABSENT_MAX)
        });
        while sessions.len() >= SESSIONS_MAX {
            let absent = sessions.iter().filter_map(|(key, it)| Some((it.absent_since()?, *key)));
            let Some((_, oldest)) = absent.min() else { return };
            sessions.remove(&oldest);
        }
    }

    /// The client has said goodbye.
    fn forget(&self, client: u64, session: &Rc<SessionState>) {
        let is_it = |(number, _): &(u64, u128), known: &Rc<SessionState>| {
            *number == client && Rc::ptr_eq(known, session)
        };
        self.sessions.borrow_mut().retain(|key, known| !is_it(key, known));
    }
}

impl From<io::Error> for session::LinkEnd {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}
