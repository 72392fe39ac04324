//! What the thesis designs but does not run: updates of parts of a stripe, and acknowledgements.

use super::chapter2::sound;
use super::planted;
use super::setup::{CHAPTER_2, ExperimentScale};
use super::table::{ParityRow, ParityTable, ParityUnit};
use super::update::{UpdateOutcome, UpdateRun, UpdateWay};
use super::world::{ParityFault, ParityRun};
use super::writer::ParityPolicy;

/// Updates of one to three blocks of a stripe.
pub(super) fn updates(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    for blocks in 1..=3 {
        let run = |way| {
            let outcome = UpdateRun {
                nodes: 4,
                way,
                blocks: Some(blocks),
                stripes: 256,
                updates: scale.stripes * 2,
                window: 64,
                block: scale.block(64),
                timing: scale.timing(CHAPTER_2),
                doubled_percent: 0,
                crashes: Vec::new(),
                plant: None,
                seed: scale.seed,
            }
            .run();
            let UpdateOutcome { flaws, unfinished, .. } = outcome;
            assert_eq!((flaws, unfinished), (0, 0), "updates went wrong");
            outcome
        };
        let (chain, modify) = (run(UpdateWay::Chain), run(UpdateWay::ReadModifyWrite));
        let named = |what: &str| format!("m = {blocks}: {what}");
        let gain = (blocks as f64 + 1.0) / blocks as f64;
        rows.push(ParityRow::rate(named("chain"), chain.rate));
        rows.push(ParityRow::rate(named("read, modify, write"), modify.rate));
        rows.push(ParityRow::ratio(named("chain: writer out / data"), chain.sent).model(1.0));
        rows.push(ParityRow::ratio(named("r-m-w: writer out / data"), modify.sent).model(gain));
        rows.push(ParityRow::ratio(named("r-m-w: writer in / data"), modify.received).model(gain));
        // To two decimals: both are limited by the link of the writer.
        let goal = (gain * 100.0).floor() / 100.0;
        let row = ParityRow::ratio(named("chain / r-m-w"), chain.rate / modify.rate);
        rows.push(row.model(gain).goal(goal));
    }
    let amid = planted::chain(None, scale.seed).run();
    let count = |what, count: u64| {
        ParityRow::new(format!("deaths, doubled messages: {what}"), ParityUnit::Count, count as f64)
    };
    rows.push(count("updates sent again", amid.resent));
    rows.push(count("deltas that came again", amid.repeated));
    rows.push(count("wrong blocks", amid.flaws + amid.unfinished).model(0.0));
    ParityTable { figure: "Fig. 2.6", title: "updates of m blocks, 3D-1P, 64 KB", rows }
}

/// Durable stripes against none of it, and nodes that die.
pub(super) fn acknowledgements(scale: ExperimentScale) -> ParityTable {
    let base = scale.run(ParityPolicy::Ring);
    let without = sound(&base).rate();
    let mut rows = vec![ParityRow::rate("not acknowledged", without)];
    for window in [4, 8, 16, 32, 64] {
        let outcome = sound(&ParityRun { window: Some(window), ..base.clone() });
        assert_eq!(outcome.acknowledged, base.stripes, "a stripe was not acknowledged");
        let what = format!("window of {window} stripes: durable / not");
        let row = ParityRow::ratio(what, outcome.rate() / without);
        rows.push(if window == 64 { row.model(1.0).goal(0.97) } else { row });
    }
    let at_ns = |at_us: u64| at_us * 1000 / scale.shrink;
    let death = |at_us, node, down_us| {
        let restart = (at_ns(at_us + down_us), ParityFault::Restart(node));
        [(at_ns(at_us), ParityFault::Kill(node)), restart]
    };
    let faults = [death(2_000, 1, 50), death(6_000, 3, 700), death(9_000, 0, 1)].concat();
    let outcome = sound(&ParityRun { window: Some(64), faults, ..base.clone() });
    let count = |what, count: u64| ParityRow::new(what, ParityUnit::Count, count as f64);
    rows.push(count("three nodes die: acknowledged", outcome.acknowledged));
    rows.push(count("times the writer sent again", outcome.epochs.len() as u64 - 1));
    rows.push(count("blocks kept by the writer, at most", outcome.kept_max as u64));
    rows.push(ParityRow::ratio("durable with deaths / not", outcome.rate() / without));
    ParityTable { figure: "2.6, ACK", title: "durable stripes, RAID-5, 3D-1P, 64 KB", rows }
}
