//! What one register may hold: the heart of every oracle here.

/// The values that were given to one register (a sector, a block of a file, a name), oldest first,
/// and which of them may be seen.
///
/// One writer at a time: a write is issued, then acknowledged or not. Whatever was issued after the
/// last acknowledged write may have happened or not. What a sync covered survives a crash.
#[derive(Clone, Debug)]
pub(super) struct Versions<T> {
    values: Vec<T>,
    /// The last acknowledged one.
    acknowledged: usize,
    /// The oldest that a crash may bring back.
    durable: usize,
}

impl<T: PartialEq + Clone> Versions<T> {
    /// A register that holds `value`, durably.
    pub(super) fn new(value: T) -> Self {
        Self { values: vec![value], acknowledged: 0, durable: 0 }
    }

    /// A write begins; its number.
    pub(super) fn issue(&mut self, value: T) -> usize {
        self.values.push(value);
        self.values.len() - 1
    }

    /// The write of this number was answered well.
    pub(super) fn acknowledge(&mut self, number: usize) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// The number of the last acknowledged write: what a read or sync that begins now will cover.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Everything up to this number survives a crash.
    pub(super) fn durable(&mut self, number: usize) {
        self.durable = self.durable.max(number);
    }

    /// The numbers of all values that `matches`, for the message of a violation.
    pub(super) fn numbers(&self, matches: impl Fn(&T) -> bool) -> Vec<usize> {
        (0..)
            .zip(&self.values)
            .filter(|(_, value)| matches(value))
            .map(|(number, _)| number)
            .collect()
    }

    /// The value issued last.
    pub(super) fn last(&self) -> &T {
        &self.values[self.values.len() - 1]
    }

    /// The value of the last write whose answer is known.
    pub(super) fn flushed(&self) -> &T {
        &self.values[self.acknowledged]
    }

    /// What a read that began when `acknowledged` was the last may see by now.
    pub(super) fn visible(&self, acknowledged: usize) -> &[T] {
        &self.values[acknowledged..]
    }

    /// The number of the oldest value that may be there after a crash.
    pub(super) fn oldest_after_crash(&self) -> usize {
        self.durable
    }

    /// What may be there after a crash.
    pub(super) fn after_crash(&self) -> &[T] {
        &self.values[self.durable..]
    }

    /// The register was read while there was no writer: it holds this, though maybe not durably.
    pub(super) fn observe(&mut self, value: T) {
        let number = self.issue(value);
        self.acknowledge(number);
    }

    /// The register was looked at after a crash: it holds this, durably.
    pub(super) fn flush(&mut self, value: T) {
        *self = Self::new(value);
    }
}
