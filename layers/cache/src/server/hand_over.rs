//! A node that moves to another process by plan: what it holds goes to the disk nodes, and its lives go
//! along, so that whoever has written here hears of no loss.

use std::rc::Rc;

use super::Server;
use super::boot_ids::HandedBootId;
use crate::protocol::{Cache, Error, Request};

impl Server {
    /// Lets nothing in any more, gives all dirty bytes to the disk nodes, and returns its lives for the
    /// server that [`resume`](Self::resume)s them. After an error it may be called again.
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
        // No await since: what is handed over is what was told last.
        self.context.close::<Cache>(|_| false);
        Ok(self.boot_ids.handed())
    }

    /// Goes on with the lives of the server that was here before. To be called before this one serves.
    pub fn resume(&self, handed: &[HandedBootId]) {
        self.boot_ids.resume(handed);
    }
}

/// Whoever commits elsewhere still needs these.
fn changes_no_line(request: &Request) -> bool {
    matches!(request, Request::WriteBack(_) | Request::Forget(_) | Request::Status(_))
}
