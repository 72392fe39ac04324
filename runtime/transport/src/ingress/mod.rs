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
//! | `budget.rs` | the memory that all clients may take |
//! | `count.rs` | how many clients there are |
//! | `subtree.rs` | clients that are limited to a subtree |
//! | `session.rs` | the open calls of a client, and the outcomes that it may not have received |
//! | `connection.rs` | the requests of one link |
//! | `forwarded.rs` | requests that this process sends on to another one |
//! | `deliveries.rs` | bytes that other processes have this one send to its clients |
//! | `deposit_table.rs` | what one client has left here |
//! | `deposits.rs` | bytes that clients leave here for other processes to have them stored |

mod authentication;
mod budget;
mod connection;
mod count;
mod deliveries;
mod deposit_table;
mod deposits;
mod forwarded;
mod session;
mod subtree;

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
use runtime::wire::from_bytes;

use self::authentication::Admission;
pub use self::authentication::Authentication;
use self::budget::Account;
pub(crate) use self::budget::BudgetShare;
pub use self::budget::ClientBudget;
pub use self::count::ClientCount;
use self::session::SessionState;
pub use self::subtree::{Subtree, SubtreeRefused, Subtrees};
use crate::frame::{
    ClientHello, ClientMap, ClientRefusal, FrameReader, Welcome, frame_of, garbled, kind,
};
use crate::guard::{Guard, PeerIdentity, Refusal};
use crate::pending::PendingConnections;
use crate::time_limit::{ACCEPT_PAUSE, HELLO_TIME_MAX, within};

/// Links of clients to one listener, at most, as far as the limit of open files allows.
const LINKS_MAX: usize = 4096;
/// The part of them that one user or host may have: the others stay for everyone else.
const LINKS_SHARE: usize = 2;
/// Sessions that a listener knows, at most. Of the account that has most of those that could be
/// forgotten, the one that was left first goes first.
const SESSIONS_MAX: usize = 8192;
/// Bytes of the outcomes of absent sessions, at most.
const ABSENT_BYTES_MAX: usize = 64 << 20;
/// A client that has only lost its link is back within this time.
const RETURN_MAX: Duration = Duration::from_mins(1);
/// How often absent sessions are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// A session whose client has not come back for this long is forgotten.
const ABSENT_MAX: Duration = Duration::from_mins(10);

/// What a listener tells its clients, and how it knows them.
pub struct ClientPort<P> {
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
    /// What clients may take, of this listener and others that have the same.
    pub budget: Arc<ClientBudget>,
    /// Counts them.
    pub count: Arc<ClientCount>,
    /// Lets clients in that are limited to a subtree; without it none comes in.
    pub subtrees: Option<Box<dyn Subtrees<P>>>,
}

impl<P> std::fmt::Debug for ClientPort<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientPort").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<P> ClientPort<P> {
    /// For clients of this host; `owner` is the user of this process.
    pub fn local(volume: VolumeId, name: String, process: u32, owner: u32) -> Self {
        Self {
            volume,
            name,
            process,
            map: Box::new(ClientMap::of_one),
            authentication: Authentication { owner, ..Authentication::default() },
            guard: Arc::default(),
            budget: Arc::default(),
            count: Arc::default(),
            subtrees: None,
        }
    }
}

