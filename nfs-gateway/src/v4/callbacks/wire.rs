//! `CB_COMPOUND` and its reply (RFC 8881 sections 20.2 to 20.9).

use bytes::Bytes;

use crate::v4::limits::TAG_BYTES_MAX;
use crate::v4::state::TakenSlot;
use crate::v4::status::Status;
use crate::v4::types::{SessionId, SessionRequest, Stateid};
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

const CB_RECALL: u32 = 4;
const CB_RECALL_ANY: u32 = 8;
const CB_SEQUENCE: u32 = 11;
const CB_NOTIFY_LOCK: u32 = 13;

/// `RCA4_TYPE_MASK_RDATA_DLG` and `RCA4_TYPE_MASK_WDATA_DLG`: delegations to read and to write.
const ALL_DELEGATIONS: u32 = 0b11;

/// What a callback is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallbackOperation<'a> {
    //= rfc8881 20.2
    /// Recalls a delegation.
    Recall {
        stateid: Stateid,
        handle: &'a [u8],
        /// The request that granted it, if its reply may not have arrived yet.
        granted_by: Option<SessionRequest>,
    },
    //= rfc8881 20.6
    /// Recalls all but some delegations, which the client chooses.
    RecallAny { keep: u32 },
    //= rfc8881 20.11
    /// A lock may be free for which the client waits, as this lock owner.
    NotifyLock { handle: &'a [u8], client: u64, owner: &'a [u8] },
}

/// Why a callback has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallbackError {
    #[error("no connection to the client works")]
    PathDown,
    #[error("too many callbacks wait")]
    Busy,
    #[error("the client is busy")]
    Delayed,
    #[error("the client refuses with status {}", .0.0)]
    Refused(Status),
}

/// What a client answered to a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallbackAnswer {
    /// The result of the operation.
    Done(Result<Bytes, CallbackError>),
    /// It has not begun: the sequence id of the slot stays.
    NotBegun,
    /// It disagrees about the slot.
    OutOfSequence,
}

/// The arguments of `CB_COMPOUND` for one operation in a slot.
pub(super) fn encode(
    minor: u32,
    session: &SessionId,
    slot: &TakenSlot,
    operation: CallbackOperation<'_>,
) -> Bytes {
    let mut out = XdrEncoder::default();
    // No tag; the callback ident is of minor version 0.
    out.opaque(&[]);
    out.u32(minor);
    out.u32(0);
    out.u32(2);
    encode_sequence(session, slot, referring(operation), &mut out);
    match operation {
        CallbackOperation::Recall { stateid, handle, .. } => {
            out.u32(CB_RECALL);
            stateid.encode(&mut out);
            // The file is not about to be truncated, as far as is known here.
            out.bool(false);
            out.opaque(handle);
        }
        CallbackOperation::RecallAny { keep } => {
            out.u32(CB_RECALL_ANY);
            out.u32(keep);
            out.u32(1);
            out.u32(ALL_DELEGATIONS);
        }
        CallbackOperation::NotifyLock { handle, client, owner } => {
            out.u32(CB_NOTIFY_LOCK);
            out.opaque(handle);
            out.u64(client);
            out.opaque(owner);
        }
    }
    out.body(Vec::new()).head.into()
}

fn referring(operation: CallbackOperation<'_>) -> Option<SessionRequest> {
    match operation {
        CallbackOperation::Recall { granted_by, .. } => granted_by,
        CallbackOperation::RecallAny { .. } | CallbackOperation::NotifyLock { .. } => None,
    }
}

//= rfc8881 20.9: the reply is not to be cached; a referring call is one that the callback depends
//= on
fn encode_sequence(
    session: &SessionId,
    slot: &TakenSlot,
    referring: Option<SessionRequest>,
    out: &mut XdrEncoder,
) {
    out.u32(CB_SEQUENCE);
    out.fixed(session);
    out.u32(slot.sequence);
    out.u32(slot.slot);
    out.u32(slot.highest);
    out.bool(false);
    match referring {
        None => out.u32(0),
        Some(SessionRequest { session, slot, sequence }) => {
            out.u32(1);
            out.fixed(&session);
            out.u32(1);
            out.u32(sequence);
            out.u32(slot);
        }
    }
}

/// Decodes the reply to the callback in `slot`.
pub(super) fn decode(result: Bytes, slot: &TakenSlot) -> CallbackAnswer {
    let mut reply = CallArguments::new(result, Vec::new());
    match sequence_status(&mut reply, slot) {
        Ok(Status::OK) => CallbackAnswer::Done(operation_result(reply)),
        Ok(Status::DELAY | Status::BACK_CHAN_BUSY) => CallbackAnswer::NotBegun,
        // It was done before, and its reply was lost.
        Ok(Status::RETRY_UNCACHED_REP) => CallbackAnswer::Done(Ok(Bytes::new())),
        Ok(_) | Err(_) => CallbackAnswer::OutOfSequence,
    }
}

