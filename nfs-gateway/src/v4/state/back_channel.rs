//! The back channel of a session: the connections that callbacks go over, and their slots (RFC 8881
//! sections 2.10.3 and 2.10.6).

use std::rc::Rc;

use bytes::Bytes;

use super::sessions::ChannelAttrs;
use crate::callback_link::CallbackLink;
use crate::v4::limits::{BACK_BYTES_MAX, BACK_LINKS_MAX, BACK_OPERATIONS_MAX, BACK_SLOTS_MAX};

/// `SEQ4_STATUS_CB_PATH_DOWN`: no callback can reach the client.
pub(super) const CB_PATH_DOWN: u32 = 0x1;
/// `SEQ4_STATUS_CB_PATH_DOWN_SESSION`: none over this session.
pub(super) const CB_PATH_DOWN_SESSION: u32 = 0x200;
/// `SEQ4_STATUS_BACKCHANNEL_FAULT`: the client must replace the session.
pub(super) const BACKCHANNEL_FAULT: u32 = 0x400;

/// What a client wants callbacks to look like.
#[derive(Clone, Debug)]
pub(crate) struct CallbackAttrs {
    /// The minor version of the session.
    pub(crate) minor: u32,
    /// The number of the callback program.
    pub(crate) program: u32,
    /// The flavour and the body of the credential; without one no callbacks are sent.
    pub(crate) credential: Option<(u32, Bytes)>,
}

/// The back channel of a session.
#[derive(Debug)]
pub(crate) struct BackChannel {
    pub(crate) attrs: CallbackAttrs,
    /// The limits.
    pub(crate) channel: ChannelAttrs,
    slots: Vec<CallbackSlot>,
    /// The connections that are bound, the newest last.
    links: Vec<Rc<CallbackLink>>,
    /// A connection was ever bound.
    was_bound: bool,
    /// The client and we disagree about a slot.
    is_faulty: bool,
}

/// A slot: one callback at a time.
#[derive(Debug, Default)]
struct CallbackSlot {
    /// The sequence id of the last callback that was answered.
    sequence: u32,
    busy: bool,
    /// The last callback, if the client has not answered it: it comes first, unchanged.
    unanswered: Option<Bytes>,
}

/// A slot that was taken.
#[derive(Clone, Debug)]
pub(crate) struct TakenSlot {
    pub(crate) slot: u32,
    /// The sequence id of the next callback.
    pub(crate) sequence: u32,
    /// The highest slot in use.
    pub(crate) highest: u32,
    /// A callback that the client has not answered.
    pub(crate) unanswered: Option<Bytes>,
}

/// What came of a callback in a slot.
#[derive(Clone, Debug)]
pub(crate) enum SlotOutcome {
    /// The client has answered it.
    Replied,
    /// The client has not begun with it: the sequence id stays.
    NotBegun,
    /// It may or may not have arrived.
    Unanswered(Bytes),
}

impl ChannelAttrs {
    //= rfc8881 18.36.3: the server may reduce what the client offers, never raise it
    /// The limits of a back channel for which the client offers `self`. Linux gives up a mount if
    /// its replies, which are of a page, shall be shorter.
    pub(crate) fn as_back(self) -> Self {
        Self {
            request_bytes_max: self.request_bytes_max.min(BACK_BYTES_MAX),
            reply_bytes_max: self.reply_bytes_max,
            cached_bytes_max: 0,
            operations_max: self.operations_max.min(BACK_OPERATIONS_MAX),
            slots: self.slots.min(BACK_SLOTS_MAX),
        }
    }
}

impl BackChannel {
    /// A channel without a connection.
    pub(crate) fn new(attrs: CallbackAttrs, offered: ChannelAttrs) -> Self {
        let channel = offered.as_back();
        let slots = (0..channel.slots).map(|_| CallbackSlot::default()).collect();
        Self { attrs, channel, slots, links: Vec::new(), was_bound: false, is_faulty: false }
    }

    /// Could callbacks be sent if a connection were bound?
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_faulty && !self.slots.is_empty() && self.attrs.credential.is_some()
    }

    /// Binds a connection.
    pub(crate) fn bind(&mut self, link: Rc<CallbackLink>) {
        self.links.retain(|bound| !bound.is_closed() && !Rc::ptr_eq(bound, &link));
        if self.links.len() >= BACK_LINKS_MAX {
            self.links.remove(0);
        }
        self.links.push(link);
        self.was_bound = true;
    }

    /// Unbinds a connection.
    pub(crate) fn unbind(&mut self, link: &Rc<CallbackLink>) {
        self.links.retain(|bound| !Rc::ptr_eq(bound, link));
    }

    /// The newest connection.
    pub(crate) fn link(&self) -> Option<Rc<CallbackLink>> {
        self.links.iter().rev().find(|link| !link.is_closed()).cloned()
    }

    /// Can callbacks be sent?
    pub(crate) fn has_path(&self) -> bool {
        self.is_usable() && self.link().is_some()
    }

    /// Has the client answered a call over a connection that is open?
    pub(crate) fn is_proven(&self) -> bool {
        self.has_path() && self.links.iter().any(|link| link.is_proven())
    }

    /// Did the client ask for callbacks, and can none be sent?
    pub(super) fn is_down(&self) -> bool {
        self.was_bound && !self.has_path()
    }

    /// The status flags of the session.
    pub(super) fn status_flags(&self) -> u32 {
        match (self.is_down(), self.is_faulty) {
            (false, _) => 0,
            (true, false) => CB_PATH_DOWN_SESSION,
            (true, true) => BACKCHANNEL_FAULT,
        }
    }

    /// Takes a free slot.
    pub(super) fn take_slot(&mut self) -> Option<TakenSlot> {
        let index = self.slots.iter().position(|slot| !slot.busy)?;
        let slot = &mut self.slots[index];
        slot.busy = true;
        let (sequence, unanswered) = (slot.sequence.wrapping_add(1), slot.unanswered.take());
        let highest = self.slots.iter().rposition(|slot| slot.busy).unwrap_or(index);
        Some(TakenSlot { slot: index as u32, sequence, highest: highest as u32, unanswered })
    }

    //= rfc8881 2.10.6.1: the sequence id grows by one with each request that was answered
    /// Records what came of the callback in a slot.
    pub(super) fn end_callback(&mut self, slot: u32, outcome: SlotOutcome) {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return };
        match outcome {
            SlotOutcome::Replied => slot.sequence = slot.sequence.wrapping_add(1),
            SlotOutcome::NotBegun => {}
            SlotOutcome::Unanswered(request) => slot.unanswered = Some(request),
        }
    }

    /// Gives a slot back.
    pub(crate) fn release_slot(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.busy = false;
        }
    }

    /// The client and we disagree about a slot: the channel is not used any more.
    pub(crate) fn fail(&mut self) {
        self.is_faulty = true;
    }
}
