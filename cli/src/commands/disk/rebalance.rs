//! `mdfs rebalance`.

use client::VolumeAddress;
use client::protocol::{DiskChange, DiskCondition, DiskList};

use super::change::change;
use super::moving::{ChangeReport, MoveArguments};
use crate::connection::volume_address;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Move data from fuller disks to emptier ones, until all are as full, while the volume is in use.
///
/// It goes on by itself, also after a crash or a restart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs rebalance scratch
  mdfs rebalance --pace fast scratch
  mdfs rebalance --cancel scratch")]
pub(crate) struct Rebalance {
    /// Stop it; what has moved stays where it is.
    #[arg(long, conflicts_with_all = ["pace", "no_wait"])]
    cancel: bool,
    #[command(flatten)]
    moves: MoveArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

impl Rebalance {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        self.moves.begin(session, &self.volume)?;
        if self.cancel {
            change(session, &self.volume, DiskChange::StopBalance {})?;
            if self.moves.json {
                return session.print_json(&ChangeReport::new(&self.volume, None, "cancelled"));
            }
            return session.print(format!("the rebalance of {} is cancelled\n", self.volume));
        }
        let left = |list: &DiskList| Ok(list.balancing.then(|| excess(list)));
        let asked = (DiskChange::Balance {}, None, "is balanced");
        let moved = self.moves.carry_out(session, &self.volume, asked, left)?;
        if !self.moves.json {
            return Ok(());
        }
        let state = if moved.is_some() { "balanced" } else { "balancing" };
        session.print_json(&ChangeReport::new(&self.volume, None, state).with_moved(moved))
    }
}

/// Bytes on disks that are fuller than the mean, beyond it.
fn excess(list: &DiskList) -> u64 {
    let online = || list.disks.iter().filter(|disk| disk.condition == DiskCondition::Online {});
    let used: u128 = online().map(|disk| u128::from(disk.used_bytes)).sum();
    let all: u128 = online().map(|disk| u128::from(disk.bytes)).sum();
    let share = |bytes: u64| (used * u128::from(bytes) / all.max(1)) as u64;
    online().map(|disk| disk.used_bytes.saturating_sub(share(disk.bytes))).sum()
}
