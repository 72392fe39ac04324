//! Chapter 2 of the thesis: parity by a ring of storage nodes.

use super::layout::{ParityLayout, RaidLevel};
use super::model;
use super::setup::{ExperimentScale, LINK_RATE};
use super::table::{ParityRow, ParityTable, ParityUnit};
use super::world::{ParityOutcome, ParityRun};
use super::writer::ParityPolicy;

const LINK_MB: f64 = LINK_RATE as f64 / 1e6;

/// Runs, and insists that every byte is right.
pub(super) fn sound(run: &ParityRun) -> ParityOutcome {
    let outcome = run.run();
    let ParityOutcome { flaws, false_acks, memory, .. } = &outcome;
    assert!(outcome.is_sound(), "{flaws} wrong blocks, {false_acks} false answers, {memory:?}");
    outcome
}

/// Relay and XOR between links. A pipe is a pipeline of two nodes. An XOR pipe takes one of its
/// streams from a second port, else both streams together would have one link's rate.
pub(super) fn pipes(scale: ExperimentScale) -> ParityTable {
    let pipeline = |nodes, writers| {
        let layout = ParityLayout { level: RaidLevel::Dedicated, nodes };
        ParityRun { layout, writers, is_dedicated: true, ..scale.run(ParityPolicy::Ring) }
    };
    let raw = sound(&ParityRun { stripes: scale.stripes, ..scale.striped(1) }).rate();
    let relay = sound(&pipeline(2, 1)).rate();
    // Two streams of data go in, one stream of parity comes out.
    let xor = sound(&pipeline(3, 2)).rate() / 2.0;
    let rows = vec![
        ParityRow::rate("raw put", raw).model(LINK_MB),
        ParityRow::rate("pipe: relay", relay).model(LINK_MB),
        ParityRow::rate("XOR pipe", xor).model(LINK_MB),
        ParityRow::ratio("pipe / raw put", relay / raw).model(1.0).goal(0.95),
        ParityRow::ratio("XOR pipe / pipe", xor / relay).model(1.0).goal(0.95),
    ];
    ParityTable { figure: "Fig. 2.18", title: "pipe and XOR pipe, 64 KB", rows }
}

/// One writer with parity on one node.
pub(super) fn raid4(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    for kilobytes in [64, 128] {
        let run = |maker| {
            let layout = ParityLayout { level: RaidLevel::Dedicated, nodes: 4 };
            sound(&sized(scale, ParityRun { layout, ..scale.run(maker) }, kilobytes)).rate()
        };
        let (ring, writer) = (run(ParityPolicy::Ring), run(ParityPolicy::Writer));
        let striped = sound(&sized(scale, scale.striped(3), kilobytes)).rate();
        let row = |what, rate, model| {
            ParityRow::rate(format!("{kilobytes} KB: {what}"), rate).model(model)
        };
        rows.push(row("ring", ring, LINK_MB));
        rows.push(row("writer", writer, 0.75 * LINK_MB));
        rows.push(row("RAID-0 on 3 nodes", striped, LINK_MB));
        let gain = ParityRow::ratio(format!("{kilobytes} KB: ring / writer"), ring / writer);
        // The thesis says 32 to 33 % for both.
        rows.push(gain.thesis(1.32).model(4.0 / 3.0).goal(1.30));
    }
    ParityTable { figure: "Fig. 2.19", title: "RAID-4, 3D-1P, one writer", rows }
}

/// The same time with other blocks.
fn sized(scale: ExperimentScale, run: ParityRun, kilobytes: u64) -> ParityRun {
    ParityRun { block: scale.block(kilobytes), stripes: run.stripes * 64 / kilobytes, ..run }
}

/// One writer with parity on nodes in turn.
pub(super) fn raid5(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    // 5,850 MB/s is the gain of the thesis over what it computes for the writer.
    for (kilobytes, thesis, gain) in [(64, 5969.0, 1.326), (128, 5850.0, 1.300)] {
        let run = |maker| sound(&sized(scale, scale.run(maker), kilobytes)).rate();
        let striped = |nodes| sound(&sized(scale, scale.striped(nodes), kilobytes)).rate();
        let (ring, writer) = (run(ParityPolicy::Ring), run(ParityPolicy::Writer));
        let process = run(ParityPolicy::Process);
        let named = |what: &str| format!("{kilobytes} KB: {what}");
        rows.push(ParityRow::rate(named("ring"), ring).thesis(thesis).model(LINK_MB));
        rows.push(ParityRow::rate(named("writer"), writer).thesis(4500.0).model(0.75 * LINK_MB));
        rows.push(ParityRow::rate(named("one process, MDFS"), process).model(LINK_MB));
        let ratio = |what: &str, ratio| ParityRow::ratio(named(what), ratio);
        let gain = ratio("ring / writer", ring / writer).thesis(gain);
        rows.push(gain.model(4.0 / 3.0).goal(1.30));
        let gain = ratio("one process / writer", process / writer);
        rows.push(gain.model(4.0 / 3.0).goal(1.30));
        for nodes in [3, 4] {
            let what = format!("ring / RAID-0 on {nodes} nodes");
            rows.push(ratio(&what, ring / striped(nodes)).thesis(1.0).model(1.0).goal(0.98));
        }
    }
    ParityTable { figure: "Fig. 2.20", title: "RAID-5, 3D-1P, one writer", rows }
}

