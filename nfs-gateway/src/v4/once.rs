//! What is done once: under which numbers the nodes below know it, and what was done of a request that
//! comes again to a gateway that does not know its session.
//!
//! Sessions are in the gateway's memory (ADR 21), replies to changes of names in the logs of the nodes
//! (ADR 9). A request that was done and not answered comes again after a restart, in the old session, before
//! its client looks for a new one. So what it asks for below has a number that depends on nothing but the
//! request, and whoever hears a copy asks the nodes whether they have done it (ADR 51).

use fileio::protocol::{CallId, WasDone};
use futures::future::join_all;
use runtime::NodeId;

use super::status::Status;
use super::table::Operation;
use super::words::SessionId;
use crate::nfs3::Asker;

/// A request of a session: all copies of it are the same, whichever gateway hears them, in whichever life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// The session, with its slot and the number in it.
    pub(super) session: SessionId,
    /// The slot.
    pub(super) slot: u32,
    /// The number in the slot.
    pub(super) sequence: u32,
    /// What its arguments are like.
    pub(super) fingerprint: u64,
}

/// A REMOVE may have asked for a file to be removed, or for a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A file; for all other operations, whatever they change.
    File,
    /// A directory.
    Directory,
}

impl Identity {
    /// What operation `index` of the request asks for below.
    pub(super) fn call(&self, index: u32, what: What) -> CallId {
        let mut key = [0; 24];
        key[..16].copy_from_slice(&self.session);
        key[16..].copy_from_slice(&self.fingerprint.to_le_bytes());
        let number = u64::from(what == What::Directory) << 48
            | u64::from(index as u8) << 40
            | u64::from(self.slot as u8) << 32
            | u64::from(self.sequence);
        CallId { client: runtime::hash::xxh3(&key), number }
    }
}

/// Did some node do the call?
pub(super) async fn was_done(asker: &Asker, call: CallId) -> Result<bool, Status> {
    let nodes = (0..asker.ctx().fs_nodes()).map(NodeId::fs);
    let answers = nodes.map(|node| asker.ctx().spawn(node, WasDone { call }));
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

/// May this stand in a request that is answered though its session is not known? It changes nothing, or
/// [is asked for](is_of_names) once.
pub(super) fn needs_no_session(operation: Operation) -> bool {
    use Operation as Op;
    let looks = matches!(
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
    looks || is_of_names(operation)
}

/// Changes names, and its reply is stored below.
pub(super) fn is_of_names(operation: Operation) -> bool {
    matches!(operation, Operation::Create | Operation::Link | Operation::Remove | Operation::Rename)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn calls_differ_in_all_that_requests_differ_in_and_in_nothing_else() {
        let first = Identity { session: [7; 16], slot: 1, sequence: 2, fingerprint: 3 };
        let others = [
            first,
            Identity { session: [8; 16], ..first },
            Identity { slot: 2, ..first },
            Identity { sequence: 3, ..first },
            Identity { fingerprint: 4, ..first },
        ];
        let calls = |identity: &Identity| {
            let identity = *identity;
            let of_index = move |index| {
                let file = identity.call(index, What::File);
                [file, identity.call(index, What::Directory)]
            };
            (0..3).flat_map(of_index)
        };
        let all: BTreeSet<CallId> = others.iter().flat_map(calls).collect();
        assert_eq!(all.len(), 5 * 3 * 2);
        assert!(calls(&first).all(|call| all.contains(&call)), "a copy has the same");
    }
}
