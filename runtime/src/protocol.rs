//! The table of a layer: its requests with their fields, replies, routes, retry classes and
//! senders, and what the [`protocol!`](crate::protocol!) macro generates from a row.

use std::future::Future;
use std::rc::Rc;

use crate::identity::{AccessRefused, ClientIdentity};
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::wire::Wire;

/// One layer's table of messages. Declared by [`protocol!`](crate::protocol!).
pub trait Protocol: 'static {
    /// The layer's number in message headers, unique in the system and below [`PROTOCOLS`].
    const ID: u8;
    /// Goes up by one whenever a row changes its meaning.
    const VERSION: u16;
    /// The layer's name, for people.
    const NAME: &'static str;
    /// Any request of the layer.
    type Request: Wire + RequestInfo + std::fmt::Debug + Send + 'static;
    /// Any reply of the layer.
    type Reply: Wire + From<Undelivered> + std::fmt::Debug + Send + 'static;
    /// Why a request was not done.
    type Error: From<Undelivered> + Send + 'static;
}

/// Protocol numbers are smaller than this.
pub const PROTOCOLS: usize = 8;

/// One request type: its reply, and what its row states.
pub trait Call: Into<<Self::Protocol as Protocol>::Request> + Send + 'static {
    /// The table that the request belongs to.
    type Protocol: Protocol;
    /// The value of a successful reply.
    type Reply: Send + 'static;
    /// May the request be sent again after its reply was lost?
    const RETRY: Retry;
    /// Who may send it.
    const SENDERS: Senders;
    /// A node answers it before its recovery is complete.
    const DURING_RECOVERY: bool;
    /// Which node owns the request.
    fn route(&self) -> Route<'_>;
    /// The call id, if the retry class is [`Retry::ByCallId`].
    fn call_id(&self) -> Option<CallId>;
    /// The request has a field `durable`, and it is set.
    fn is_durable(&self) -> bool;
    /// Wraps an answer to this request in the layer's reply.
    fn reply(
        answer: Result<Self::Reply, <Self::Protocol as Protocol>::Error>,
    ) -> <Self::Protocol as Protocol>::Reply;
    /// Takes this request's answer out of the layer's reply.
    ///
    /// A reply to another request is a bug of the server and returns
    /// [`Undelivered::ProtocolMismatch`].
    fn answer(
        reply: <Self::Protocol as Protocol>::Reply,
    ) -> Result<Self::Reply, <Self::Protocol as Protocol>::Error>;
}

/// Answers one request type. A server implements it for each row of its table
/// ([`handlers!`](crate::handlers!)); the generated `Request::dispatch` calls it.
pub trait Handler<C: Call>: 'static {
    /// One request in, one answer out.
    fn handle(
        self: Rc<Self>,
        caller: Caller,
        request: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>>;
}

/// The error type of a call.
pub type ErrorOf<C> = <<C as Call>::Protocol as Protocol>::Error;

/// The two priorities of the machine (the thesis' MDP has two message queues).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Small and urgent: overtakes bulk work, has its own limits.
    Control,
    /// Ordinary work, and everything that carries data.
    Bulk,
}

/// The classes in order of priority, for tables indexed by class.
pub(crate) const CLASSES: [Class; 2] = [Class::Control, Class::Bulk];

/// Which node owns a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// The node of an inode.
    Inode(u64),
    /// The node of a name.
    Name {
        /// The directory's inode.
        directory: u64,
        /// The name in it.
        name: &'a [u8],
    },
    /// The node of a stripe.
    Stripe(u64),
    /// The caller chooses: any node, a particular one, or every node.
    Caller,
}

/// May a request be sent again after its reply was lost?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Yes. Executed twice, or late, it changes nothing that another request could see.
    Idempotent,
    /// Yes. The server executes it once per call id and stores the reply.
    ByCallId,
    /// No. Executed twice, it could undo what others did in between.
    Never,
}

