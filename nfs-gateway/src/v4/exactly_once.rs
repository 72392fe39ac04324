//! Exactly-once semantics without a session: the call ids under which the nodes know the requests
//! of an operation, and what may be answered of a retransmission whose session is lost.
//!
//! Sessions are in the gateway's memory (ADR 21), replies to changes of names in the logs of the
//! nodes (ADR 9). A request that was applied without a reply is retransmitted after a restart, in
//! the old session, before its client creates a new one. So its call ids depend on nothing but the
//! request, and a gateway that receives a retransmission asks the nodes whether they have applied
//! it (ADR 51).

use fileio::protocol::{CallId, WasDone};
use futures::future::join_all;
use runtime::NodeId;

use super::operation::{Nfs4Operation, OperationClass};
use super::status::Status;
use super::types::SessionId;
use crate::call_context::CallContext;

/// A request of a session: the same for all its transmissions, to any gateway, before and after a
/// restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionRequestId {
    pub(super) session: SessionId,
    pub(super) slot: u32,
    /// The sequence id in the slot.
    pub(super) sequence: u32,
    /// A hash of the arguments.
    pub(super) fingerprint: u64,
}

/// What a REMOVE requests to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoveTarget {
    /// A file; all other operations use this one, too.
    File,
    Directory,
}

impl SessionRequestId {
    /// The call id of operation `index` of the request.
    pub(super) fn call(&self, index: u32, target: RemoveTarget) -> CallId {
        let mut key = [0; 24];
        key[..16].copy_from_slice(&self.session);
        key[16..].copy_from_slice(&self.fingerprint.to_le_bytes());
        let number = u64::from(target == RemoveTarget::Directory) << 48
            | u64::from(index as u8) << 40
            | u64::from(self.slot as u8) << 32
            | u64::from(self.sequence);
        CallId { client: runtime::hash::xxh3(&key), number }
    }
}

/// Has any node applied `call`?
pub(super) async fn was_applied(context: &CallContext, call: CallId) -> Result<bool, Status> {
    let nodes = (0..context.ctx().fs_nodes()).map(NodeId::fs);
    let answers = nodes.map(|node| context.ctx().spawn(node, WasDone { call }));
    let mut failure = None;
    for answer in join_all(answers).await {
        match answer {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(false), |error| Err(crate::translate::status(error).into()))
}

/// May `operation` be answered in a request whose session is lost? It changes nothing, or changes
/// names.
pub(super) fn needs_no_session(operation: Nfs4Operation) -> bool {
    use Nfs4Operation as Op;
    let reads = matches!(
        operation,
        Op::Putfh
            | Op::Putrootfh
            | Op::Putpubfh
            | Op::Savefh
            | Op::Restorefh
            | Op::Getfh
            | Op::Getattr
            | Op::Lookup
            | Op::Lookupp
            | Op::Access
    );
    reads || operation.class() == OperationClass::ChangesNames
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn call_ids_differ_exactly_if_requests_differ() {
        let first = SessionRequestId { session: [7; 16], slot: 1, sequence: 2, fingerprint: 3 };
        let others = [
            first,
            SessionRequestId { session: [8; 16], ..first },
            SessionRequestId { slot: 2, ..first },
            SessionRequestId { sequence: 3, ..first },
            SessionRequestId { fingerprint: 4, ..first },
        ];
        let calls = |request: &SessionRequestId| {
            let request = *request;
            let of_index = move |index| {
                let file = request.call(index, RemoveTarget::File);
                [file, request.call(index, RemoveTarget::Directory)]
            };
            (0..3).flat_map(of_index)
        };
        let all: BTreeSet<CallId> = others.iter().flat_map(calls).collect();
        assert_eq!(all.len(), 5 * 3 * 2);
        assert!(calls(&first).all(|call| all.contains(&call)), "a retransmission has the same");
    }
}
