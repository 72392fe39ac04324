//! Processes a COMPOUND: its operations in order, its reply (RFC 8881 section 16.2).

use bytes::Bytes;

use super::compound::{Compound, EarlierTransmission, OperationXdr};
use super::exactly_once::{self, RemoveTarget};
use super::limits::{CHANGE_RESULT_BYTES_MAX, LOCK_RESULT_BYTES_MAX, TAG_BYTES_MAX};
use super::operation::{ILLEGAL, MINOR_MAX, Nfs4Operation, OperationClass, is_known};
use super::ops;
use super::server::Nfs4Server;
use super::status::{OperationError, OperationResult, Status};
use crate::call_context::CallContext;
use crate::metrics::{OperationKey, OperationSample};
use crate::xdr::{CallArguments, ProcedureResult, ReplyBody, XdrEncoder};

/// Bytes of the arguments that are hashed to tell a retransmission from another request.
const FINGERPRINT_BYTES: usize = 512;

/// Processes a call; a cached reply is sent again as it was.
pub(super) async fn answer(
    server: &Nfs4Server,
    context: &CallContext,
    mut arguments: CallArguments,
) -> ProcedureResult {
    let request_bytes = arguments.length();
    let fingerprint = runtime::hash::xxh3(&arguments.first(FINGERPRINT_BYTES));
    let tag = arguments.opaque(TAG_BYTES_MAX)?;
    let minor = arguments.take::<u32>()?;
    let operations = arguments.take::<u32>()?;
    //= rfc8881 16.2.3: an unknown minor version is MINOR_VERS_MISMATCH, with no results
    if !(1..=MINOR_MAX).contains(&minor) {
        return Ok(reply(Status::MINOR_VERS_MISMATCH, &tag, 0, XdrEncoder::default()));
    }
    let request = (request_bytes, fingerprint);
    let mut compound = Compound::new(server, context, request, (minor, operations));
    let mut xdr = OperationXdr { arguments, out: XdrEncoder::default() };
    let (mut status, mut results) = compound.run(&mut xdr).await;
    let mut out = xdr.out;
    if let Some(head) = compound.replay.take() {
        return Ok(ReplyBody { head, tail: Vec::new() });
    }
    if let Some(sequence_status) = compound.sequence_status(status) {
        (out, results, status) = (XdrEncoder::default(), 1, sequence_status);
        out.u32(Nfs4Operation::Sequence as u32);
        out.u32(status.0);
    }
    let body = reply(status, &tag, results, out);
    compound.end(&body);
    Ok(body)
}

fn reply(status: Status, tag: &Bytes, results: u32, out: XdrEncoder) -> ReplyBody {
    let mut head = XdrEncoder::default();
    head.u32(status.0);
    head.opaque(tag);
    head.u32(results);
    out.body(head.body(Vec::new()).head)
}

