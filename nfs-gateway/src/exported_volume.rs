//! The volume that a gateway exports, and the calls whose outcome it does not know.

use std::cell::RefCell;
use std::collections::VecDeque;

use fileio::protocol::{Attributes, CallId, Kind, Time};
use nfs3_types::nfs3::{cookieverf3, fattr3};
use runtime::{Context, VolumeId};

use crate::translate;

/// What one epoch adds to the change attribute of a directory, in nanoseconds: more than a crash
/// sets its time back, so the attribute only grows.
const EPOCH_NANOS: u64 = 1 << 33;
/// Epochs that the nanoseconds of a directory's ctime distinguish. Directory times grow by whole
/// microseconds at least, so the digits below them are free.
const EPOCHS_PER_MICROSECOND: u32 = 1000;

/// Calls of unknown outcome that are remembered, at most. Their clients retransmit immediately.
const UNKNOWN_CALLS_MAX: usize = 1024;

/// The volume that is exported.
#[derive(Debug)]
pub(crate) struct ExportedVolume {
    /// The node of the gateway.
    pub(crate) ctx: Context,
    /// Its identity.
    pub(crate) id: VolumeId,
    /// The verifier of every directory cookie.
    pub(crate) cookie_verifier: cookieverf3,
    /// Calls that may or may not have been applied, the oldest first.
    unknown_calls: RefCell<VecDeque<CallId>>,
}

impl ExportedVolume {
    /// The volume `id`.
    pub(crate) fn new(ctx: Context, id: VolumeId) -> Self {
        let id_bytes = id.0.to_le_bytes();
        Self {
            ctx,
            id,
            // Cookies stay valid for ever, so their verifier does too.
            cookie_verifier: cookieverf3(runtime::hash::xxh3(&id_bytes).to_be_bytes()),
            unknown_calls: RefCell::default(),
        }
    }

    /// Records whether the outcome of `call` is unknown.
    pub(crate) fn set_outcome_unknown(&self, call: CallId, is_unknown: bool) {
        let mut calls = self.unknown_calls.borrow_mut();
        if !calls.is_empty() {
            calls.retain(|known| *known != call);
        }
        if is_unknown && call != CallId::NONE {
            if calls.len() == UNKNOWN_CALLS_MAX {
                calls.pop_front();
            }
            calls.push_back(call);
        }
    }

    /// Did an earlier transmission of `call` end with an unknown outcome?
    pub(crate) fn is_outcome_unknown(&self, call: CallId) -> bool {
        self.unknown_calls.borrow().contains(&call)
    }

    //= rfc8881 5.8.1.4: another one whenever data or metadata change
    /// The change attribute: it differs after every change, and for a directory in every epoch. A
    /// crash may set back the time of a directory, which is not durable together with names that
    /// other nodes store; a client that compared times alone would then trust stale names.
    pub(crate) fn change_attribute(&self, attributes: &Attributes) -> u64 {
        let Time { seconds, nanos } = attributes.ctime;
        let time = seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanos.into());
        match attributes.kind {
            Kind::Directory {} => time.wrapping_add(self.ctx.epoch().0.wrapping_mul(EPOCH_NANOS)),
            _ => time,
        }
    }

    //= rfc1813 2.6: ctime, "the last time when the attributes of the file were changed", by which
    //= clients know
    //= that what they keep of it is as it was
    /// The attributes as version 3 sends them. The digits of a directory's `ctime` below the
    /// microseconds are the epoch, for the reason given at
    /// [`change_attribute`](Self::change_attribute).
    pub(crate) fn fattr(&self, attributes: &Attributes) -> fattr3 {
        let mut fattr = translate::fattr(self.id, attributes);
        if attributes.kind == (Kind::Directory {}) {
            let nanos = &mut fattr.ctime.nseconds;
            *nanos = *nanos - *nanos % EPOCHS_PER_MICROSECOND
                + (self.ctx.epoch().0 % u64::from(EPOCHS_PER_MICROSECOND)) as u32;
        }
        fattr
    }
}
