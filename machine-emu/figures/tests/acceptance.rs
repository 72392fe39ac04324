//! What each figure must show, row by row. Fitted are only the ends of Fig. 4.2, that load delays
//! at all, and one client of Fig. 4.5; everything else here is predicted.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use figures::{
    Allocation, BlockExperiment, ChunkPattern, Figure, FigureReport, FilesExperiment, LineChoice,
    LinesExperiment, Panel, Profiles, Rig, Series, measure_blocks, measure_files, measure_lines,
};
use machine_emu::jmachine::{NodeCosts, Profile};

fn run(figure: Figure) -> FigureReport {
    figure.run(&Profiles::default()).unwrap()
}

/// The y of the curve of this series and name.
fn ys(report: &FigureReport, series: Series, name: &str) -> Vec<f64> {
    let curve = report.curve(series, name).unwrap_or_else(|| panic!("no curve {name}"));
    curve.points.iter().map(|point| point.1).collect()
}

/// The five curves of a panel of Fig. 4.1, from one disk node to eight.
fn loads(report: &FigureReport, series: Series) -> Vec<Vec<f64>> {
    let names = ["1 disk node", "2 disk nodes", "4 disk nodes", "6 disk nodes", "8 disk nodes"];
    names.iter().map(|name| ys(report, series, name)).collect()
}

/// Where a curve is lowest, and how low.
fn best(curve: &[f64]) -> (usize, f64) {
    let lowest = curve.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    lowest.unwrap()
}

fn is_within(found: f64, expected: f64, share: f64) -> bool {
    (found / expected - 1.0).abs() <= share
}

#[test]
fn block_io_gains_with_load_up_to_a_knee_and_loses_beyond() {
    let calibrated = loads(&run(Figure::F41a), Series::Calibrated);
    let knees: Vec<_> = calibrated.iter().map(|curve| best(curve).0).collect();
    assert!(
        knees.is_sorted() && knees[0] < knees[4],
        "more disk nodes sustain more load: {knees:?}"
    );
    for curve in &calibrated {
        let (knee, lowest) = best(curve);
        assert!(0 < knee && knee < curve.len() - 1, "{curve:?}");
        assert!(curve[0] > 1.1 * lowest, "one client cannot use the machine: {curve:?}");
    }
    for curve in &calibrated[1..] {
        assert!(curve[curve.len() - 1] >= 1.05 * best(curve).1, "load delays: {curve:?}");
    }
}

#[test]
fn the_rates_at_the_best_load_are_the_thesis_where_fitted_and_near_it_where_predicted() {
    let report = run(Figure::F42b);
    let thesis = ys(&report, Series::Thesis, "thesis");
    let rates = ys(&report, Series::Calibrated, "calibrated");
    for (place, share) in [(0, 0.02), (4, 0.02), (1, 0.10), (3, 0.10), (2, 0.25)] {
        assert!(is_within(rates[place], thesis[place], share), "{rates:?}, thesis {thesis:?}");
    }
    assert!(rates.is_sorted(), "{rates:?}");
    let last = rates[4] / rates[3];
    assert!((1.00..=1.10).contains(&last), "eight to six: {last}");
    assert!(is_within(rates[4] / rates[0], 2.14, 0.10), "speed-up {}", rates[4] / rates[0]);
    // The lowest point of each curve of Fig. 4.1a is the same number.
    let lowest: Vec<_> =
        loads(&run(Figure::F41a), Series::Calibrated).iter().map(|curve| best(curve).1).collect();
    for (rate, seconds) in rates.iter().zip(lowest) {
        assert!(is_within(4096.0 / seconds, *rate, 1e-9));
    }
}

#[test]
fn ideal_software_gives_each_disk_node_nearly_two_megabytes_a_second() {
    let rates = ys(&run(Figure::F42b), Series::Ideal, "ideal");
    for (disk_nodes, rate) in [1.0, 2.0, 4.0, 6.0, 8.0].into_iter().zip(&rates) {
        // 64 chunks are few: filling and draining eight nodes takes a fifth of the time.
        let share = rate / disk_nodes / 2048.0;
        assert!((0.55..=1.0).contains(&share), "{disk_nodes}: {rate} kb/s");
        assert!(rate / rates[0] / disk_nodes >= 0.75, "nearly linear: {rates:?}");
    }
}