/// Who may send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// Clients and servers.
    Any,
    /// Servers only.
    Servers,
}

crate::record! {
    /// Identifies one call of one client. A retransmission carries the same id.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct CallId {
        /// The client, drawn at random when it starts.
        client: u64,
        /// The call, counted by the client.
        number: u64,
    }
}

impl CallId {
    /// For requests that are not executed by call id.
    pub const NONE: Self = Self { client: 0, number: 0 };
}

/// What the row of a request states, for any request of a table.
pub trait RequestInfo {
    /// Its priority.
    fn class(&self) -> Class;
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// See [`Call::route`].
    fn route(&self) -> Route<'_>;
    /// See [`Call::call_id`].
    fn call_id(&self) -> Option<CallId>;
    /// See [`Call::SENDERS`].
    fn senders(&self) -> Senders;
    /// See [`Call::RETRY`].
    fn retry(&self) -> Retry;
    /// See [`Call::DURING_RECOVERY`].
    fn is_for_recovery(&self) -> bool;
    /// Bytes of payload that the reply may have, at most, as far as the request says.
    fn reply_bytes_max(&self) -> u64;
    /// Puts the user under whom the request of this client is judged in the place of the one that
    /// it names; refuses what clients may not send, or not under another client's number.
    fn admit(&mut self, client: &ClientIdentity) -> Result<(), AccessRefused>;
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The sending node.
    pub node: NodeId,
    /// The epoch that the sending node believes to be current.
    pub epoch: Epoch,
}

impl Caller {
    /// Is it a client, and no node of the volume?
    pub fn is_client(&self) -> bool {
        matches!(self.node.kind(), NodeKind::Application(_))
    }
}

/// The machine could not bring the request to the server, or the reply back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// The node's queue is full. Retry later; nothing has been done.
    #[error("the node is busy, nothing was done; retry later")]
    Busy,
    /// No process hosts the node, or the node does not serve this layer. It may come back.
    #[error("the node cannot be reached; it may be starting, or its process is gone")]
    Unreachable,
    /// The way was cut after the request had left: it may or may not have been done.
    #[error("the reply was lost: the request may or may not have been done")]
    Lost,
    /// The other side speaks another version or sends nonsense. Do not retry.
    #[error("the other side sent something that this version does not understand")]
    ProtocolMismatch,
    /// The caller's epoch is over: another process has taken its place. Stop.
    #[error("the volume has been opened by a newer epoch; this one must stop")]
    Fenced,
    /// The server does not let this client do that. Nothing was done; do not retry.
    #[error("the server does not let this client do that; see its token or host certificate")]
    Refused,
    /// No server has answered within the time that the client waits. It may or may not have been
    /// done. Clients make this of calls that they give up; no server answers so.
    #[error("no server has answered in time: it may or may not have been done")]
    TimedOut,
    /// The server that had the request is gone: it was done before, or never will be. Clients make
    /// this of calls whose server has restarted, and processes that have lost their nodes, or have
    /// sent a call on to one that died, answer clients so; then also a request that must not be
    /// late may be sent again.
    #[error("the server that had the request is gone: it may or may not have been done")]
    Gone,
}

impl From<AccessRefused> for Undelivered {
    fn from(AccessRefused: AccessRefused) -> Self {
        Self::Refused
    }
}

impl Undelivered {
    /// Nothing was done: the node is full or away, or the epoch went on while the request was on
    /// its way.
    pub fn not_applied(self) -> bool {
        matches!(self, Self::Busy | Self::Unreachable | Self::Fenced)
    }

    /// The request may or may not have been done, and may be asked again if its row says so.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Lost | Self::Gone)
    }

    /// The same request may be answered later, if it does no harm to ask twice: the node is full or
    /// starts anew, the reply was lost, or the epoch went on while the request was on its way.
    pub fn is_transient(self) -> bool {
        !matches!(self, Self::ProtocolMismatch | Self::Refused | Self::TimedOut)
    }
}

