//! What software costs a processor, in nanoseconds, from the numbers of a profile.

use super::{NodeNumbers, Number, Numbers};

/// Bytes of data in a word; its tag carries none.
pub(crate) const WORD_BYTES: u64 = 4;

/// The costs of a node.
#[derive(Clone, Debug)]
pub struct NodeCosts {
    node: NodeNumbers,
    copy: Number,
    command: Number,
    dma: Number,
}

impl NodeCosts {
    /// Of a machine with these numbers.
    pub fn new(numbers: &Numbers) -> Self {
        let disk_node = &numbers.disk_node;
        Self {
            node: numbers.node.clone(),
            copy: disk_node.copy.clone(),
            command: disk_node.command.clone(),
            dma: disk_node.dma.clone(),
        }
    }

    /// Of the host of such a machine: an ordinary node to the others, but its words go through the
    /// FIFOs of an interface, and its processes are those of Unix.
    pub fn host(numbers: &Numbers) -> Self {
        let mut costs = Self::new(numbers);
        let cycles = |number: &Number| number.value * numbers.node.clock.value;
        let node = &mut costs.node;
        node.send_word.value = cycles(&numbers.host.word);
        node.receive_word.value = cycles(&numbers.host.word);
        node.resume.value = cycles(&numbers.host.switch);
        // It is polled, and what gives way has been counted with what goes on.
        (node.dispatch.value, node.suspend.value) = (0.0, 0.0);
        costs
    }

    /// Duration of `cycles` cycles of the internal clock.
    pub fn cycles_ns(&self, cycles: f64) -> u64 {
        (cycles * 1000.0 / self.node.clock.value).round() as u64
    }

    /// Words that hold `bytes` bytes.
    pub fn words(bytes: u64) -> u64 {
        bytes.div_ceil(WORD_BYTES)
    }

    /// Messages that carry `bytes` bytes: at least one.
    fn messages(&self, bytes: u64) -> f64 {
        (Self::words(bytes) as f64 / self.node.piece.value).ceil().max(1.0)
    }

    /// Words sent for `bytes` bytes of data, envelopes included.
    pub fn words_sent(&self, bytes: u64) -> f64 {
        Self::words(bytes) as f64 + self.messages(bytes) * self.node.envelope.value
    }

    /// Sending `bytes` bytes, in as many messages as it takes.
    pub fn send_ns(&self, bytes: u64) -> u64 {
        let words = self.words_sent(bytes) * self.node.send_word.value;
        self.cycles_ns(self.messages(bytes) * self.node.send.value + words)
    }

    /// Time between the starts of two successive messages of `bytes` bytes.
    pub fn pace_ns(&self, bytes: u64) -> u64 {
        (self.send_ns(bytes) as f64 / self.messages(bytes)) as u64
    }

    /// Taking one message of `words` data words out of its queue.
    pub fn take_ns(&self, words: u64) -> u64 {
        self.cycles_ns(self.node.dispatch.value + words as f64 * self.node.receive_word.value)
    }

    /// Receiving `bytes` bytes, in as many messages as it takes, each with its dispatch.
    pub fn receive_ns(&self, bytes: u64) -> u64 {
        let words = Self::words(bytes) as f64 * self.node.receive_word.value;
        self.cycles_ns(self.messages(bytes) * self.node.dispatch.value + words)
    }

    /// A request, besides its words.
    pub fn handler_ns(&self) -> u64 {
        self.cycles_ns(self.node.handler.value)
    }

    /// A process gives way.
    pub fn suspend_ns(&self) -> u64 {
        self.cycles_ns(self.node.suspend.value)
    }

    /// A process goes on.
    pub fn resume_ns(&self) -> u64 {
        self.cycles_ns(self.node.resume.value)
    }

    /// A command for a disk, and for a write the copy of `bytes` bytes from where they are to
    /// where the controller takes them.
    pub fn disk_ns(&self, bytes_copied: u64) -> u64 {
        let words = Self::words(bytes_copied) as f64;
        self.cycles_ns(self.command.value + words * self.copy.value)
    }

    /// Sending what one transfer of the controller has brought.
    pub fn send_piece_ns(&self) -> u64 {
        self.cycles_ns(self.dma.value / WORD_BYTES as f64 * self.node.send_word.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jmachine::Profile;

    #[test]
    fn an_ideal_disk_node_moves_two_megabytes_a_second() {
        let costs = NodeCosts::new(Profile::ideal().numbers());
        let stripe = 64 << 10;
        let write_ns = costs.receive_ns(stripe) + costs.disk_ns(stripe) + costs.handler_ns();
        let rate = stripe as f64 / (write_ns as f64 / 1e9) / 1e6;
        assert!((1.9..2.0).contains(&rate), "{rate} MB/s");
        // The same with the envelopes of 128 messages: 2 MB/s is for the words alone.
        let rate = stripe as f64 / (costs.send_ns(stripe) as f64 / 1e9) / 1e6;
        assert!((1.8..2.0).contains(&rate), "{rate} MB/s");
    }

    #[test]
    fn a_message_without_data_costs_its_envelope() {
        let costs = NodeCosts::new(Profile::ideal().numbers());
        assert_eq!(costs.send_ns(0), 100 * (7 + 7 * 20));
        assert_eq!(costs.receive_ns(0), 100 * 4);
        assert_eq!(costs.send_ns(4) - costs.send_ns(0), 2000);
    }
}
