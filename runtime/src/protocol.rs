//! The table of a layer: its requests, their fields and replies, and everything that follows from
//! a row (struct, bytes, dispatch, round-trip test).

use crate::ids::{Epoch, NodeId};
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
    type Request: Wire + Classified + std::fmt::Debug + Send + 'static;
    /// Any reply of the layer.
    type Reply: Wire + From<Undelivered> + std::fmt::Debug + Send + 'static;
    /// Why a request was not done.
    type Error: From<Undelivered> + Send + 'static;
}

/// Protocol numbers are smaller than this.
pub const PROTOCOLS: usize = 8;

/// One request type, tied to its reply.
pub trait Call: Into<<Self::Protocol as Protocol>::Request> + Send + 'static {
    /// The table that the request belongs to.
    type Protocol: Protocol;
    /// What a success brings.
    type Reply: Send + 'static;
    /// Takes this request's answer out of the layer's reply.
    ///
    /// A reply to another request is a bug of the server, and told as [`Undelivered::ProtocolMismatch`].
    fn answer(
        reply: <Self::Protocol as Protocol>::Reply,
    ) -> Result<Self::Reply, <Self::Protocol as Protocol>::Error>;
}

/// The error type of a call.
pub type ErrorOf<C> = <<C as Call>::Protocol as Protocol>::Error;

/// The two priorities of the machine (design D4; the thesis' MDP has two message queues).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Small and urgent: overtakes bulk work, has its own limits.
    Control,
    /// Ordinary work, and everything that carries data.
    Bulk,
}

/// What the machine wants to know of a request without understanding it.
pub trait Classified {
    /// Its priority.
    fn class(&self) -> Class;
    /// Its name in the table.
    fn name(&self) -> &'static str;
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The asking node.
    pub node: NodeId,
    /// The epoch in which the asking node believes to live.
    pub epoch: Epoch,
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
}

impl Undelivered {
    /// Nothing was done: the node is full or away, or the epoch went on while the request was on
    /// its way.
    pub fn not_applied(self) -> bool {
        matches!(self, Self::Busy | Self::Unreachable | Self::Fenced)
    }

    /// The same request may be answered later, if it does no harm to ask twice: the node is full or
    /// starts anew, the reply was lost, or the epoch went on while the request was on its way.
    pub fn is_transient(self) -> bool {
        self != Self::ProtocolMismatch
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
undelivered_wire!(Busy, Unreachable, Lost, ProtocolMismatch, Fenced);

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

/// Declares all messages of one layer: one row is one request with its tag, priority, fields and
/// reply.
///
/// A new row brings its struct, its bytes, its arm in `Request` and `Reply` and its round-trip test
/// with it; two rows with one tag do not compile. The layer's `Error` must be in scope, be
/// [`Wire`] and come [`From`] an [`Undelivered`].
#[macro_export]
macro_rules! protocol {
    (
        $(#[$doc:meta])*
        $layer:ident id $id:literal version $version:literal;
        $(
            $(#[$row_doc:meta])*
            $tag:literal $class:ident $name:ident {
                $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)?
            } -> $reply:ty;
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
                $($(#[$field_doc])* pub $field: $ty),*
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Self {
                    Self::$name(request)
                }
            }

            impl $crate::Call for $name {
                type Protocol = $layer;
                type Reply = $reply;
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

        impl $crate::Classified for Request {
            fn class(&self) -> $crate::Class {
                match self { $(Self::$name(_) => $crate::Class::$class),+ }
            }
            fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name)),+ }
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
