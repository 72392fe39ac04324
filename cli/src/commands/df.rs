//! `mdfs df`: space of a volume.

use client::VolumeAddress;
use serde::Serialize;

use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;
use crate::size::human;

/// Show the space of a volume.
///
/// Size, Used and Avail are of data as its users have it: each byte once, whatever the redundancy
/// of the volume is. The columns that begin with Raw are of the disks, with all copies and parity;
/// they are left out where there are none.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs df scratch
  mdfs df --json scratch | jq .available_bytes")]
pub(crate) struct Df {
    /// As JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

#[derive(Debug, Serialize)]
struct SpaceReport {
    volume: String,
    total_bytes: u64,
    used_bytes: u64,
    /// Not in use.
    free_bytes: u64,
    /// Of these, what one file can have.
    available_bytes: u64,
    inodes: u64,
    /// The same with all copies and parity.
    raw_total_bytes: u64,
    raw_used_bytes: u64,
    raw_free_bytes: u64,
}

impl Df {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        let space = volume.space().map_err(|error| CommandFailure::inside(&self.volume, error))?;
        let report = SpaceReport {
            volume: self.volume.to_string(),
            total_bytes: space.total_bytes,
            used_bytes: space.total_bytes.saturating_sub(space.free_bytes),
            free_bytes: space.free_bytes,
            available_bytes: space.available_bytes,
            inodes: space.inodes,
            raw_total_bytes: space.raw_total_bytes,
            raw_used_bytes: space.raw_total_bytes.saturating_sub(space.raw_free_bytes),
            raw_free_bytes: space.raw_free_bytes,
        };
        if self.json {
            return session.print_json(&report);
        }
        let reachable_bytes = report.used_bytes + report.available_bytes;
        let mut columns = vec![
            ("Volume", report.volume),
            ("Size", human(report.total_bytes)),
            ("Used", human(report.used_bytes)),
            ("Avail", human(report.available_bytes)),
            ("Use%", format!("{}%", percent(report.used_bytes, reachable_bytes))),
            ("Files", report.inodes.to_string()),
        ];
        if report.raw_total_bytes != report.total_bytes {
            columns.push(("Raw", human(report.raw_total_bytes)));
            columns.push(("RawUsed", human(report.raw_used_bytes)));
            columns.push(("RawFree", human(report.raw_free_bytes)));
        }
        let is_number: Vec<bool> = (0..columns.len()).map(|column| column > 0).collect();
        let (heads, values) = columns.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let heads = heads.into_iter().map(|head| head.as_bytes().to_vec()).collect();
        let values = values.into_iter().map(String::into_bytes).collect();
        session.print(table(&[heads, values], &is_number))
    }
}

/// Rounded up: a volume that is not quite empty is not 0 % full.
fn percent(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 100).div_ceil(u128::from(whole.max(1)))
}
