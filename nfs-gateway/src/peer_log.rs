//! Bounds the log lines about each peer: what a peer sends must not fill the log.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use runtime::Context;

/// Lines about one peer in one [`WINDOW`], at most; one more tells how many were left out.
const LINES_MAX: u32 = 5;
/// From the first line about a peer.
const WINDOW: Duration = Duration::from_mins(1);
/// Peers that are counted by themselves; more share the lines of [`OTHERS`].
const PEERS_MAX: usize = 256;
/// Stands for the peers that are not counted by themselves.
const OTHERS: &str = "other peers";

/// The lines about all peers.
#[derive(Debug)]
pub(crate) struct PeerLog {
    ctx: Context,
    lines: RefCell<BTreeMap<String, PeerLines>>,
}

/// Lines about one peer in its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeerLines {
    logged: u32,
    left_out: u64,
}

impl PeerLog {
    /// An empty log.
    pub(crate) fn new(ctx: Context) -> Rc<Self> {
        Rc::new(Self { ctx, lines: RefCell::default() })
    }

    /// Counts a line about `host`; false if it is to be left out.
    pub(crate) fn admits(self: &Rc<Self>, host: &str) -> bool {
        let mut lines = self.lines.borrow_mut();
        let is_counted = lines.contains_key(host) || lines.len() < PEERS_MAX;
        let host = if is_counted { host } else { OTHERS };
        if let Some(lines) = lines.get_mut(host) {
            let is_admitted = lines.logged < LINES_MAX;
            if is_admitted {
                lines.logged += 1;
            } else {
                lines.left_out += 1;
            }
            return is_admitted;
        }
        lines.insert(host.to_owned(), PeerLines { logged: 1, left_out: 0 });
        let (log, host) = (self.clone(), host.to_owned());
        self.ctx.task(async move {
            log.ctx.sleep(WINDOW).await;
            if let Some(left_out) = log.end_window(&host) {
                tracing::warn!(target: "mdfs::nfs", host, left_out, "lines about an NFS peer were left out");
            }
        });
        true
    }

    /// Forgets the lines about `host`; returns how many were left out, if any were.
    fn end_window(&self, host: &str) -> Option<u64> {
        let lines = self.lines.borrow_mut().remove(host)?;
        (lines.left_out > 0).then_some(lines.left_out)
    }
}

#[cfg(test)]
mod tests {
    use machine_emu::{World, WorldShape};
    use runtime::NodeId;
    use runtime::seed::with_seed;

    use super::*;

    fn run(body: impl Fn(&World, &Rc<PeerLog>)) {
        with_seed(|rng| {
            let world = World::new(rng.bits(), WorldShape { fs_nodes: 1, disk_nodes: 0 });
            let log = PeerLog::new(world.context(NodeId::application(0)));
            body(&world, &log);
        });
    }

    #[test]
    fn a_flood_of_one_peer_is_a_few_lines_and_their_number() {
        run(|world, log| {
            let logged = (0..10_000).filter(|_| log.admits("10.0.0.1")).count();
            assert_eq!(logged, LINES_MAX as usize);
            assert!(log.admits("10.0.0.2"), "another peer has lines of its own");
            assert_eq!(log.end_window("10.0.0.1"), Some(10_000 - u64::from(LINES_MAX)));
            assert!(log.admits("10.0.0.1"), "a new window");
            world.advance(2 * WINDOW);
            assert!(log.lines.borrow().is_empty(), "nothing is left of either peer");
        });
    }

    #[test]
    fn many_peers_share_the_lines_of_the_others() {
        run(|_, log| {
            let logged = (0..10_000).filter(|peer| log.admits(&format!("peer {peer}"))).count();
            assert_eq!(logged, PEERS_MAX + LINES_MAX as usize);
            assert_eq!(log.lines.borrow().len(), PEERS_MAX + 1);
        });
    }
}
