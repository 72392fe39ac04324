//! A node that moves to another process by plan: all that it has answered is made durable, and what
//! only its memory tells goes along.

use runtime::RequestInfo as _;

use super::MetaServer;
use crate::protocol::{Error, Meta, Request};

runtime::record! {
    /// What the metadata server of a node tells the one that takes its place.
    #[derive(Default)]
    pub struct MetaHandover {
        /// The write verifier of most files.
        verifier: u64,
        /// Of files that have lost something: inode and verifier.
        verifiers: Vec<(u64, u64)>,
        /// Inodes that are open.
        held: Vec<u64>,
        /// Those who held files before an earlier start are still waited for: inodes below this may
        /// be open.
        grace_below: u64,
    }
}

impl MetaServer {
    /// Lets nothing in any more but what others need to end what they have begun, and makes durable
    /// all that was answered. The file layer above has handed over before. After an error it may be
    /// called again.
    pub async fn hand_over(&self) -> Result<MetaHandover, Error> {
        let context = &self.base.context;
        context.close::<Meta>(is_needed_to_end);
        loop {
            context.drained::<Meta>().await;
            self.flusher.flush().await?;
            if self.base.store.is_settled() && context.is_drained::<Meta>() {
                break;
            }
        }
        // No await since: what is handed over is what was answered last.
        context.close::<Meta>(|_| false);
        let (verifier, verifiers) = self.verifiers.all();
        let (held, grace_below) = self.base.open_files.all();
        Ok(MetaHandover { verifier, verifiers, held, grace_below })
    }

    /// Goes on where the server before this one stopped. To be called before the layer above is
    /// served.
    pub fn resume(&self, handed: &MetaHandover) {
        self.verifiers.resume(handed.verifier, &handed.verifiers);
        self.base.open_files.resume(&handed.held, handed.grace_below);
    }
}

/// Nodes that settle may need each other for it.
fn is_needed_to_end(request: &Request) -> bool {
    request.is_for_recovery() || matches!(request, Request::FlushNames(_))
}