/// Lets clients ask for requests of `P`, for as long as the machine lives.
pub async fn serve<P: Protocol>(
    context: Context,
    mut listener: Box<dyn Listener>,
    port: ClientPort<P>,
) {
    let ingress = ClientIngress::new(&context, port);
    let is_local = matches!(listener.address(), Address::Unix(_));
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let (ingress, served) = (ingress.clone(), context.clone());
                context.task(async move { ingress.receive(&served, stream, is_local).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of a client; trying again");
                context.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The clients of one listener.
pub(crate) struct ClientIngress<P> {
    port: ClientPort<P>,
    /// Drawn at the start.
    instance: u64,
    links: RefCell<OpenLinks>,
    pending: PendingConnections,
    /// By the number of the client and its session.
    sessions: RefCell<ClientSessions>,
    /// When absent sessions were looked for last.
    swept: Cell<Duration>,
}

/// What comes from a client, and what goes to it.
pub(crate) type LinkHalves = (FrameReader, Box<dyn StreamWriter>);

/// A session, the client's proof and number, and whether the session was known.
type AdmittedSession = (Rc<SessionState>, (Admission, u64), bool);

/// A client that was let in.
struct Admitted<P> {
    admission: Admission,
    /// To which it is limited.
    subtree: Option<Rc<dyn Subtree<P>>>,
    number: u64,
    session: Rc<SessionState>,
    link: u64,
    frames: FrameReader,
    writer: Box<dyn StreamWriter>,
    welcome: Welcome,
}

impl<P: Protocol> ClientIngress<P> {
    pub(crate) fn new(context: &Context, port: ClientPort<P>) -> Rc<Self> {
        let ingress = Rc::new(Self {
            port,
            instance: context.random(),
            links: RefCell::default(),
            pending: PendingConnections::default(),
            sessions: RefCell::default(),
            swept: Cell::default(),
        });
        deliveries::serve(context, &ingress);
        ingress
    }

    /// Deals with a connection of a client from its first byte to its end.
    async fn receive(&self, context: &Context, stream: ByteStream, is_local: bool) {
        let name = stream.peer.clone();
        let coming = self.hello(stream, is_local).boxed_local();
        let coming = self.pending.wait_for(within(context, HELLO_TIME_MAX, coming)).await;
        match coming.map(io::Result::flatten) {
            Some(Ok((link, hello, peer))) => {
                self.converse(context, link, hello, (peer, name)).await;
            }
            Some(Err(error)) => tracing::debug!(peer = name, %error, "a connection of no client"),
            None => {
                let crowded = io::ErrorKind::QuotaExceeded.into();
                self.port.guard.refuse(&name, Refusal::TooManyConnections, &crowded);
            }
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
    pub(crate) async fn converse(
        &self,
        context: &Context,
        (frames, mut writer): LinkHalves,
        hello: ClientHello,
        (peer, name): (PeerIdentity, String),
    ) {
        let Some(_counted) = self.port.count.enter() else {
            tracing::debug!(peer = name, "a client is not let in: the process is about to end");
            return;
        };
        let authenticated = self.authenticate(context, &hello, &peer).await;
        let admitted = authenticated.and_then(|(admission, subtree)| {
            Ok((self.admit(context, &hello, admission)?, subtree))
        });
        let ((session, (admission, number), resumed), subtree) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let why = io::Error::other(format!("{}: {}", hello.program, refusal.why));
                self.port.guard.refuse(&name, Refusal::Unauthenticated, &why);
                let written = writer.write(frame_of(kind::REFUSAL, &refusal));
                // It may be gone.
                let _ = within(context, HELLO_TIME_MAX, written).await;
                return;
            }
        };
        let welcome = Welcome {
            volume: self.port.volume,
            process: self.port.process,
            instance: self.instance,
            resumed,
            client: number,
            port: context.node().0,
            map: (self.port.map)(context),
        };
        tracing::debug!(peer = name, program = hello.program, resumed, "a client");
        let account = admission.account();
        self.links.borrow_mut().add(account);
        let admitted = Admitted {
            admission,
            subtree,
            number,
            session: session.clone(),
            link: hello.link,
            frames,
            writer,
            welcome,
        };
        let ended = connection::answer(self, context, admitted).await;
        self.links.borrow_mut().remove(account);
        session.leave(hello.link, context.now());
        if let Err(error) = ended {
            tracing::debug!(peer = name, %error, "the link of a client has ended");
        }
    }

    /// For whom a client speaks, and the subtree to which it is limited, if it is limited.
    async fn authenticate(
        &self,
        context: &Context,
        hello: &ClientHello,
        peer: &PeerIdentity,
    ) -> Result<(Admission, Option<Rc<dyn Subtree<P>>>), ClientRefusal> {
        if !hello.volume.is_empty() && hello.volume != self.port.name {
            let (wanted, name) = (&hello.volume, &self.port.name);
            let why = format!("there is no volume '{wanted}' here; this one is called '{name}'");
            return Err(ClientRefusal { is_final: true, why });
        }
        let admission = self.port.authentication.admit(context, hello, peer)?;
        let Some(path) = &admission.subtree else { return Ok((admission, None)) };
        let subtrees = self.port.subtrees.as_ref().ok_or_else(|| ClientRefusal {
            is_final: true,
            why: "clients that are limited to a directory are not let in here".to_owned(),
        })?;
        let entering = subtrees.enter(context, path.clone());
        match within(context, HELLO_TIME_MAX, entering).await {
            Ok(Ok(subtree)) => Ok((admission, Some(subtree))),
            Ok(Err(SubtreeRefused { is_final, why })) => Err(ClientRefusal { is_final, why }),
            Err(_) => {
                let why = format!("the directory {path} cannot be looked up now; try again");
                Err(ClientRefusal { is_final: false, why })
            }
        }
    }

    /// The session of a client that may come in, and whether it was known; or why not.
    fn admit(
        &self,
        context: &Context,
        hello: &ClientHello,
        admission: Admission,
    ) -> Result<AdmittedSession, ClientRefusal> {
        let refused = |is_final| move |why| ClientRefusal { is_final, why };
        self.links.borrow().has_room_for(admission.account()).map_err(refused(false))?;
        let subtree = admission.subtree.as_ref();
        let number = admission.principal.client_number(hello.session, subtree);
        self.forget_absent(context.now());
        let mut sessions = self.sessions.borrow_mut();
        let known = sessions.0.get(&(number, hello.session)).map(|(_, session)| session.clone());
        let resumed = known.is_some();
        let session = known.unwrap_or_default();
        session.take_over(hello.link).map_err(refused(false))?;
        let kept = (admission.account(), session.clone());
        sessions.0.insert((number, hello.session), kept);
        Ok((session, (admission, number), resumed))
    }

    /// Forgets sessions that nothing can come of any more, and the longest absent ones if there are
    /// too many.
    fn forget_absent(&self, now: Duration) {
        let mut sessions = self.sessions.borrow_mut();
        if now.saturating_sub(self.swept.get()) >= SWEEP_INTERVAL {
            self.swept.set(now);
            sessions.0.retain(|_, (_, session)| {
                session.absent_since().is_none_or(|since| now.saturating_sub(since) < ABSENT_MAX)
            });
        }
        sessions.make_room(now, SESSIONS_MAX, ABSENT_BYTES_MAX);
    }

    /// The client has said goodbye.
    fn forget(&self, client: u64, session: &Rc<SessionState>) {
        let is_it = |(number, _): &(u64, u128), known: &Rc<SessionState>| {
            *number == client && Rc::ptr_eq(known, session)
        };
        self.sessions.borrow_mut().0.retain(|key, (_, known)| !is_it(key, known));
    }
}

/// When a session was left, and which.
type LeftSession = (Duration, (u64, u128));

/// The sessions of a listener, by the number of the client and its session, with their accounts.
#[derive(Default)]
struct ClientSessions(BTreeMap<(u64, u128), (Account, Rc<SessionState>)>);

impl ClientSessions {
    /// Forgets absent sessions until there is room for one more and the outcomes of the others are
    /// not too many. Those of an account that has many do not push out those of another. For their
    /// outcomes alone none is forgotten that may only have lost its link: it would send its calls
    /// again, though they were done.
    fn make_room(&mut self, now: Duration, sessions_max: usize, bytes_max: usize) {
        loop {
            let absent = self.0.values().filter(|(_, it)| it.absent_since().is_some());
            let bytes: usize = absent.map(|(_, session)| session.kept_bytes()).sum();
            let is_full = self.0.len() >= sessions_max;
            if !is_full && bytes <= bytes_max {
                return;
            }
            let is_spared = |since| !is_full && now.saturating_sub(since) < RETURN_MAX;
            // By account: how many, or their bytes, and the one that was left first.
            let mut absent: BTreeMap<Account, (usize, LeftSession)> = BTreeMap::new();
            for (key, (account, session)) in &self.0 {
                // Copies of calls that run may still come.
                let Some(since) = session.absent_since().filter(|_| !session.has_running()) else {
                    continue;
                };
                if is_spared(since) {
                    continue;
                }
                let share = if is_full { 1 } else { session.kept_bytes() };
                let of = absent.entry(*account).or_insert((0, (since, *key)));
                *of = (of.0 + share, of.1.min((since, *key)));
            }
            let most = absent.into_values().max_by_key(|(share, _)| *share);
            let Some((_, (_, oldest))) = most else { return };
            self.0.remove(&oldest);
        }
    }
}

/// The links of clients that are let in.
#[derive(Default)]
struct OpenLinks {
    all: usize,
    /// By user or host; those who may act as anyone are not limited.
    by_account: BTreeMap<u64, usize>,
}

impl OpenLinks {
    fn has_room_for(&self, account: Option<u64>) -> Result<(), String> {
        let max = connections_within_limit(LINKS_MAX);
        let own = account.and_then(|account| self.by_account.get(&account));
        if self.all >= max {
            return Err(format!("there are {max} links of clients already"));
        }
        if own.is_some_and(|own| *own >= max / LINKS_SHARE) {
            return Err(format!("there are {} links of this user already", max / LINKS_SHARE));
        }
        Ok(())
    }

    fn add(&mut self, account: Option<u64>) {
        self.all += 1;
        if let Some(account) = account {
            *self.by_account.entry(account).or_default() += 1;
        }
    }

    fn remove(&mut self, account: Option<u64>) {
        self.all -= 1;
        if let Some(account) = account
            && let Some(own) = self.by_account.get_mut(&account)
        {
            *own -= 1;
            if *own == 0 {
                self.by_account.remove(&account);
            }
        }
    }
}

impl From<io::Error> for session::LinkEnd {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_sessions_of_one_user_push_out_none_of_another() {
        let mut table = ClientSessions::default();
        let absent = |at: u64, reply: usize| {
            let session = Rc::new(SessionState::default());
            session.take_over(1).unwrap();
            assert!(matches!(session.arrive(1), Ok(session::Arrival::New)));
            session.answer(1, crate::frame::bulk_reply(vec![0; reply].into()), true, None);
            session.leave(1, Duration::from_secs(at));
            session
        };
        table.0.insert((1, 0), (Some(1), absent(0, 1)));
        for number in 0..20 {
            let session = absent(10 + number, 1);
            table.0.insert((2, number.into()), (Some(2), session));
            table.make_room(Duration::from_hours(1), 10, 1 << 20);
        }
        assert!(table.0.contains_key(&(1, 0)), "it is the oldest one of all");
        assert_eq!(table.0.len(), 9);
        assert!(table.0.contains_key(&(2, 19)) && !table.0.contains_key(&(2, 11)));
        for number in 20..23 {
            table.0.insert((2, number.into()), (Some(2), absent(10 + number, 400)));
        }
        table.make_room(Duration::from_secs(40), 100, 2000);
        assert!(table.0.contains_key(&(2, 22)), "it may only have lost its link");
        table.make_room(Duration::from_hours(1), 100, 2000);
        assert!(table.0.contains_key(&(1, 0)) && table.0.len() < 5, "{}", table.0.len());
    }

    #[test]
    fn one_user_cannot_take_all_links() {
        let max = connections_within_limit(LINKS_MAX);
        let mut links = OpenLinks::default();
        for _ in 0..max / LINKS_SHARE {
            links.has_room_for(Some(1)).unwrap();
            links.add(Some(1));
        }
        let refused = links.has_room_for(Some(1)).unwrap_err();
        assert!(refused.contains("links of this user"), "{refused}");
        for account in [Some(2), None] {
            links.has_room_for(account).unwrap();
        }
        links.remove(Some(1));
        links.has_room_for(Some(1)).unwrap();
        while links.all < max {
            links.add(None);
        }
        assert!(links.has_room_for(None).is_err(), "the limit of all counts for all");
        for _ in 1..max / LINKS_SHARE {
            links.remove(Some(1));
        }
        assert!(links.by_account.is_empty());
    }
}
