//! Limits of version 4.

use std::time::Duration;

use crate::limits::{RECORD_BYTES, TRANSFER_BYTES};

/// The lease time: a client that is silent for longer loses its state. It is that of the nodes, so
/// that clients notice a restart in time to reclaim their locks (ADR 10).
pub(crate) const LEASE: Duration = fileio::protocol::LEASE;

/// The lease time that clients see. They are heard of more often than they need be, so that after
/// a restart they learn soon that their delegations are void: before files change again (ADR 101).
pub(crate) const LEASE_SHOWN: Duration =
    fileio::protocol::DELEGATION_LEASE.saturating_sub(Duration::from_secs(2));

/// How long a client that is silent keeps open files that are not in the way of others.
pub(crate) const COURTESY_MAX: Duration = Duration::from_hours(24);
/// Open files of one such client, at most, and of all: half of what one node may have open.
pub(crate) const COURTESY_STATES_PER_CLIENT_MAX: usize = 1 << 10;
pub(crate) const COURTESY_STATES_MAX: usize = 1 << 17;

/// The grace period after the start of a gateway, at most.
pub(crate) const GRACE: Duration = Duration::from_secs(2 * LEASE.as_secs());

/// Operations in one COMPOUND.
pub(crate) const OPERATIONS_MAX: u32 = 64;
/// Bytes of a COMPOUND's tag.
pub(crate) const TAG_BYTES_MAX: usize = 1024;
/// Bytes of the name of a client, or of an owner (RFC 8881 section 3.2, `NFS4_OPAQUE_LIMIT`).
pub(crate) const OWNER_BYTES_MAX: usize = 1024;
/// Bytes of a file handle (RFC 8881 section 3.1, `NFS4_FHSIZE`).
pub(crate) const HANDLE_BYTES_MAX: usize = 128;
/// Words of a bitmap of attributes.
pub(crate) const BITMAP_WORDS_MAX: u32 = 8;
/// Stateids in one `TEST_STATEID`.
pub(crate) const TESTED_MAX: u32 = 1024;

/// Clients, confirmed or not. Past it a new one takes the place of one whose lease is over.
pub(crate) const CLIENTS_MAX: usize = 1 << 13;
pub(crate) const SESSIONS_PER_CLIENT_MAX: usize = 16;
/// Sessions of all clients.
pub(crate) const SESSIONS_MAX: usize = 1 << 13;
/// Slots of one session: as many as a connection may have outstanding calls.
pub(crate) const SLOTS_MAX: u32 = 64;
/// Sessions that get as many. Others get [`FEW_SLOTS`]: this bounds the replies that are cached to
/// 368 MiB.
pub(crate) const SESSIONS_WITH_MANY_SLOTS: usize = 512;
pub(crate) const FEW_SLOTS: u32 = 8;
/// Slots of a back channel: concurrent callbacks of one session.
pub(crate) const BACK_SLOTS_MAX: u32 = 16;
/// Bytes of a callback.
pub(crate) const BACK_BYTES_MAX: u32 = 4 << 10;
/// Operations of a callback.
pub(crate) const BACK_OPERATIONS_MAX: u32 = 16;
/// Connections that are bound to one back channel.
pub(crate) const BACK_LINKS_MAX: usize = 8;
/// Callbacks of all clients that wait for a slot.
pub(crate) const CALLBACKS_WAITING_MAX: usize = 1024;
/// Recalls under way; more wait for their turn.
pub(crate) const RECALLS_CONCURRENCY_MAX: usize = 256;
/// A client returns a recalled delegation within this time, or it is revoked: sooner than a node
/// takes the gateway to be gone (15 s).
pub(crate) const RECALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients that wait for a lock, of all files; others ask again by themselves.
pub(crate) const LOCK_WAITERS_MAX: usize = 1024;
/// A client that waits for a lock is told within this time, or asks again: Linux does after 30 s.
pub(crate) const LOCK_WAIT_MAX: Duration = Duration::from_secs(90);
/// Bytes of the name of a lock owner that is told: the smallest back channel has room for it.
pub(crate) const LOCK_WAITER_NAME_BYTES_MAX: usize = 128;
/// Delegations of one client, before it is asked to return some.
pub(crate) const DELEGATIONS_PER_CLIENT_MAX: usize = 1 << 12;
/// Delegations of all clients: they leave room for open files.
pub(crate) const DELEGATIONS_MAX: usize = STATES_MAX / 4;
/// Open and lock states and delegations of one client, some 500 bytes each, here and at the node of
/// the file.
pub(crate) const STATES_PER_CLIENT_MAX: usize = 1 << 18;
/// The same of all clients.
pub(crate) const STATES_MAX: usize = 1 << 20;

pub(crate) const REQUEST_BYTES_MAX: u32 = RECORD_BYTES as u32;
pub(crate) const REPLY_BYTES_MAX: u32 = RECORD_BYTES as u32;
/// Bytes of a cached reply.
pub(crate) const CACHED_BYTES_MAX: u32 = 4 << 10;
/// Bytes of the result of an operation that changes something, at most (OPEN or RENAME).
pub(crate) const CHANGE_RESULT_BYTES_MAX: usize = 128;
/// The same of a denied LOCK, with the name of the conflicting owner.
pub(crate) const LOCK_RESULT_BYTES_MAX: usize = 64 + OWNER_BYTES_MAX;
/// Bytes around the data of a READ, and of a `READ_PLUS` without holes: each hole makes the result
/// shorter.
pub(crate) const AROUND_DATA_BYTES: usize = 16;
pub(crate) const AROUND_SEGMENT_BYTES: usize = 32;

/// Bytes that one COPY copies, at most: it is answered in bounded time, and the client asks for the
/// rest.
pub(crate) const COPY_BYTES_MAX: u64 = 16 << 20;
/// Pieces of one COPY that are under way, of [`DATA_BYTES_MAX`] each.
pub(crate) const COPY_PIECES_MAX: usize = 2;
/// COPYs under way; more must wait.
pub(crate) const COPIES_MAX: usize = 32;

/// Bytes of data in one READ or WRITE.
pub(crate) const DATA_BYTES_MAX: u32 = TRANSFER_BYTES;
