//! The table: rates with processor time, and the ratios of the rounds.

use benches::median;

use crate::load::{LoadOutcome, NfsBenchRow, NfsWork};
use crate::sides::NfsServerSide;

const MIB: f64 = 1_048_576.0;

/// The outcomes of one row on one side, by round.
#[derive(Debug, Default)]
pub(crate) struct NfsBenchCell {
    pub(crate) outcomes: Vec<LoadOutcome>,
    pub(crate) failure: Option<String>,
}

/// Prints what was found; the first side is compared with each of the others.
pub(crate) fn print(
    rows: &[&NfsBenchRow],
    sides: &[NfsServerSide],
    cells: &[Vec<NfsBenchCell>],
    streams: &[f64],
) {
    println!(
        "\nrequests per second, medians (microseconds of the server's processor per request)\n"
    );
    let line = |head: &str, cells: Vec<String>| println!("| {head} | {} |", cells.join(" | "));
    line("row", sides.iter().map(|side| side.name.to_owned()).collect());
    line("---", sides.iter().map(|_| "---".to_owned()).collect());
    for (row, cells) in rows.iter().zip(cells) {
        line(&row.name(), cells.iter().map(shown).collect());
    }
    line("durability", sides.iter().map(|side| side.durability.to_owned()).collect());
    println!(
        "\n{} as ratios to the others: rate (processor time), medians of rounds\n",
        sides[0].name
    );
    for (row, cells) in rows.iter().zip(cells) {
        let ratios: Vec<String> = sides
            .iter()
            .zip(cells)
            .skip(1)
            .map(|(side, cell)| {
                let rate = ratio(&cells[0], cell, |outcome| outcome.rate);
                let cpu = ratio(&cells[0], cell, |outcome| outcome.cpu_us);
                format!("{} {rate:.2} ({cpu:.2})", side.name)
            })
            .collect();
        println!("{}: {}", row.name(), ratios.join(", "));
    }
    bound(rows, cells, streams);
}

fn shown(cell: &NfsBenchCell) -> String {
    if let Some(failure) = &cell.failure {
        return format!("fails: {failure}");
    }
    let middle = |get: fn(&LoadOutcome) -> f64| median(cell.outcomes.iter().map(get));
    format!("{:.0} ({:.1})", middle(|outcome| outcome.rate), middle(|outcome| outcome.cpu_us))
}

fn ratio(ours: &NfsBenchCell, other: &NfsBenchCell, get: fn(&LoadOutcome) -> f64) -> f64 {
    median(ours.outcomes.iter().zip(&other.outcomes).map(|(a, b)| get(a) / get(b)))
}

/// Reads beside what a stream carries.
fn bound(rows: &[&NfsBenchRow], cells: &[Vec<NfsBenchCell>], streams: &[f64]) {
    println!("\none loopback stream: {:.0} MB/s", median(streams.iter().copied()) / 1e6);
    for (row, cells) in rows.iter().zip(cells) {
        if row.work == NfsWork::ReadLarge {
            let rounds = cells[0].outcomes.iter().zip(streams);
            let ratio = median(rounds.map(|(outcome, stream)| outcome.rate * MIB / stream));
            println!("{}, in proportion to it: {ratio:.2}", row.name());
        }
    }
}