impl Compound<'_> {
    /// Processes the operations up to the first that fails; returns its status, and the number of
    /// results.
    async fn run(&mut self, xdr: &mut OperationXdr) -> (Status, u32) {
        for index in 0..self.operations {
            self.index = index;
            let Ok(number) = xdr.arguments.take::<u32>() else { return (Status::BADXDR, index) };
            let before = xdr.out.mark();
            xdr.out.u32(number);
            xdr.out.u32(Status::OK.0);
            let failed = match self.operation(index, number) {
                Ok(operation) => self.counted_step(operation, xdr).await.err(),
                Err(status) => Some(status.into()),
            };
            if self.replay.is_some() || self.context.is_outcome_unknown() {
                return (Status::OK, 0);
            }
            if let Some(OperationError { status, body }) = failed {
                xdr.out.cut(before);
                //= rfc8881 18.30.2: the result of SETATTR tells what was set, also if it failed
                let is_setattr = number == Nfs4Operation::Setattr as u32;
                let body = if is_setattr { vec![0; 4] } else { body };
                xdr.out.u32(if status == Status::OP_ILLEGAL { ILLEGAL } else { number });
                xdr.out.u32(status.0);
                xdr.out.fixed(&body);
                return (status, index + 1);
            }
        }
        (Status::OK, self.operations)
    }

    /// The operation with this number, if it is allowed at this index.
    //= rfc8881 2.10.6.4, 16.2.3, 18.46.3
    fn operation(&self, index: u32, number: u32) -> Result<Nfs4Operation, Status> {
        let Some(operation) = Nfs4Operation::of(number, self.minor) else {
            let known = is_known(number, self.minor);
            return Err(match (known, index) {
                (false, _) => Status::OP_ILLEGAL,
                (true, 0) => Status::OP_NOT_IN_SESSION,
                (true, _) => Status::NOTSUPP,
            });
        };
        match (operation.class(), index) {
            (OperationClass::First, 0) => Ok(operation),
            (OperationClass::First, _) => Err(Status::SEQUENCE_POS),
            (OperationClass::Alone, 0) if self.operations > 1 => Err(Status::NOT_ONLY_OP),
            (OperationClass::Alone, _) => Ok(operation),
            (_, 0) => Err(Status::OP_NOT_IN_SESSION),
            _ => Ok(operation),
        }
    }

    async fn counted_step(
        &mut self,
        operation: Nfs4Operation,
        xdr: &mut OperationXdr,
    ) -> OperationResult {
        let ctx = self.context.ctx();
        let (began, bytes_in, bytes_out) = (ctx.now(), xdr.arguments.length(), xdr.out.length());
        let done = self.step(operation, xdr).await;
        let sample = OperationSample {
            took: ctx.now().saturating_sub(began),
            bytes_in: bytes_in - xdr.arguments.length(),
            bytes_out: xdr.out.length() - bytes_out,
            failed: done.is_err(),
        };
        self.server.metrics.note(OperationKey::Nfs4(operation), sample);
        done
    }

    async fn step(&mut self, operation: Nfs4Operation, xdr: &mut OperationXdr) -> OperationResult {
        let class = operation.class();
        let changes_files =
            matches!(class, OperationClass::ChangesFiles | OperationClass::ChangesNames);
        let changes = changes_files || class == OperationClass::ChangesState;
        if changes {
            // It must not be applied if its result would not fit.
            let result_bytes_max = match operation {
                Nfs4Operation::Lock => LOCK_RESULT_BYTES_MAX,
                _ => CHANGE_RESULT_BYTES_MAX,
            };
            self.check_reply_bytes(xdr.out.length() + result_bytes_max)?;
        }
        if changes_files {
            let fh = self.current_fh()?;
            fh.check_writable()?;
            // Its node would ask for that, later.
            self.state().tables_mut().states.begin_recall(fh.file, None);
        }
        if let EarlierTransmission::SessionLost { .. } = self.earlier {
            self.check_applied(operation).await?;
        }
        ops::serve(self, operation, xdr).await?;
        if changes { Ok(()) } else { Ok(self.check_reply_bytes(xdr.out.length())?) }
    }

    /// May this be answered, though the session is lost? Not if it would be applied only now.
    async fn check_applied(&mut self, operation: Nfs4Operation) -> Result<(), Status> {
        let changes_names = operation.class() == OperationClass::ChangesNames;
        let was_applied = !changes_names || self.was_applied(operation).await?;
        if !was_applied || !exactly_once::needs_no_session(operation) {
            self.earlier = EarlierTransmission::SessionLost { was_applied: false };
            return Err(Status::BADSESSION);
        }
        if changes_names {
            self.earlier = EarlierTransmission::SessionLost { was_applied: true };
            self.context.mark_retransmission();
        }
        Ok(())
    }

    async fn was_applied(&self, operation: Nfs4Operation) -> Result<bool, Status> {
        let call = self.call(RemoveTarget::File)?;
        Ok(exactly_once::was_applied(self.context, call).await?
            || operation == Nfs4Operation::Remove && self.has_removed_directory().await?)
    }

    /// The status of SEQUENCE, if it is the only result of a call that ended with `status`.
    fn sequence_status(&mut self, status: Status) -> Option<Status> {
        if self.earlier == (EarlierTransmission::SessionLost { was_applied: false }) {
            //= rfc8881 2.10.13.1.4: the client makes a new session, and asks in that
            return Some(if status == Status::DELAY { status } else { Status::BADSESSION });
        }
        if !self.must_be_retransmitted(status) {
            return None;
        }
        // With another status the client would send a new request, and see the changes of this one.
        self.is_undecided = true;
        self.context.clear_outcome();
        Some(Status::DELAY)
    }

    //= rfc8881 2.10.6.2, 15.1.1.3: a request that is answered DELAY by its SEQUENCE comes again as
    //= it is
    /// Must the client retransmit the call? It was applied, or may have been, by this transmission
    /// or an earlier one, and its result cannot be returned now. (If the first transmission's
    /// outcome is unknown the connection is closed instead, which makes the client retransmit
    /// immediately.)
    fn must_be_retransmitted(&self, status: Status) -> bool {
        let is_delayed = status == Status::DELAY;
        is_delayed && self.context.has_applied()
            || self.is_retransmission() && (is_delayed || self.context.is_outcome_unknown())
    }
}