const OWN_NETWORK: &str = "ring, own network";

/// A way to write, in the sweep over writers.
struct SweptWay {
    name: &'static str,
    run: ParityRun,
    /// Per writer.
    model: fn(usize, usize) -> f64,
}

fn swept_ways(scale: ExperimentScale) -> [SweptWay; 5] {
    let way = |name, run, model| SweptWay { name, run, model };
    let ring = scale.run(ParityPolicy::Ring);
    let dedicated = ParityRun { is_dedicated: true, ..ring.clone() };
    [
        way("writer", scale.run(ParityPolicy::Writer), model::writer),
        way("ring", ring, model::ring),
        way(OWN_NETWORK, dedicated, model::dedicated_ring),
        way("one process, MDFS", scale.run(ParityPolicy::Process), model::ring),
        way("RAID-0 on 3 nodes", scale.striped(3), |nodes, w| model::striped(nodes - 1, w)),
    ]
}

/// What a sweep over writers has measured.
struct Sweep {
    name: &'static str,
    /// Bytes per second with one writer, two, and so on.
    rates: Vec<f64>,
    /// The least and the greatest of what is measured, in parts of the formula.
    least: f64,
    greatest: f64,
}

/// Lets one writer write, then two, and so on.
fn sweep(scale: ExperimentScale, way: &SweptWay, rows: &mut Vec<ParityRow>) -> Sweep {
    let SweptWay { name, run, model } = way;
    let mut swept = Sweep { name, rates: Vec::new(), least: f64::MAX, greatest: 0.0 };
    for writers in 1..=scale.writers_max {
        let of_many = run.stripes * scale.stripes_of_many / scale.stripes;
        let stripes = if writers == 1 { run.stripes } else { of_many };
        let here = sound(&ParityRun { writers, stripes, ..run.clone() }).rate();
        let model = writers as f64 * model(4, writers) * LINK_RATE as f64;
        swept.least = swept.least.min(here / model);
        swept.greatest = swept.greatest.max(here / model);
        swept.rates.push(here);
        rows.push(ParityRow::rate(*name, here).model(model / 1e6).writers(writers));
    }
    swept
}

/// One to eight writers.
pub(super) fn scaling(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    let sweeps = swept_ways(scale).map(|way| sweep(scale, &way, &mut rows));
    let [writer, ring, dedicated, ..] = &sweeps;
    let auto = |w: usize| {
        let chosen = if model::is_ring_better(4, w) { ring } else { writer };
        chosen.rates[w - 1]
    };
    let (counts, last) = (1..=scale.writers_max, scale.writers_max);
    rows.extend(counts.clone().map(|w| ParityRow::rate("auto", auto(w)).writers(w)));
    for Sweep { name, least, greatest, .. } in &sweeps {
        let row = |what, ratio| ParityRow::ratio(format!("{name}: {what} of here / model"), ratio);
        rows.push(row("least", *least).model(1.0).goal(0.97));
        rows.push(row("greatest", *greatest).model(1.0));
    }
    let to_better = |w: usize| auto(w) / ring.rates[w - 1].max(writer.rates[w - 1]);
    let worst = counts.map(to_better).fold(f64::MAX, f64::min);
    rows.push(ParityRow::ratio("auto: least of auto / better of both", worst).goal(1.0));
    let at_last = |sweep: &Sweep| {
        ParityRow::rate(format!("{}, w = {last}", sweep.name), sweep.rates[last - 1])
    };
    rows.push(at_last(dedicated).thesis(20_141.0).model(24_000.0));
    rows.push(at_last(writer).thesis(18_000.0).model(18_000.0));
    let gain = dedicated.rates[last - 1] / writer.rates[last - 1];
    let gain = ParityRow::ratio(format!("own network / writer, w = {last}"), gain).thesis(1.119);
    rows.push(gain.model(4.0 / 3.0).goal(1.12));
    for writers in [2, 3, 4] {
        let gain = ring.rates[writers - 1] / writer.rates[writers - 1];
        let model = model::ring(4, writers) / model::writer(4, writers);
        let what = format!("shared ring / writer, w = {writers}");
        rows.push(ParityRow::ratio(what, gain).model(model));
    }
    ParityTable { figure: "Figs. 2.11, 2.21", title: "1 to 8 writers, RAID-5, 3D-1P, 64 KB", rows }
}

