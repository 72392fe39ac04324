//! Dispatches a call to its program.

use std::rc::Rc;

use fileio::protocol::CallId;
use nfs3_types::{mount, nfs3 as nfs};
use runtime::Context;

use crate::call_context::{CallContext, CallParts};
use crate::config::Config;
use crate::current_exports::CurrentExports;
use crate::exported_volume::ExportedVolume;
use crate::exports::Exports;
use crate::groups::GroupCache;
use crate::handle;
use crate::handle_keys::KeyRing;
use crate::metrics::Metrics;
use crate::mount3::{self, MountList};
use crate::nfs3;
use crate::peer::RpcPeer;
use crate::peer_log::PeerLog;
use crate::rpc::{CallBody, RpcError};
use crate::translate;
use crate::v4::{self, Nfs4Server, operation};
use crate::xdr::ReplyBody;

/// The programs of one port.
#[derive(Debug)]
pub(crate) struct RpcPrograms {
    volume: Rc<ExportedVolume>,
    keys: Rc<KeyRing>,
    exports: Rc<CurrentExports>,
    mounts: MountList,
    groups: GroupCache,
    v4: Nfs4Server,
}

impl RpcPrograms {
    /// The programs that serve the volume of `config`, with lines about peers in `log`.
    pub(crate) fn new(
        ctx: Context,
        config: &Config,
        metrics: Rc<Metrics>,
        log: Rc<PeerLog>,
    ) -> Self {
        let keys = Rc::new(KeyRing::new(ctx.clone(), config.entropy));
        Self {
            volume: Rc::new(ExportedVolume::new(ctx.clone(), config.volume)),
            keys: keys.clone(),
            exports: CurrentExports::new(ctx.clone(), config.exports.clone()),
            mounts: MountList::new(log),
            groups: GroupCache::new(ctx.clone(), config.groups.clone()),
            v4: Nfs4Server::new(ctx, keys, metrics),
        }
    }

    /// Replaces the exports from the next call on.
    pub(crate) fn export(&self, exports: Exports) {
        self.exports.replace(exports);
    }

    /// The number of valid delegations, and what became of earlier ones.
    pub(crate) fn delegation_totals(&self) -> (usize, v4::DelegationTotals) {
        self.v4.delegation_totals()
    }

    /// Answers one call of `peer`; `None` if its outcome is unknown: the client must then
    /// retransmit it on another connection.
    pub(crate) async fn answer(
        &self,
        peer: &RpcPeer,
        xid: u32,
        mut call: CallBody,
    ) -> Option<Result<ReplyBody, RpcError>> {
        let context = match self.context(peer, xid, &mut call).await {
            Ok(context) => context,
            Err(error) => return Some(Err(error)),
        };
        let (procedure, arguments) = (call.procedure, call.arguments);
        let body = match (call.program, call.version) {
            (nfs::PROGRAM, nfs::VERSION) => nfs3::answer(&context, procedure, arguments).await,
            // Boxed: otherwise the future of a version 3 call would be as large as theirs.
            (nfs::PROGRAM, _) => {
                Box::pin(v4::answer(&self.v4, &context, procedure, arguments)).await
            }
            _ => {
                let (mounts, host) = (&self.mounts, &peer.host);
                Box::pin(mount3::answer(&context, mounts, host, procedure, arguments)).await
            }
        };
        (!context.is_outcome_unknown()).then(|| body.map_err(RpcError::from))
    }

    /// Makes the context of `call`.
    async fn context(
        &self,
        peer: &RpcPeer,
        xid: u32,
        call: &mut CallBody,
    ) -> Result<CallContext, RpcError> {
        let (low, high) = match call.program {
            nfs::PROGRAM => (nfs::VERSION, operation::VERSION),
            mount::PROGRAM => (mount::VERSION, mount::VERSION),
            _ => return Err(RpcError::NoProgram),
        };
        if !(low..=high).contains(&call.version) {
            return Err(RpcError::ProgramVersion(low, high));
        }
        // Version 4 decodes handles later, and sessions detect retransmissions.
        let (mut key_id, mut id) = (None, CallId::NONE);
        if !is_v4(call) {
            if !nfs3::has_payload(call) {
                call.arguments.join();
            }
            if nfs3::is_non_idempotent(call) {
                id = call_id(peer, xid, call);
            }
            key_id = handle::first_of(call.arguments.head()).and_then(handle::key_id);
        }
        let keys = self.keys.keys(key_id).await.map_err(translate::status);
        let (exports, roots) = self.exports.current().await;
        let groups = match &call.credential {
            Some(caller) if exports.manages_gids() => self.groups.of(caller.uid).await,
            _ => None,
        };
        Ok(CallContext::new(CallParts {
            volume: self.volume.clone(),
            keys,
            exports,
            roots,
            peer,
            credential: call.credential.clone(),
            groups,
            changes: nfs3::changes(call),
            id,
        }))
    }
}

fn is_v4(call: &CallBody) -> bool {
    (call.program, call.version) == (nfs::PROGRAM, operation::VERSION)
}

/// Bytes of data in the reply to `call`, at most.
pub(crate) fn reply_bytes_max(call: &CallBody) -> usize {
    if is_v4(call) { v4::reply_bytes_max(call) } else { nfs3::reply_bytes_max(call) }
}

/// The number of a call: the same for a retransmission, which has the same host, user, xid and
/// arguments, whatever its port and gateway. The gateway stores none of it.
fn call_id(peer: &RpcPeer, xid: u32, call: &CallBody) -> CallId {
    let head = call.arguments.head();
    let mut key = Vec::with_capacity(peer.identity.len() + 20 + head.len());
    key.extend_from_slice(&peer.identity);
    key.extend_from_slice(&call.credential_hash.to_le_bytes());
    key.extend_from_slice(&call.program.to_le_bytes());
    key.extend_from_slice(&call.procedure.to_le_bytes());
    key.extend_from_slice(&(head.len() as u32).to_le_bytes());
    key.extend_from_slice(head);
    CallId { client: runtime::hash::xxh3(&key), number: u64::from(xid) }
}
