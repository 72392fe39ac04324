//! What a gateway must know: whose volume it serves, to whom, and its limits.

use std::time::Duration;

use runtime::VolumeId;

use crate::exports::Exports;
use crate::keys::KEY_BYTES;

/// The limits that a new [`Config`] has.
pub mod limits {
    use std::time::Duration;

    /// Bytes that one READ or WRITE may carry.
    pub const TRANSFER_BYTES: u32 = 1 << 20;
    /// Bytes in one RPC record: the largest transfer, and what stands around it.
    pub const RECORD_BYTES: usize = TRANSFER_BYTES as usize + (64 << 10);
    /// Fragments in one RPC record.
    pub const FRAGMENTS: usize = 64;
    /// Connections of all peers together.
    pub const CONNECTIONS: usize = 1024;
    /// Connections of one peer.
    pub const CONNECTIONS_PER_PEER: usize = 32;
    /// Calls of one connection that wait for their reply to be sent.
    pub const OUTSTANDING_CALLS: usize = 64;
    /// Bytes of such calls and of their replies.
    pub const OUTSTANDING_BYTES: usize = 16 << 20;
    /// A connection on which nothing moves for so long is closed.
    pub const IDLE: Duration = Duration::from_mins(6);
    /// Calls that run when the gateway stops have so long to end.
    pub const DRAIN: Duration = Duration::from_secs(5);
    /// Bytes of a stripe of most volumes.
    pub const STRIPE_BYTES: usize = 64 << 10;
    /// A call that takes so long is told of.
    pub const SLOW: Duration = Duration::from_secs(1);
}

/// A gateway's settings. [`Config::new`] gives the usual limits; each may be changed.
#[derive(Clone)]
pub struct Config {
    /// The volume: file handles name it.
    pub volume: VolumeId,
    /// Bytes from a source of secrets, used for nothing else: a volume without a key for file handles
    /// gets one made of them.
    pub entropy: [u8; KEY_BYTES],
    /// Who may use what; [`Exports::loopback`] at first.
    pub exports: Exports,
    /// Bytes in one RPC record, at most ([`limits::RECORD_BYTES`]).
    pub record_bytes_max: usize,
    /// Fragments in one RPC record, at most ([`limits::FRAGMENTS`]).
    pub fragments_max: usize,
    /// Connections, at most ([`limits::CONNECTIONS`]); further ones are closed at once.
    pub connections_max: usize,
    /// Connections of one peer, at most ([`limits::CONNECTIONS_PER_PEER`]).
    pub connections_per_peer_max: usize,
    /// Calls of one connection whose replies are not sent yet, at most
    /// ([`limits::OUTSTANDING_CALLS`]); past it the gateway stops reading.
    pub outstanding_calls_max: usize,
    /// Bytes of such calls and of their replies, at most ([`limits::OUTSTANDING_BYTES`]); a single
    /// call is always let in.
    pub outstanding_bytes_max: usize,
    /// When a silent or stuck connection is closed ([`limits::IDLE`]).
    pub idle: Duration,
    /// How long running calls may go on when the gateway stops or the peer has closed its side
    /// ([`limits::DRAIN`]).
    pub drain: Duration,
    /// Bytes of the volume's stripes ([`limits::STRIPE_BYTES`]): the data of large WRITEs are received in such
    /// pieces, which a cache with such lines need not copy.
    pub stripe_bytes: usize,
    /// A call that takes so long is told of in the log ([`limits::SLOW`]).
    pub slow: Duration,
}

/// Without the secret.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Config {
    /// The gateway of `volume`, for clients on this computer, with the usual limits.
    pub fn new(volume: VolumeId, entropy: [u8; KEY_BYTES]) -> Self {
        Self {
            volume,
            entropy,
            exports: Exports::loopback(),
            record_bytes_max: limits::RECORD_BYTES,
            fragments_max: limits::FRAGMENTS,
            connections_max: limits::CONNECTIONS,
            connections_per_peer_max: limits::CONNECTIONS_PER_PEER,
            outstanding_calls_max: limits::OUTSTANDING_CALLS,
            outstanding_bytes_max: limits::OUTSTANDING_BYTES,
            idle: limits::IDLE,
            drain: limits::DRAIN,
            stripe_bytes: limits::STRIPE_BYTES,
            slow: limits::SLOW,
        }
    }
}
