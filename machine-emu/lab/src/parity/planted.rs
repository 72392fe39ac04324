//! Runs that find the planted faults.

use runtime::seed::Rng;

use super::kernel::{MICROSECOND_PS, ParityTiming};
use super::plant::ParityPlant;
use super::setup::{CHAPTER_2, ExperimentScale};
use super::update::{UpdateRun, UpdateWay};
use super::world::{ParityFault, ParityRun};
use super::writer::ParityPolicy;

/// Flaws of a run that shows this fault if it is planted.
pub(super) fn flaws(plant: ParityPlant, is_planted: bool, seed: u64) -> u64 {
    let scale = ExperimentScale { shrink: 16, stripes: 64, ..ExperimentScale::full(seed) };
    let planted = is_planted.then_some(plant);
    let ring = ParityRun { plant: planted, ..scale.run(ParityPolicy::Ring) };
    match plant {
        ParityPlant::WrongPartner | ParityPlant::DroppedTail | ParityPlant::NoCredit => {
            flaws_of(&ParityRun { writers: 4, slots: 4, ..ring })
        }
        ParityPlant::OneRing => flaws_of(&ParityRun { slots: 1, ..ring }),
        ParityPlant::EarlyToken => {
            // Flushes are quick and media slow: what has not been stored is not flushed.
            let medium_rate = ring.timing.link_rate / 8;
            let timing = ParityTiming { medium_rate, flush_ps: MICROSECOND_PS, ..ring.timing };
            flaws_of(&ParityRun { timing, window: Some(16), ..ring })
        }
        ParityPlant::IgnoredBoot => {
            // A node dies between its token and its flush, and is up again before the flush.
            let dies = |at_us: u64| {
                let restart = (at_us * 1000 + 1000, ParityFault::Restart(1));
                let faults = vec![(at_us * 1000, ParityFault::Kill(1)), restart];
                flaws_of(&ParityRun { faults, window: Some(16), ..ring.clone() })
            };
            (5..60).step_by(3).map(dies).sum()
        }
        ParityPlant::ForgottenSequence => chain(planted, seed).run().flaws,
    }
}

/// A run of updates with doubled messages and nodes that die.
pub(super) fn chain(plant: Option<ParityPlant>, seed: u64) -> UpdateRun {
    let scale = ExperimentScale { shrink: 16, ..ExperimentScale::full(seed) };
    let mut rng = Rng::new(seed);
    let mut crash = || (rng.below(160), rng.index(5), 1 + rng.below(8));
    UpdateRun {
        nodes: 5,
        way: UpdateWay::Chain,
        blocks: None,
        stripes: 24,
        updates: 400,
        window: 8,
        block: 256,
        timing: scale.timing(CHAPTER_2),
        doubled_percent: 10,
        crashes: (0..20).map(|_| crash()).collect(),
        plant,
        seed,
    }
}

fn flaws_of(run: &ParityRun) -> u64 {
    let outcome = run.run();
    outcome.flaws + outcome.false_acks + outcome.memory.violations
}