/// How far Fig. 4.1 with another pattern is from the one with consecutive stripes, on average.
fn mean_difference(rig: &Rig, pattern: ChunkPattern) -> f64 {
    let (mut sum, mut points) = (0.0, 0.0);
    for disk_nodes in [1, 2, 4, 6, 8] {
        for clients in [1, 2, 4, 8, 16, 32, 64] {
            let seconds = |pattern| {
                let run = BlockExperiment { disk_nodes, clients, pattern };
                measure_blocks(rig, run).unwrap().seconds()
            };
            sum += f64::abs(seconds(pattern) / seconds(ChunkPattern::RoundRobin) - 1.0);
            points += 1.0;
        }
    }
    sum / points
}

#[test]
fn where_stripes_are_on_their_disks_does_not_matter() {
    let rig = Rig::from(Profile::as_measured());
    let places = mean_difference(&rig, ChunkPattern::Scattered(1));
    assert!(places <= 0.05, "{places}");
    // Drawn without regard to the disk nodes, 64 chunks are uneven, and the fullest node ends last.
    // The goal was 0.10: without traffic it is missed.
    let drawn = mean_difference(&rig, ChunkPattern::Random(1));
    assert!(drawn <= 0.13, "{drawn}");
    assert!(places < drawn, "{places}, {drawn}");
}

#[test]
fn where_messages_meet_random_stripes_are_nearly_as_fast_as_consecutive_ones() {
    // Nothing is fitted to this: consecutive stripes lose in the mesh what random ones lose at the
    // fullest node.
    let rig = Rig { traffic: true, ..Profile::as_measured().into() };
    let drawn = mean_difference(&rig, ChunkPattern::Random(1));
    assert!(drawn <= 0.10, "{drawn}");
}

#[test]
fn where_messages_meet_the_rates_of_few_disk_nodes_stay_and_those_of_many_fall() {
    let rig = |traffic| Rig { traffic, ..Profile::as_measured().into() };
    let rate = |traffic, disk_nodes, clients| {
        let run = BlockExperiment { disk_nodes, clients, pattern: ChunkPattern::RoundRobin };
        4096.0 / measure_blocks(&rig(traffic), run).unwrap().seconds()
    };
    // The best loads of the network without traffic.
    assert!(is_within(rate(true, 1, 2), rate(false, 1, 2), 0.01));
    assert!(is_within(rate(true, 2, 4), rate(false, 2, 4), 0.01));
    let eight = rate(true, 8, 16) / rate(false, 8, 16);
    assert!((0.75..0.95).contains(&eight), "{eight}");
}

#[test]
fn the_disks_are_idle_for_most_of_the_time() {
    for pattern in [ChunkPattern::RoundRobin, ChunkPattern::Random(1)] {
        for (disk_nodes, clients) in [(1, 4), (8, 16), (8, 64)] {
            let run = BlockExperiment { disk_nodes, clients, pattern };
            let written = measure_blocks(&Profile::as_measured().into(), run).unwrap();
            assert!(written.disks_busy < 0.5, "{written:?}");
            assert!(written.disks_busy > 0.0 && written.processors_busy > written.disks_busy);
        }
    }
}

#[test]
fn refused_writes_are_what_load_costs() {
    let refused = |clients| {
        let run = BlockExperiment { disk_nodes: 2, clients, pattern: ChunkPattern::RoundRobin };
        measure_blocks(&Profile::as_measured().into(), run).unwrap().refused
    };
    assert_eq!(refused(2), 0);
    assert!(refused(64) > 4 * refused(16) && refused(16) > 0);
}

#[test]
fn the_cache_scales_to_24_clients_and_collides_between_25_and_32() {
    let profile = Rig::from(Profile::as_measured());
    let slowest = |clients, map| {
        let times = measure_lines(&profile, LinesExperiment { clients, map }).unwrap();
        times.iter().max().unwrap().as_secs_f64()
    };
    let alone = slowest(1, LineChoice::Regions);
    let efficiency = |clients, map| alone / slowest(clients, map);
    for clients in 1..=24 {
        assert!(efficiency(clients, LineChoice::Regions) >= 0.90, "{clients}");
    }
    let first = (25..=32).find(|&clients| efficiency(clients, LineChoice::Regions) < 0.90);
    assert_eq!(first, Some(27), "the client with the index 26 shares a node with the first");
    let all = efficiency(32, LineChoice::Regions);
    assert!((0.45..=0.60).contains(&all), "colliding clients take twice as long: {all}");
    // As a rate of all together.
    let times =
        measure_lines(&profile, LinesExperiment { clients: 32, map: LineChoice::Regions }).unwrap();
    let rate = times.iter().map(|time| alone / time.as_secs_f64()).sum::<f64>() / 32.0;
    assert!((0.75..=0.95).contains(&rate), "{rate}");
    assert!(efficiency(32, LineChoice::Plain) >= 0.90, "line i for client i never collides");
}