crate::choice! {
    /// [`Undelivered`] on the wire.
    #[derive(Copy)]
    pub enum UndeliveredWire {
        /// See [`Undelivered::Busy`].
        1 Busy {},
        /// See [`Undelivered::Unreachable`].
        2 Unreachable {},
        /// See [`Undelivered::Lost`].
        3 Lost {},
        /// See [`Undelivered::ProtocolMismatch`].
        4 ProtocolMismatch {},
        /// See [`Undelivered::Fenced`].
        5 Fenced {},
        /// See [`Undelivered::Refused`].
        6 Refused {},
        /// See [`Undelivered::TimedOut`].
        7 TimedOut {},
        /// See [`Undelivered::Gone`].
        8 Gone {},
    }
}

macro_rules! undelivered_wire {
    ($($name:ident),+) => {
        impl From<Undelivered> for UndeliveredWire {
            fn from(error: Undelivered) -> Self {
                match error { $(Undelivered::$name => Self::$name {}),+ }
            }
        }
        impl From<UndeliveredWire> for Undelivered {
            fn from(error: UndeliveredWire) -> Self {
                match error { $(UndeliveredWire::$name {} => Self::$name),+ }
            }
        }
    };
}
undelivered_wire!(Busy, Unreachable, Lost, ProtocolMismatch, Fenced, Refused, TimedOut, Gone);

impl Wire for Undelivered {
    fn put(&self, out: &mut crate::wire::Encoder) {
        UndeliveredWire::from(*self).put(out);
    }
    fn take(input: &mut crate::wire::Decoder) -> Result<Self, crate::wire::Malformed> {
        UndeliveredWire::take(input).map(Self::from)
    }
    fn sample(rng: &mut crate::seed::Rng) -> Self {
        UndeliveredWire::sample(rng).into()
    }
}