/// Takes the result of `CB_SEQUENCE`; it must be about the `slot`.
fn sequence_status(reply: &mut CallArguments, slot: &TakenSlot) -> Result<Status, ProcedureError> {
    let status = Status(reply.take()?);
    reply.opaque(TAG_BYTES_MAX)?;
    let results = reply.take::<u32>()?;
    if results == 0 {
        // The compound as a whole was refused.
        return Ok(if status == Status::OK { Status::SERVERFAULT } else { status });
    }
    let operation = reply.take::<u32>()?;
    let status = Status(reply.take()?);
    if operation != CB_SEQUENCE || status != Status::OK {
        return Ok(if status == Status::OK { Status::SERVERFAULT } else { status });
    }
    let _session: SessionId = reply.fixed()?;
    let (sequence, number) = (reply.take::<u32>()?, reply.take::<u32>()?);
    let _highest_and_target = reply.take::<u64>()?;
    let is_same = (sequence, number) == (slot.sequence, slot.slot);
    Ok(if is_same { Status::OK } else { Status::SEQ_MISORDERED })
}

/// The result of the operation after `CB_SEQUENCE`.
fn operation_result(mut reply: CallArguments) -> Result<Bytes, CallbackError> {
    let mut take = || -> Result<Status, ProcedureError> {
        let _operation = reply.take::<u32>()?;
        Ok(Status(reply.take()?))
    };
    match take().unwrap_or(Status::SERVERFAULT) {
        Status::OK => Ok(Bytes::copy_from_slice(reply.head())),
        Status::DELAY => Err(CallbackError::Delayed),
        status => Err(CallbackError::Refused(status)),
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    const SLOT: TakenSlot = TakenSlot { slot: 3, sequence: 9, highest: 3, unanswered: None };

    /// A reply: the overall status, and these words after the (empty) tag.
    fn reply(status: u32, words: &[u32]) -> Bytes {
        let words = [&[status, 0][..], words].concat();
        words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>().into()
    }

    fn after_sequence(words: &[u32]) -> Bytes {
        let sequence = [2, CB_SEQUENCE, 0, 1, 2, 3, 4, SLOT.sequence, SLOT.slot, 5, 5];
        reply(0, &[&sequence[..], words].concat())
    }

    #[test]
    fn an_answer_counts_for_its_slot_only() {
        let refused = |status| CallbackAnswer::Done(Err(CallbackError::Refused(Status(status))));
        let cases = [
            (after_sequence(&[CB_RECALL, 0]), CallbackAnswer::Done(Ok(Bytes::new()))),
            (after_sequence(&[CB_RECALL, 10_025]), refused(10_025)),
            (
                after_sequence(&[CB_RECALL, 10_008]),
                CallbackAnswer::Done(Err(CallbackError::Delayed)),
            ),
            (after_sequence(&[]), refused(Status::SERVERFAULT.0)),
            (reply(10_008, &[1, CB_SEQUENCE, 10_008]), CallbackAnswer::NotBegun),
            (reply(10_057, &[0]), CallbackAnswer::NotBegun),
            (reply(10_068, &[1, CB_SEQUENCE, 10_068]), CallbackAnswer::Done(Ok(Bytes::new()))),
            (reply(10_052, &[1, CB_SEQUENCE, 10_052]), CallbackAnswer::OutOfSequence),
            // Another sequence id; no CB_SEQUENCE; nothing.
            (reply(0, &[1, CB_SEQUENCE, 0, 1, 2, 3, 4, 8, 3, 5, 5]), CallbackAnswer::OutOfSequence),
            (reply(0, &[1, CB_RECALL, 0]), CallbackAnswer::OutOfSequence),
            (reply(0, &[0]), CallbackAnswer::OutOfSequence),
            (Bytes::new(), CallbackAnswer::OutOfSequence),
        ];
        for (index, (bytes, expected)) in cases.into_iter().enumerate() {
            assert_eq!(decode(bytes, &SLOT), expected, "case {index}");
        }
    }

    #[test]
    fn any_bytes_are_an_answer_and_never_a_panic() {
        with_seed(|rng| {
            for _ in 0..20_000 {
                let mut bytes = vec![0; rng.index(100)];
                rng.fill(&mut bytes);
                let _ = decode(bytes.into(), &SLOT);
            }
        });
    }
}
