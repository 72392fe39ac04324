//! Which program answers a call.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use fileio::protocol::CallId;
use nfs3_types::{mount, nfs3 as nfs};
use runtime::Context;

use crate::config::Config;
use crate::exports::Exports;
use crate::handle;
use crate::keys::KeyRing;
use crate::metrics::Metrics;
use crate::mount3::{self, Mounts};
use crate::nfs3::{self, Asker, Volume};
use crate::rpc::{Question, Refusal};
use crate::translate;
use crate::v4;
use crate::xdr::Body;

/// The other side of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its host, for people and for the count of connections.
    pub(crate) host: String,
    /// Where it is, if that is known: what it may do depends on it.
    pub(crate) address: Option<SocketAddr>,
    /// The same again when the peer comes back after its connection broke.
    identity: Vec<u8>,
}

impl Peer {
    /// From what the machine calls it. A client that comes back may have another port (ADR 50); a
    /// peer without an address is a new one each time, told by `random`.
    pub(crate) fn new(name: &str, random: u64) -> Self {
        match name.parse::<SocketAddr>() {
            Ok(address) => {
                let host = address.ip().to_string();
                Self { identity: host.clone().into_bytes(), host, address: Some(address) }
            }
            Err(_) => Self {
                host: name.to_owned(),
                address: None,
                identity: random.to_le_bytes().to_vec(),
            },
        }
    }
}

/// The programs of one port.
#[derive(Debug)]
pub(crate) struct Programs {
    volume: Rc<Volume>,
    keys: Rc<KeyRing>,
    exports: RefCell<Rc<Exports>>,
    mounts: Mounts,
    v4: v4::Service,
}

impl Programs {
    /// The programs that serve the volume of `config`.
    pub(crate) fn new(ctx: Context, config: &Config, metrics: Rc<Metrics>) -> Self {
        let keys = Rc::new(KeyRing::new(ctx.clone(), config.entropy));
        Self {
            volume: Rc::new(Volume::new(ctx.clone(), config.volume)),
            keys: keys.clone(),
            exports: RefCell::new(Rc::new(config.exports.clone())),
            mounts: Mounts::default(),
            v4: v4::Service::new(ctx, keys, metrics),
        }
    }

    /// From the next call on these count.
    pub(crate) fn export(&self, exports: Exports) {
        *self.exports.borrow_mut() = Rc::new(exports);
    }

    /// Answers one call of `peer`; `None` if nobody knows whether it was done: then it must be sent
    /// again as it is, on another connection.
    pub(crate) async fn answer(
        &self,
        peer: &Peer,
        xid: u32,
        mut question: Question,
    ) -> Option<Result<Body, Refusal>> {
        let asker = match self.asker(peer, xid, &mut question).await {
            Ok(asker) => asker,
            Err(refusal) => return Some(Err(refusal)),
        };
        let (procedure, arguments) = (question.procedure, question.arguments);
        let body = match (question.program, question.version) {
            (nfs::PROGRAM, nfs::VERSION) => nfs3::answer(&asker, procedure, arguments).await,
            // Boxed: a call of version 3 would have to move their large futures with its own.
            (nfs::PROGRAM, _) => Box::pin(self.v4.answer(&asker, procedure, arguments)).await,
            _ => {
                let (mounts, host) = (&self.mounts, &peer.host);
                Box::pin(mount3::answer(&asker, mounts, host, procedure, arguments)).await
            }
        };
        (!asker.is_in_doubt()).then(|| body.map_err(Refusal::from))
    }

    /// Who asks.
    async fn asker(
        &self,
        peer: &Peer,
        xid: u32,
        question: &mut Question,
    ) -> Result<Asker, Refusal> {
        let (low, high) = match question.program {
            nfs::PROGRAM => (nfs::VERSION, v4::VERSION),
            mount::PROGRAM => (mount::VERSION, mount::VERSION),
            _ => return Err(Refusal::NoProgram),
        };
        if !(low..=high).contains(&question.version) {
            return Err(Refusal::ProgramVersion(low, high));
        }
        if is_v4(question) {
            // Handles come later, and sessions tell retransmissions.
            let keys = self.keys.keys(None).await.map_err(translate::status);
            let exports = self.exports.borrow().clone();
            let (volume, call) = (self.volume.clone(), CallId::NONE);
            return Ok(Asker::new(volume, keys, exports, peer, question, call));
        }
        if !nfs3::has_payload(question) {
            question.arguments.join();
        }
        let is_once = nfs3::is_done_once(question);
        let call = if is_once { call_id(peer, xid, question) } else { CallId::NONE };
        let made_by = handle::first_of(question.arguments.head()).and_then(handle::key_id);
        let keys = self.keys.keys(made_by).await.map_err(translate::status);
        let exports = self.exports.borrow().clone();
        Ok(Asker::new(self.volume.clone(), keys, exports, peer, question, call))
    }
}

fn is_v4(question: &Question) -> bool {
    (question.program, question.version) == (nfs::PROGRAM, v4::VERSION)
}

/// Bytes of data in the reply to `question`, at most.
pub(crate) fn reply_bytes_max(question: &Question) -> usize {
    if is_v4(question) { v4::reply_bytes_max(question) } else { nfs3::reply_bytes_max(question) }
}

/// The same for a retransmission, which comes from the same host and user with the same number and
/// arguments, from whatever port and through whichever gateway; another one for everything else. Nothing of it
/// is kept here.
fn call_id(peer: &Peer, xid: u32, question: &Question) -> CallId {
    let head = question.arguments.head();
    let mut key = Vec::with_capacity(peer.identity.len() + 20 + head.len());
    key.extend_from_slice(&peer.identity);
    key.extend_from_slice(&question.caller.to_le_bytes());
    key.extend_from_slice(&question.program.to_le_bytes());
    key.extend_from_slice(&question.procedure.to_le_bytes());
    key.extend_from_slice(&(head.len() as u32).to_le_bytes());
    key.extend_from_slice(head);
    CallId { client: runtime::hash::xxh3(&key), number: u64::from(xid) }
}