/// Declares all messages of one layer: one row is one request.
///
/// ```text
/// /// Create a regular file.
/// 5 Bulk Create {
///     /// Who asks.
///     who: Credentials,
///     /// Which call this is.
///     call: CallId,
///     /// The directory.
///     directory: Handle,
///     /// The name in it.
///     name: Name,
///     /// Durable when answered.
///     durable: bool,
/// } -> Created, by name(directory.ino, name), retry by_call_id, from any, after recovery;
/// ```
///
/// | part | choices |
/// | --- | --- |
/// | `5` | the tag on the wire; two rows with one tag do not compile |
/// | `Bulk` | the priority, a [`Class`] |
/// | `-> Created` | the value of a successful reply |
/// | `by` | [`Route`]: `inode(field)`, `name(directory, name)`, `stripe(field)`, or `caller` |
/// | `retry` | [`Retry`]: `idempotent`, `by_call_id` (the request has a field `call`), or `never` |
/// | `from` | [`Senders`]: `any`, or `servers` |
/// | `recovery` | `during recovery` if answered before recovery is complete, else `after` |
///
/// A row generates the request's struct with its [`Call`], its bytes, its variants of `Request` and
/// `Reply`, its arm of `Request::dispatch`, and its round-trip test. The layer's `Error` must be in
/// scope, be [`Wire`] and [`Clone`], and come [`From`] an [`Undelivered`].
#[macro_export]
macro_rules! protocol {
    (
        $(#[$doc:meta])*
        $layer:ident id $id:literal version $version:literal;
        $(
            $(#[$row_doc:meta])*
            $tag:literal $class:ident $name:ident {
                $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)?
            } -> $reply:ty,
            by $route:ident $(($($key:tt)+))?,
            retry $retry:ident,
            from $senders:ident,
            $phase:ident recovery;
        )+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $layer {}

        impl $crate::Protocol for $layer {
            const ID: u8 = $id;
            const VERSION: u16 = $version;
            const NAME: &'static str = stringify!($layer);
            type Request = Request;
            type Reply = Reply;
            type Error = Error;
        }

        $(
            $(#[$row_doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name {
                $(
                    #[allow(missing_docs, reason = "the head of a table may explain common fields")]
                    $(#[$field_doc])*
                    pub $field: $ty
                ),*
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Self {
                    Self::$name(request)
                }
            }

            impl $crate::Call for $name {
                type Protocol = $layer;
                type Reply = $reply;
                const RETRY: $crate::Retry = $crate::protocol_row!(retry $retry);
                const SENDERS: $crate::Senders = $crate::protocol_row!(from $senders);
                const DURING_RECOVERY: bool = $crate::protocol_row!(recovery $phase);
                fn route(&self) -> $crate::Route<'_> {
                    $crate::protocol_row!(by $route self $($($key)+)?)
                }
                fn call_id(&self) -> Option<$crate::CallId> {
                    $crate::protocol_row!(call_id $retry self)
                }
                fn is_durable(&self) -> bool {
                    $crate::protocol_row!(durable self $($field)*)
                }
                fn reply(answer: Result<$reply, Error>) -> Reply {
                    Reply::$name(answer)
                }
                fn answer(reply: Reply) -> Result<$reply, Error> {
                    #[allow(unreachable_patterns, reason = "a table may have one row only")]
                    match reply {
                        Reply::$name(answer) => answer,
                        Reply::Undelivered(error) => Err(error.into()),
                        _ => Err($crate::Undelivered::ProtocolMismatch.into()),
                    }
                }
            }
        )+

        /// Any request of this layer.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Request { $($(#[$row_doc])* $name($name)),+ }

        /// The answer to the request of the same name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Reply {
            $(
                #[doc = concat!("Answers [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                $name(Result<$reply, Error>),
            )+
            /// The request did not reach the server.
            Undelivered($crate::Undelivered),
        }

        impl From<$crate::Undelivered> for Reply {
            fn from(error: $crate::Undelivered) -> Self {
                Self::Undelivered(error)
            }
        }

        #[allow(dead_code, reason = "not every server dispatches or refuses in this way")]
        impl Request {
            /// Calls the handler of the request. Each request has a boxed future of its own: one
            /// for all would be as large as the largest.
            pub fn dispatch<S>(
                self,
                server: std::rc::Rc<S>,
                caller: $crate::Caller,
            ) -> std::pin::Pin<Box<dyn Future<Output = Reply>>>
            where
                S: 'static $(+ $crate::Handler<$name>)+,
            {
                match self {
                    $(Self::$name(request) => Box::pin(async move {
                        let answer = $crate::Handler::<$name>::handle(server, caller, request);
                        Reply::$name(answer.await)
                    }),)+
                }
            }

            /// The reply that fails the request.
            pub fn refused(&self, error: Error) -> Reply {
                match self { $(Self::$name(_) => Reply::$name(Err(error))),+ }
            }
        }

        impl Reply {
            /// Why the request failed, if it did.
            #[allow(dead_code, reason = "not every caller looks at any reply")]
            pub fn failure(&self) -> Option<Error> {
                match self {
                    $(Self::$name(answer) => answer.as_ref().err().cloned(),)+
                    Self::Undelivered(error) => Some((*error).into()),
                }
            }
        }

        impl $crate::RequestInfo for Request {
            fn class(&self) -> $crate::Class {
                match self { $(Self::$name(_) => $crate::Class::$class),+ }
            }
            fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name)),+ }
            }
            fn route(&self) -> $crate::Route<'_> {
                match self { $(Self::$name(request) => $crate::Call::route(request)),+ }
            }
            fn call_id(&self) -> Option<$crate::CallId> {
                match self { $(Self::$name(request) => $crate::Call::call_id(request)),+ }
            }
            fn senders(&self) -> $crate::Senders {
                match self { $(Self::$name(_) => <$name as $crate::Call>::SENDERS),+ }
            }
            fn retry(&self) -> $crate::Retry {
                match self { $(Self::$name(_) => <$name as $crate::Call>::RETRY),+ }
            }
            fn is_for_recovery(&self) -> bool {
                match self { $(Self::$name(_) => <$name as $crate::Call>::DURING_RECOVERY),+ }
            }
            fn reply_bytes_max(&self) -> u64 {
                match self {
                    $(Self::$name(request) => {
                        let _ = request;
                        0 $(+ $crate::protocol_row!(length $field request))*
                    })+
                }
            }
            #[allow(unused_variables, reason = "not each row names a client")]
            fn admit(
                &mut self,
                client: &$crate::ClientIdentity,
            ) -> Result<(), $crate::identity::AccessRefused> {
                match self {
                    $(Self::$name(request) => {
                        $($crate::protocol_row!(admit $senders $field request client);)*
                        $crate::protocol_row!(admit $senders);
                    })+
                }
                #[allow(unreachable_code, reason = "a table may be for servers only")]
                Ok(())
            }
        }

        impl $crate::wire::Wire for Request {
            fn put(&self, out: &mut $crate::wire::Encoder) {
                match self {$(
                    Self::$name($name { $($field),* }) => {
                        out.bytes(&[$tag]);
                        $($crate::wire::Wire::put($field, out);)*
                    }
                )+}
            }
            fn take(
                input: &mut $crate::wire::Decoder,
            ) -> Result<Self, $crate::wire::Malformed> {
                match <u8 as $crate::wire::Wire>::take(input)? {
                    $($tag => Ok(Self::$name($name {
                        $($field: $crate::wire::Wire::take(input)?),*
                    })),)+
                    _ => Err($crate::wire::Malformed("unknown request")),
                }
            }
            fn sample(rng: &mut $crate::seed::Rng) -> Self {
                const TAGS: &[u8] = &[$($tag),+];
                match TAGS[rng.index(TAGS.len())] {
                    $($tag => Self::$name($name {
                        $($field: $crate::wire::Wire::sample(rng)),*
                    }),)+
                    _ => unreachable!("every tag has its arm"),
                }
            }
        }

        impl $crate::wire::Wire for Reply {
            fn put(&self, out: &mut $crate::wire::Encoder) {
                match self {
                    $(Self::$name(answer) => {
                        out.bytes(&[$tag]);
                        $crate::wire::Wire::put(answer, out);
                    })+
                    Self::Undelivered(error) => {
                        out.bytes(&[0]);
                        $crate::wire::Wire::put(error, out);
                    }
                }
            }
            fn take(
                input: &mut $crate::wire::Decoder,
            ) -> Result<Self, $crate::wire::Malformed> {
                match <u8 as $crate::wire::Wire>::take(input)? {
                    0 => $crate::wire::Wire::take(input).map(Self::Undelivered),
                    $($tag => $crate::wire::Wire::take(input).map(Self::$name),)+
                    _ => Err($crate::wire::Malformed("unknown reply")),
                }
            }
            fn sample(rng: &mut $crate::seed::Rng) -> Self {
                const TAGS: &[u8] = &[0, $($tag),+];
                match TAGS[rng.index(TAGS.len())] {
                    0 => Self::Undelivered($crate::wire::Wire::sample(rng)),
                    $($tag => Self::$name($crate::wire::Wire::sample(rng)),)+
                    _ => unreachable!("every tag has its arm"),
                }
            }
        }

        // Tag 0 is the undelivered reply's.
        const _: () = $crate::wire::assert_unique(&[0, $($tag),+]);

        #[cfg(test)]
        mod round_trip {
            use $crate::wire::{Decoder, Encoder, Wire};

            fn round_trip<T: Wire + PartialEq + std::fmt::Debug>(value: &T) {
                let mut out = Encoder::new();
                value.put(&mut out);
                let (head, bulk) = out.finish();
                let bulk = bytes::Bytes::from(bulk.concat());
                let mut input = Decoder::new(&head, bulk);
                assert_eq!(T::take(&mut input).as_ref(), Ok(value));
                input.finish().expect("everything was read");
            }

            #[test]
            fn every_request_and_reply_reads_back_as_written() {
                $crate::seed::with_seed(|rng| {
                    for _ in 0..2_000 {
                        round_trip(&super::Request::sample(rng));
                        round_trip(&super::Reply::sample(rng));
                    }
                });
            }

            #[test]
            fn any_bytes_are_an_error_or_a_message_and_never_a_panic() {
                $crate::seed::with_seed(|rng| {
                    for _ in 0..5_000 {
                        let mut head = vec![0; rng.index(64)];
                        rng.fill(&mut head);
                        let mut input = Decoder::new(&head, bytes::Bytes::from_static(&[0; 64]));
                        let _ = super::Request::take(&mut input);
                        let mut input = Decoder::new(&head, bytes::Bytes::from_static(&[0; 64]));
                        let _ = super::Reply::take(&mut input);
                    }
                });
            }
        }
    };
}

