//! The name of one crash state, and how to look at it again.

use std::fmt;

use super::CrashViolation;
use super::crashes::{Crashes, Point, WorkloadStage, WriteFate};
use super::first_mark;
use super::oracle::{CrashOracle, Verdict};
use super::vocabulary::VolumeOperation;
use super::volume::{self, SHAPES, VolumeShape};
use crate::planted::Planted;

/// One workload, one moment, one choice of what is left.
#[derive(Clone, Debug)]
pub(super) struct CrashState {
    pub(super) shape: VolumeShape,
    pub(super) ops: Vec<VolumeOperation>,
    pub(super) point: usize,
    pub(super) fates: Vec<WriteFate>,
    pub(super) planted: Option<Planted>,
}

/// Marks a state whose disks ignored flushes.
const LYING: &str = "lying";

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<&str> = self.ops.iter().map(|op| op.name()).collect();
        let fates: Vec<String> = self.fates.iter().map(|fate| fate.text()).collect();
        write!(f, "{}:{}:{}:{}", self.shape.name, ops.join("+"), self.point, fates.join(","))?;
        match self.planted {
            Some(Planted::LyingDisks) => write!(f, ":{LYING}"),
            _ => Ok(()),
        }
    }
}

impl CrashState {
    fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let shape = parts.next()?;
        let shape = SHAPES.into_iter().find(|known| known.name == shape)?;
        let ops = parts.next()?.split('+').filter(|name| !name.is_empty());
        let ops = ops.map(VolumeOperation::from_name).collect::<Option<Vec<_>>>()?;
        let point = parts.next()?.parse().ok()?;
        let fates = parts.next()?.split(',').filter(|fate| !fate.is_empty());
        let fates = fates.map(WriteFate::from_text).collect::<Option<Vec<_>>>()?;
        let planted = parts.next().is_some_and(|part| part == LYING);
        let planted = planted.then_some(Planted::LyingDisks);
        Some(Self { shape, ops, point, fates, planted })
    }

    /// Describes what is wrong.
    pub(super) fn violation(&self, why: &str, point: &Point) -> CrashViolation {
        let WorkloadStage { begun, answered, rested } = point.stage;
        let rest = if rested { ", all at rest" } else { "" };
        let mut lines = vec![
            why.to_owned(),
            format!("  workload: {}", self.ops_text()),
            format!("  crash {}: {begun} operations begun, {answered} answered{rest}", self.point),
            "  left of the unflushed writes:".to_owned(),
        ];
        lines.extend(point.unflushed.iter().zip(&self.fates).map(|(write, fate)| {
            let (disk, offset, length) = (write.disk, write.offset, write.data.len());
            format!("    disk {disk}, bytes {offset}+{length}: {fate:?}")
        }));
        lines.push(format!("  to look at this state again: mdfs-lab crashes --state {self}"));
        CrashViolation { text: lines.join("\n"), state: self.to_string() }
    }

    fn ops_text(&self) -> String {
        let ops: Vec<String> = self.ops.iter().map(|op| format!("{op:?}")).collect();
        format!("{} on {}", ops.join(", "), self.shape.name)
    }
}

/// Looks at one state again, named as in a violation: what is found, and what is thought of it.
/// `None` if there is no such state.
pub fn replay(state: &str) -> Option<String> {
    let state = CrashState::from_text(state)?;
    let disks = volume::make(state.shape);
    let recorded = volume::record(state.shape, &disks, &state.ops, state.planted);
    let mut crashes = Crashes::new(&recorded, disks, first_mark(&state.ops));
    let point = crashes.nth(state.point)?;
    if point.unflushed.len() != state.fates.len() {
        return None;
    }
    let oracle = CrashOracle::new(&state.ops, &recorded.done, point.stage);
    let found = volume::inspect(state.shape, &point.image(&state.fates));
    let verdict = match oracle.judge(&found) {
        Verdict::Sound => "sound".to_owned(),
        Verdict::Wrong(why) => state.violation(&why, &point).text,
    };
    Some(format!("{verdict}\nanswers: {:?}\nfound: {found:#?}", recorded.done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_again_by_its_name() {
        let text = "2n:cut-f+rename-f-d/k:3:1,0,t5a";
        assert_eq!(
            CrashState::from_text(text).map(|state| state.to_string()),
            Some(text.to_owned())
        );
        let lying = "1n:pause:3:0:lying";
        assert_eq!(
            CrashState::from_text(lying).map(|state| state.to_string()),
            Some(lying.to_owned())
        );
        assert!(CrashState::from_text("1n::0:").is_some_and(|state| state.ops.is_empty()));
        assert!(CrashState::from_text("3n:cut-f:0:").is_none());
        assert!(replay("1n:cut-f:9999:").is_none());
    }
}
