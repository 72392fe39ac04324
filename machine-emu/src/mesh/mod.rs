//! The network of the J-Machine: a 3-D wormhole mesh with two priorities and finite queues.
//!
//! It knows words, not files: `crate::link` puts the frames of a world on it.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `geometry.rs` | places, links, routes X before Y before Z |
//! | `forward.rs` | who passes on what cannot be sent directly |
//! | `timing.rs` | parameters, letters, deliveries, counters |
//! | `worm/` | [`Mesh`]: one event per channel that a head crosses |
//! | `flit.rs` | [`FlitMesh`]: the same by moving each flit; the judge of the former |
//! | `judge.rs` | random cases on which both must agree |
//! | `calendar.rs` | the event queue |
//! | `deadlock.rs` | who waits for whom in a circle |
//! | `record.rs` | load over time, and the messages, both bounded |
//! | `trace.rs`, `replay.rs` | the messages as a file; sent again elsewhere, and compared |
//! | `movie.rs`, `movie.html` | the record as a page that plays |
//! | `traffic.rs` | random traffic, for tests and measurements |

mod calendar;
mod deadlock;
mod flit;
mod forward;
mod geometry;
mod judge;
mod movie;
mod record;
mod replay;
mod timing;
mod trace;
mod traffic;
mod worm;

use thiserror::Error;

pub use deadlock::{Deadlock, WaitingParty};
pub use flit::FlitMesh;
pub use forward::{ForwardPolicy, Forwarders, candidates};
pub use geometry::{
    AXIS_MAX, Coordinates, Direction, MeshGeometry, MeshGeometryError, Role, Unroutable,
};
pub use judge::{Disagreement, judge};
pub use movie::{MOVIE_MESSAGES_MAX, movie};
pub use record::{BUCKETS_MAX, Bucket, ChannelLoad, EVENTS_MAX, Recorder, TraceEvent, TraceKind};
pub use replay::{Journey, Journeys, NetworkModel, ReplayError, ReplayTarget, replay};
pub use timing::{
    Delivery, LETTER_WORDS_MAX, Letter, MeshCounters, MeshTiming, Priority, ROW_WORDS, Spill, Wires,
};
pub use trace::{MeshTrace, TRACE_BYTES_MAX, TraceError};
pub use traffic::{Latencies, MeshModel, Traffic};
pub use worm::{LETTERS_MAX, Mesh};

/// A message is not taken: the sender traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// There is no way.
    #[error(transparent)]
    Unroutable(#[from] Unroutable),
    /// Too long for the header, or empty.
    #[error(
        "a message of {words} words cannot be sent: it may have 1 to {LETTER_WORDS_MAX}; cut it"
    )]
    Words {
        /// With the header for a forwarder, if it needs one.
        words: u32,
    },
    /// It would wait for ever.
    #[error("a message of {words} words never fits into a queue of {queue_words}: cut it")]
    QueueTooSmall {
        /// Of the message.
        words: u32,
        /// Of the queue.
        queue_words: u32,
    },
    /// The mesh holds as many messages as it can.
    #[error("{LETTERS_MAX} messages are under way: wait for deliveries")]
    Busy,
}