/// The words of a row of [`protocol!`].
#[doc(hidden)]
#[macro_export]
macro_rules! protocol_row {
    (by inode $request:ident $($ino:ident).+) => {
        $crate::Route::Inode($request.$($ino).+)
    };
    (by name $request:ident $($directory:ident).+, $name:ident) => {
        $crate::Route::Name {
            directory: $request.$($directory).+,
            name: $request.$name.as_bytes(),
        }
    };
    (by stripe $request:ident $stripe:ident) => { $crate::Route::Stripe($request.$stripe) };
    (by caller $request:ident) => { $crate::Route::Caller };
    (retry idempotent) => { $crate::Retry::Idempotent };
    (retry by_call_id) => { $crate::Retry::ByCallId };
    (retry never) => { $crate::Retry::Never };
    (call_id by_call_id $request:ident) => { Some($request.call) };
    (call_id $retry:ident $request:ident) => { None };
    (durable $request:ident durable $($field:ident)*) => { $request.durable };
    (durable $request:ident $other:ident $($field:ident)*) => {
        $crate::protocol_row!(durable $request $($field)*)
    };
    (durable $request:ident) => { false };
    (length length $request:ident) => { u64::from($request.length) };
    (length $field:ident $request:ident) => { 0 };
    (admit any who $request:ident $client:ident) => {
        $client.principal.apply(&mut $request.who)?
    };
    (admit any call $request:ident $client:ident) => { $client.owns($request.call.client)? };
    (admit any client $request:ident $client:ident) => { $client.owns($request.client)? };
    (admit any owner $request:ident $client:ident) => { $client.owns($request.owner.client)? };
    (admit any deliver $request:ident $client:ident) => { $request.deliver.admit($client)? };
    (admit any source $request:ident $client:ident) => { $request.source.admit($client)? };
    (admit $senders:ident $field:ident $request:ident $client:ident) => {};
    (admit any) => {};
    (admit servers) => { return Err($crate::identity::AccessRefused) };
    (from any) => { $crate::Senders::Any };
    (from servers) => { $crate::Senders::Servers };
    (recovery during) => { true };
    (recovery after) => { false };
}

/// Implements [`Handler`] of a server for requests of its table, one line each:
///
/// ```text
/// runtime::handlers! { FileServer;
///     Lookup => |server, _, request| server.lookup(request).await;
/// }
/// ```
#[macro_export]
macro_rules! handlers {
    ($server:ty; $($request:ty => |$this:pat_param, $caller:pat_param, $bound:pat_param| $answer:expr;)+) => {
        $(impl $crate::Handler<$request> for $server {
            async fn handle(
                self: std::rc::Rc<Self>,
                $caller: $crate::Caller,
                $bound: $request,
            ) -> Result<
                <$request as $crate::Call>::Reply,
                $crate::protocol::ErrorOf<$request>,
            > {
                let $this = self;
                $answer
            }
        })+
    };
}
