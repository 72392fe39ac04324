//! Who is there, and who serves which logical node.
//!
//! | file | holds |
//! | --- | --- |
//! | `map.rs` | the node map, what a member says of itself, and their bytes |
//! | `plan.rs` | from one map to the next: who joins, leaves, dies, comes back |
//! | `keeper/` | the protocol: a process keeps its lease, and knows what it may serve |
//! | `gone.rs` | what is kept of processes that are gone, or suspected to be |
//! | `command.rs` | what an operator does: making the first map, letting a process leave |
//!
//! # How a node changes its process
//!
//! Each map has an epoch and replaces the one before by compare-and-swap, so that there is one map
//! per epoch. A node leaves a living process in two steps: *settling* (its process stops it and
//! brings what it holds to the disks, it is not served, requests fail as retryable), then *serving*
//! by the other one. It leaves a dead process in one, some time after the lease of that process is
//! over: a process that cannot renew its lease is silent before that. So two processes never serve
//! a node at one time; what a clock that runs wildly could still do is stopped by the epoch at the
//! disk nodes.

mod command;
mod gone;
mod keeper;
mod map;
mod plan;

pub use command::{
    CommandError, drop_disk_nodes, found, leave, node_map, presence, replace, take_disk_node,
};
pub use gone::{GoneRecord, SuspectRecord};
pub use keeper::{
    ANSWER_WINDOW, CALL_TIME_MAX, CLOCK_ERROR_MAX_PPM, Duties, Evidence, GATHER, Keeper,
    KeeperEvent, LEASE, LOOK_EVERY, PROPOSE_STEP, REFUTE_TIME, RENEW_EVERY, TAKE_OVER_PAUSE,
};
pub use map::{
    ADDRESSES_MAX, Assignment, MemberRecord, NodeMap, PROCESSES_MAX, Process, ProcessId,
};
pub use plan::{Founder, MOVES_CONCURRENCY_MAX, PlanError};
