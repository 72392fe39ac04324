//! A planned move of a node to another process: dirty bytes are written back, and the boot IDs move
//! with the node, so that its clients see no lost writes.

use std::rc::Rc;

use super::Server;
use super::boot_ids::HandedBootId;
use crate::protocol::{Cache, Error, Request};

impl Server {
    /// Refuses new writes, writes all dirty bytes back, and returns the boot IDs for the server
    /// that [`resume`](Self::resume)s them. After an error it may be called again.
    pub async fn hand_over(self: &Rc<Self>) -> Result<Vec<HandedBootId>, Error> {
        self.context.close::<Cache>(changes_no_line);
        loop {
            self.context.drained::<Cache>().await;
            let dirty: Vec<u64> = self.lines.borrow().dirty().map(|(stripe, _)| stripe).collect();
            if dirty.is_empty() {
                break;
            }
            self.write_back_lines(dirty).await?;
        }
        // No await since: no other boot ID was returned meanwhile.
        self.context.close::<Cache>(|_| false);
        Ok(self.boot_ids.handed())
    }

    /// Continues with the boot IDs of the previous server. To be called before this one serves.
    pub fn resume(&self, handed: &[HandedBootId]) {
        self.boot_ids.resume(handed);
    }
}

/// Commits at other nodes still need these.
fn changes_no_line(request: &Request) -> bool {
    matches!(request, Request::WriteBack(_) | Request::Forget(_) | Request::Status(_))
}