/// What the order of the writer is good for: one group of stripes with nothing but links in the
/// way, and a long write with a single slot in each ring buffer.
pub(super) fn order(scale: ExperimentScale) -> ParityTable {
    let base = ParityRun { slots: 1, is_dedicated: true, ..scale.run(ParityPolicy::Ring) };
    let mut group = ParityRun { stripes: 4, is_dedicated: false, ..base.clone() };
    let block_ps = group.timing.wire_ps(group.block as u64);
    (group.timing.delay_ps, group.timing.send_ps) = (0, 0);
    (group.timing.xor_rate, group.timing.medium_rate) = (u64::MAX, u64::MAX);
    let mut rows = Vec::new();
    for (name, in_waves) in [("heads first", true), ("stripe after stripe", false)] {
        let rate = sound(&ParityRun { in_waves, ..base.clone() }).rate() / LINK_RATE as f64;
        let row = ParityRow::ratio(format!("{name}: one slot, own network / link"), rate);
        rows.push(if in_waves { row.model(1.0).goal(0.98) } else { row });
        let outcome = sound(&ParityRun { in_waves, ..group.clone() });
        let times = outcome.elapsed_ps as f64 / block_ps as f64;
        let row = ParityRow::ratio(format!("{name}: block times of 12 blocks"), times);
        rows.push(if in_waves { row.model(13.0) } else { row });
    }
    ParityTable { figure: "2.2, order", title: "the order of blocks, RAID-5, 3D-1P, 64 KB", rows }
}

/// Who sends and receives how much of a file of 10 MB, 2D-1P.
pub(super) fn traffic(scale: ExperimentScale) -> ParityTable {
    let mut rows = Vec::new();
    let layout = ParityLayout { level: RaidLevel::Dedicated, nodes: 3 };
    let small = |maker| ParityRun { layout, ..scale.run(maker) };
    let megabytes = |what: String, part: f64, thesis: f64| {
        ParityRow::new(what, ParityUnit::Megabytes, 10.0 * part).thesis(thesis).model(thesis)
    };
    let naive = sound(&small(ParityPolicy::Writer));
    rows.push(megabytes("naive: writer out".to_owned(), naive.parts(0, 0).0, 15.0));
    let ring = sound(&small(ParityPolicy::Ring));
    rows.push(megabytes("ring: writer out".to_owned(), ring.parts(0, 0).0, 10.0));
    for (node, into, out) in [(0, 5.0, 5.0), (1, 10.0, 5.0), (2, 5.0, 0.0)] {
        let (sent, received) = ring.parts(ring.map.storage(node), 0);
        rows.push(megabytes(format!("ring: node {node} in"), received, into));
        rows.push(megabytes(format!("ring: node {node} out"), sent, out));
    }
    let dedicated = ParityRun { is_dedicated: true, ..scale.run(ParityPolicy::Ring) };
    let ways = [
        ("ring", scale.run(ParityPolicy::Ring), [0.5, 0.25, 0.0]),
        (OWN_NETWORK, dedicated, [0.25, 0.0, 0.25]),
        ("one process, MDFS", scale.run(ParityPolicy::Process), [0.5, 0.25, 0.0]),
    ];
    let stored = sound(&scale.run(ParityPolicy::Writer)).image;
    for (name, run, [main_in, main_out, own_in]) in ways {
        let outcome = sound(&run);
        let nodes = 0..outcome.map.nodes;
        let mean = |port, of: fn((f64, f64)) -> f64| {
            let parts =
                nodes.clone().map(|node| of(outcome.parts(outcome.map.storage(node), port)));
            parts.sum::<f64>() / outcome.map.nodes as f64
        };
        let row = |what, here, model| {
            ParityRow::ratio(format!("3D-1P, {name}: {what}"), here).model(model)
        };
        rows.push(row("writer out", outcome.parts(0, 0).0, 1.0));
        rows.push(row("a node in", mean(0, |part| part.1), main_in));
        rows.push(row("a node out", mean(0, |part| part.0), main_out));
        if own_in > 0.0 {
            rows.push(row("a node in, own network", mean(1, |part| part.1), own_in));
        }
        // A processor writes only what it XORs: nothing is copied.
        let written = outcome.memory.by_processors as f64 / outcome.bytes as f64;
        rows.push(row("written by processors", written, 2.0 / 3.0));
        let differ = outcome.image.iter().zip(&stored).filter(|(node, other)| node != other);
        rows.push(ParityRow {
            unit: ParityUnit::Count,
            ..row("nodes that differ from the writer's", differ.count() as f64, 0.0)
        });
    }
    ParityTable { figure: "Tables 2.1, 2.2", title: "bytes in and out, of 10 MB or of 1", rows }
}
