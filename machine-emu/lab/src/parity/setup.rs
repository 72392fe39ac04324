//! The machines of the thesis, as far as they are known.

use super::kernel::{MICROSECOND_PS, ParityTiming};
use super::layout::{ParityLayout, RaidLevel};
use super::world::ParityRun;
use super::writer::ParityPolicy;

/// FDR x4, nominal.
pub(super) const LINK_RATE: u64 = 6_000_000_000;

/// Costs of messages in nanoseconds, for the sender and for the receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageCosts {
    send_ns: u64,
    receive_ns: u64,
}

/// Chapter 2. Fitted to one number, 5,969 of 6,000 MB/s with blocks of 64 KB (Fig. 2.20).
pub(super) const CHAPTER_2: MessageCosts = MessageCosts { send_ns: 50, receive_ns: 0 };

/// Chapter 3, whose switch is a host with three adapters. Both costs are fitted to the blocks of 64
/// KB of Fig. 3.10: to 5,548 MB/s what it costs to receive, to the gain of 44 % what it costs to
/// send. Smaller blocks are predicted.
pub(super) const CHAPTER_3: MessageCosts = MessageCosts { send_ns: 430, receive_ns: 880 };

/// How large experiments are.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExperimentScale {
    /// Blocks and times are divided by this: all ratios stay as they are.
    pub(super) shrink: u64,
    /// Stripes of a writer that is alone, and of each of several.
    pub(super) stripes: u64,
    pub(super) stripes_of_many: u64,
    /// Writers at the same time, at most.
    pub(super) writers_max: usize,
    pub(super) seed: u64,
}

impl ExperimentScale {
    /// As the command runs them.
    pub(super) fn full(seed: u64) -> Self {
        Self { shrink: 1, stripes: 768, stripes_of_many: 192, writers_max: 8, seed }
    }

    /// The thesis's links and delay. Processors and media are assumed: both are faster than links,
    /// as the thesis says.
    pub(super) fn timing(self, costs: MessageCosts) -> ParityTiming {
        ParityTiming {
            link_rate: LINK_RATE,
            delay_ps: MICROSECOND_PS / self.shrink,
            send_ps: costs.send_ns * 1000 / self.shrink,
            receive_ps: costs.receive_ns * 1000 / self.shrink,
            xor_rate: 10_000_000_000,
            medium_rate: 12_000_000_000,
            flush_ps: 100 * MICROSECOND_PS / self.shrink,
            timeout_ps: 500 * MICROSECOND_PS / self.shrink,
        }
    }

    /// A block of a size in KB.
    pub(super) fn block(self, kilobytes: u64) -> usize {
        (kilobytes * 1024 / self.shrink) as usize
    }

    /// Blocks of 64 KB, rotated over four nodes, by one writer, on the machine of chapter 2.
    pub(super) fn run(self, maker: ParityPolicy) -> ParityRun {
        ParityRun {
            layout: ParityLayout { level: RaidLevel::Rotated, nodes: 4 },
            maker,
            is_dedicated: false,
            writers: 1,
            in_waves: true,
            stripes: self.stripes,
            block: self.block(64),
            slots: 16,
            timing: self.timing(CHAPTER_2),
            window: None,
            faults: Vec::new(),
            plant: None,
            seed: self.seed,
        }
    }

    /// The same bytes without parity.
    pub(super) fn striped(self, nodes: usize) -> ParityRun {
        let layout = ParityLayout { level: RaidLevel::Striped, nodes };
        let run = self.run(ParityPolicy::Absent);
        // As many bytes as with three blocks of data in a stripe.
        ParityRun { layout, stripes: run.stripes * 3 / nodes as u64, ..run }
    }
}