/// The share of neighbouring points, along the nodes of the cache and along the disk nodes, at
/// which a curve rises by more than a twentieth.
fn rises(panel: &Panel) -> f64 {
    let (mut pairs, mut rising) = (0.0, 0.0);
    for curve in &panel.curves {
        let y = |disks: usize, caches: usize| curve.points[6 * disks + caches].1;
        let along_caches = (0..4).flat_map(|d| (1..6).map(move |c| (y(d, c - 1), y(d, c))));
        let along_disks = (0..6).flat_map(|c| (1..4).map(move |d| (y(d - 1, c), y(d, c))));
        for (before, after) in along_caches.chain(along_disks) {
            pairs += 1.0;
            rising += f64::from(u8::from(after > 1.05 * before));
        }
    }
    rising / pairs
}

#[test]
fn the_cache_with_disks_gains_with_nodes_down_to_the_time_that_the_clients_need() {
    let report = run(Figure::F44);
    for (panel, profile) in report.panels.iter().zip([Profile::as_measured(), Profile::ideal()]) {
        // With one disk node more nodes of the cache are refused more often, and that delays it.
        assert!(rises(panel) <= 0.06, "{}: {}", panel.title, rises(panel));
        let costs = NodeCosts::new(profile.numbers());
        let stripe = 64 << 10;
        // A client sends while the cache takes in; a node of the cache does 64 / 32 of them.
        let each_ns = costs.send_ns(stripe).max(costs.receive_ns(stripe)) + costs.handler_ns();
        for (curve, clients) in panel.curves.iter().zip([1.0, 2.0, 4.0, 8.0]) {
            let plateau = curve.points.last().unwrap().1;
            let ceiling = 64.0 / clients * Duration::from_nanos(each_ns).as_secs_f64();
            assert!(is_within(plateau, ceiling, 0.10), "{}: {plateau}, {ceiling}", curve.name);
            // With seven nodes of ten lines all 64 stripes fit: the step from four nodes to eight.
            let (four, eight) = (curve.points[2].1, curve.points[3].1);
            assert!(
                four > eight * if panel.title == "ideal" { 1.0 } else { 1.5 },
                "{}",
                curve.name
            );
        }
    }
}

#[test]
fn the_exclusive_allocator_does_not_scale_and_todays_does() {
    let profile = Rig::from(Profile::as_measured());
    let measure = |clients, allocation| {
        measure_files(&profile, FilesExperiment { clients, allocation }).unwrap()
    };
    let old = [1, 2, 4].map(|clients| measure(clients, Allocation::Exclusive));
    let seconds = old.map(|written| written.time.as_secs_f64());
    assert!(is_within(seconds[0], 2.421, 0.02), "fitted: {seconds:?}");
    assert!(
        is_within(seconds[1], 2.579, 0.10) && is_within(seconds[2], 2.547, 0.10),
        "{seconds:?}"
    );
    let highest = seconds.iter().copied().fold(0.0, f64::max);
    let lowest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(highest / lowest <= 1.10, "{seconds:?}");
    // Of two clients that take turns each waits for half of its time, and no more.
    assert!(old[1].waited > 0.49 && old[2].waited > 0.70, "{old:?}");
    let own = [1, 4].map(|clients| measure(clients, Allocation::Own).time.as_secs_f64());
    assert!(own[0] / own[1] >= 2.0, "{own:?}");
    assert!(seconds[2] / own[1] >= 2.0, "the cure: {own:?}");
}

#[test]
fn a_figure_is_a_table_a_picture_and_numbers_and_the_same_each_time() {
    let report = run(Figure::F42b);
    let again = run(Figure::F42b);
    assert_eq!(
        (report.text(), report.svg(), report.csv()),
        (again.text(), again.svg(), again.csv())
    );
    let text = report.text();
    for expected in
        ["209", "287", "314", "440", "447", "Fitted to this figure: node.receive_word = 22"]
    {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(report.csv().lines().count(), 1 + 5 * 5);
    let svg = report.svg();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<polyline").count(), 5);
}
