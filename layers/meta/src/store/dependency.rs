//! Dependencies between records of different nodes (ADR 17).

runtime::record! {
    /// A record of one node that must be durable before a record of another node that depends on it.
    /// Position 0 is no dependency.
    #[derive(Copy, PartialOrd, Ord, Hash, Default)]
    pub struct CommitDependency {
        /// The node that has the earlier record.
        node: u32,
        /// The LSN of the record: its place in the order of that node's commits.
        position: u64,
    }
}
