//! Chapter 3 of the thesis: parity by a switch.

use super::chapter2::sound;
use super::layout::{ParityLayout, RaidLevel};
use super::model;
use super::rebuild::RebuildRun;
use super::setup::{CHAPTER_2, CHAPTER_3, ExperimentScale, LINK_RATE};
use super::table::{ParityRow, ParityTable, ParityUnit};
use super::world::{ParityFault, ParityOutcome, ParityRun, per_second};
use super::writer::ParityPolicy;

/// One writer, two blocks of data and one of parity, as Fig. 3.3 has them.
fn run(scale: ExperimentScale, maker: ParityPolicy, kilobytes: u64) -> ParityRun {
    ParityRun {
        layout: ParityLayout { level: RaidLevel::Dedicated, nodes: 3 },
        block: scale.block(kilobytes),
        // Small blocks need longer runs.
        stripes: scale.stripes * 64 / kilobytes.max(32),
        timing: scale.timing(CHAPTER_3),
        ..scale.run(maker)
    }
}

/// Stripes of 8 to 64 KB.
pub(super) fn gain(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    for kilobytes in [8, 16, 32, 64] {
        let by_switch = sound(&run(scale, ParityPolicy::Switch, kilobytes));
        let by_writer = sound(&run(scale, ParityPolicy::Writer, kilobytes));
        let (switch, writer) = (by_switch.rate(), by_writer.rate());
        let named = |what: &str| format!("{kilobytes} KB: {what}");
        let rate = |what, rate, model: f64| {
            ParityRow::rate(named(what), rate).model(model * LINK_RATE as f64 / 1e6)
        };
        let row = rate("switch", switch, model::switch(3, 1));
        rows.push(if kilobytes == 64 { row.thesis(5548.0) } else { row });
        rows.push(rate("writer", writer, model::writer(3, 1)));
        let row = ParityRow::ratio(named("switch / writer"), switch / writer).model(1.5);
        rows.push(match kilobytes {
            8 => row.thesis(1.14).goal(1.14),
            64 => row.thesis(1.44).goal(1.44),
            _ => row,
        });
        if kilobytes == 64 {
            let raw = ParityRow::ratio(named("switch / link"), switch / LINK_RATE as f64);
            rows.push(raw.thesis(0.925).model(1.0).goal(0.92));
            let out = by_switch.traffic[by_switch.map.switch()].iter().map(|port| port.sent);
            let out = out.sum::<u64>() as f64 / by_switch.bytes as f64;
            let (sent, _) = by_switch.parts(0, 0);
            rows.push(ParityRow::ratio(named("writer out / data"), sent).model(1.0));
            rows.push(ParityRow::ratio(named("switch out / data"), out).model(1.5));
        }
    }
    ParityTable { figure: "Fig. 3.10", title: "switch, 2D-1P (fitted at 64 KB)", rows }
}

/// The rate from the first block that was stored after the change to the end.
fn rate_after(scale: ExperimentScale, outcome: &ParityOutcome) -> f64 {
    let Some(span) = outcome.epochs.get(&2) else { return 0.0 };
    per_second(span.data_blocks * scale.block(64) as u64, span.last_ps - span.first_ps)
}

/// The switch no longer encodes, or is dead, in the middle of a write.
pub(super) fn fall_back(scale: ExperimentScale) -> ParityTable {
    let with =
        |maker, faults| sound(&ParityRun { window: Some(64), faults, ..run(scale, maker, 64) });
    let writer = with(ParityPolicy::Writer, Vec::new()).rate();
    let before = with(ParityPolicy::Switch, Vec::new());
    let mut rows = vec![
        ParityRow::rate("switch, durable", before.rate()),
        ParityRow::rate("writer, durable", writer),
    ];
    let middle_ns = before.elapsed_ps / 2_000;
    let faults = [
        ("switch only forwards", ParityFault::SwitchUnprogrammed),
        ("switch dead", ParityFault::SwitchDies),
    ];
    for (name, fault) in faults {
        let outcome = with(ParityPolicy::Switch, vec![(middle_ns, fault)]);
        let last_before = outcome.epochs.get(&1).map_or(0, |span| span.last_ps);
        let first_after = outcome.epochs.get(&2).map_or(0, |span| span.first_ps);
        let gap = first_after.saturating_sub(last_before) as f64 / 1e9;
        rows.push(ParityRow::new(format!("{name}: gap"), ParityUnit::Milliseconds, gap));
        let after = rate_after(scale, &outcome) / writer;
        let row = ParityRow::ratio(format!("{name}: after / writer"), after);
        rows.push(row.thesis(1.0).model(1.0).goal(0.95));
    }
    ParityTable { figure: "3.2, fall-back", title: "the switch fails in the middle, 64 KB", rows }
}

/// Rebuilding one node of three to nine.
pub(super) fn rebuild(scale: ExperimentScale) -> ParityTable {
    let (stripes, block) = (scale.stripes / 3, scale.block(64));
    let (timing, seed) = (scale.timing(CHAPTER_2), scale.seed);
    let mut parts = Vec::new();
    let mut rows = Vec::new();
    for nodes in 3..=9 {
        let outcome = RebuildRun { nodes, stripes, block, timing, seed }.run();
        assert_eq!(outcome.flaws, 0, "a rebuilt node differs");
        let part = outcome.rate / LINK_RATE as f64;
        parts.push(part);
        let row = ParityRow::ratio(format!("n = {nodes}: rebuild / link"), part);
        rows.push(row.model(1.0).goal(0.9));
    }
    let least = parts.iter().copied().fold(f64::MAX, f64::min);
    let greatest = parts.iter().copied().fold(0.0, f64::max);
    let flat = ParityRow::ratio("least / greatest", least / greatest);
    rows.push(flat.thesis(1.0).model(1.0).goal(0.98));
    ParityTable { figure: "Fig. 3.6", title: "rebuild through the switch", rows }
}
