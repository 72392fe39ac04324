//! What the benchmarks share: the size of a run, a volume to throw away, pairs of figures.
//!
//! | file | measures |
//! | --- | --- |
//! | `spawn.rs` | one request to a node: same thread, another thread, another process |
//! | `cache.rs` | one cached stripe, at each depth of the layers, beside the bare copy |
//! | `disk.rs` | one disk: past the page cache, through it, and as a plain program does it |
//! | `metadata.rs` | creates, stats and removes against the host's, by 1 to 16 clients |
//! | `recovery.rs` | filling a volume with a million files, and mounting it after a crash |
//! | `copy.rs` | the file system against the host's, side by side, as ratios |
//! | `checkpoint/` | checkpoints and restarts, against the host's file system and memory |
//! | `pressure.rs` | a burst twice the cache: the longest request, and the memory of the process |
//! | `nfs/` | the NFS gateway beside other NFS servers, and the processor time of each request |
//! | `lists/` | list I/O against one call for each region, and against sieving by the client |
//! | `operations.rs` | one operation: time, instructions, requests, allocations, copies |
//! | `transport/` | bytes between two processes: sockets, libfabric, and ours over it |
//! | `links.rs` | a common file over the links of a cluster: TCP, and libfabric |
//! | `replacement.rs`, `balance.rs` | policies of the cache, on traces; counts only |
//!
//! Under `cargo test` each runs small; `cargo xtask bench` runs them in earnest. The figures, and
//! what they mean, are in `docs/performance.md`.

mod pair;
mod volume;

pub use pair::{ProcessPair, median, print_table};
pub use volume::{BenchVolumeShape, Scratch};

/// Run by `cargo bench`, not by `cargo test`.
pub fn in_earnest() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// `large` in earnest, `small` in a test.
pub fn sized<T>(large: T, small: T) -> T {
    if in_earnest() { large } else { small }
}
