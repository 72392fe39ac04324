//! The configuration of a gateway: the volume, the exports, the limits.

use std::sync::Arc;
use std::time::Duration;

use runtime::VolumeId;

use crate::exports::Exports;
use crate::groups::GroupLookup;
use crate::handle_keys::KEY_BYTES;
use crate::limits;

/// A gateway's settings. [`Config::new`] gives the usual limits; each may be changed.
#[derive(Clone)]
pub struct Config {
    /// The volume: file handles name it.
    pub volume: VolumeId,
    /// Secret random bytes, used for nothing else: the key of file handles is derived from them if
    /// the volume has none.
    pub entropy: [u8; KEY_BYTES],
    /// The exports; [`Exports::loopback`] by default.
    pub exports: Exports,
    /// Bytes in one RPC record, at most ([`limits::RECORD_BYTES`]).
    pub record_bytes_max: usize,
    /// Fragments in one RPC record, at most ([`limits::FRAGMENTS`]).
    pub fragments_max: usize,
    /// Connections, at most ([`limits::CONNECTIONS`]); further ones are closed immediately.
    pub connections_max: usize,
    /// Connections of one peer, at most ([`limits::CONNECTIONS_PER_PEER`]).
    pub connections_per_peer_max: usize,
    /// Calls of one connection whose replies are not sent yet, at most
    /// ([`limits::OUTSTANDING_CALLS`]); at the limit the gateway stops reading.
    pub outstanding_calls_max: usize,
    /// Bytes of such calls and of their replies, at most ([`limits::OUTSTANDING_BYTES`]); a single
    /// call is always admitted.
    pub outstanding_bytes_max: usize,
    /// The same of all connections of one peer, at most ([`limits::OUTSTANDING_BYTES_PER_PEER`]);
    /// a single small call of a connection is always admitted.
    pub outstanding_bytes_per_peer_max: usize,
    /// The same of all peers together ([`limits::OUTSTANDING_BYTES_TOTAL`]).
    pub outstanding_bytes_total_max: usize,
    /// Bytes of all half-received records, at most ([`limits::INCOMPLETE_BYTES`]). Each counts with
    /// all of its length; small ones, of up to 32 KiB, do not count. Past it connections wait, and
    /// those that send too slowly are closed.
    pub incomplete_bytes_max: usize,
    /// The same of one peer ([`limits::INCOMPLETE_BYTES_PER_PEER`]).
    pub incomplete_bytes_per_peer_max: usize,
    /// When a silent or stuck connection is closed ([`limits::IDLE`]).
    pub idle: Duration,
    /// The time that running calls have to end when the gateway stops or the peer has closed its
    /// side ([`limits::DRAIN`]).
    pub drain: Duration,
    /// Bytes of the volume's stripes ([`limits::STRIPE_BYTES`]): the data of large WRITEs are
    /// received in buffers of this size, which the cache takes over without a copy.
    pub stripe_bytes: usize,
    /// A call that takes longer is logged ([`limits::SLOW`]).
    pub slow: Duration,
    /// Who knows the groups of users, for [`CallerGroups::OfHost`](crate::CallerGroups::OfHost);
    /// no one by default.
    pub groups: Option<Arc<dyn GroupLookup>>,
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
            outstanding_bytes_per_peer_max: limits::OUTSTANDING_BYTES_PER_PEER,
            outstanding_bytes_total_max: limits::OUTSTANDING_BYTES_TOTAL,
            incomplete_bytes_max: limits::INCOMPLETE_BYTES,
            incomplete_bytes_per_peer_max: limits::INCOMPLETE_BYTES_PER_PEER,
            idle: limits::IDLE,
            drain: limits::DRAIN,
            stripe_bytes: limits::STRIPE_BYTES,
            slow: limits::SLOW,
            groups: None,
        }
    }
}
