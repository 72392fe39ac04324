//! The table of measured costs, and its text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Mechanism;
use crate::FabricError;

/// Lines of a table, at most: what is longer is no table.
const LINES_MAX: usize = 1000;
/// The first line of a table.
const TITLE: &str = "mdfs-fabric-costs 1";

/// What each mechanism costs with one provider, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The provider, and what was measured where: for people.
    pub provider: String,
    /// Per mechanism: time of one message, by its bytes, in ascending order.
    points: BTreeMap<Mechanism, Vec<(usize, f64)>>,
    /// Costs of packing per segment and per byte, both ends together.
    pub pack_segment: f64,
    /// See `pack_segment`.
    pub pack_byte: f64,
    /// Each further segment of a gathered message.
    pub gather_segment: f64,
    /// Bytes of a piece of a large bulk.
    pub piece: usize,
}

/// What is used before anything was measured: the order of magnitude of a fast network.
impl Default for Costs {
    fn default() -> Self {
        let line = |fixed: f64, byte: f64| {
            [64, 4096, 65536, 1 << 20, 16 << 20]
                .map(|size| (size, fixed + size as f64 * byte))
                .into()
        };
        let points = [
            (Mechanism::Inline, line(1_000.0, 0.5)),
            (Mechanism::Eager, line(1_200.0, 0.4)),
            (Mechanism::Fast, line(2_000.0, 0.2)),
            (Mechanism::Read, line(5_000.0, 0.1)),
            (Mechanism::Write, line(6_000.0, 0.1)),
        ];
        Self {
            provider: "not measured".into(),
            points: points.into(),
            pack_segment: 20.0,
            pack_byte: 0.1,
            gather_segment: 300.0,
            piece: 1 << 20,
        }
    }
}

impl Costs {
    /// A table without any point.
    pub fn empty(provider: &str) -> Self {
        Self { provider: provider.into(), points: BTreeMap::new(), ..Self::default() }
    }

    /// Adds what was measured.
    pub fn add(&mut self, mechanism: Mechanism, bytes: usize, nanoseconds: f64) {
        let points = self.points.entry(mechanism).or_default();
        let at = points.partition_point(|(size, _)| *size < bytes);
        if points.get(at).is_some_and(|(size, _)| *size == bytes) {
            points[at].1 = nanoseconds;
        } else {
            points.insert(at, (bytes, nanoseconds));
        }
    }

    /// Nanoseconds of one message of `bytes`: between two points in proportion, below the first as
    /// the first, above the last by the last two. What was never measured costs more than all else.
    pub fn of(&self, mechanism: Mechanism, bytes: usize) -> f64 {
        let Some(points) = self.points.get(&mechanism).filter(|points| !points.is_empty()) else {
            return f64::MAX / 4.0;
        };
        let after = points.partition_point(|(size, _)| *size < bytes).min(points.len() - 1);
        let Some(before) = after.checked_sub(1) else { return points[0].1 };
        let ((x0, y0), (x1, y1)) = (points[before], points[after]);
        let slope = (y1 - y0) / (x1 - x0) as f64;
        (y0 + slope * (bytes as f64 - x0 as f64)).max(0.0)
    }

    /// Nanoseconds to pack a bulk, beyond what it costs in one segment.
    pub fn pack(&self, segments: usize, bulk: usize) -> f64 {
        self.pack_segment * segments as f64 + self.pack_byte * bulk as f64
    }

    /// Nanoseconds to gather a bulk, beyond what it costs in one segment.
    pub fn gather(&self, segments: usize) -> f64 {
        self.gather_segment * segments as f64
    }

    /// The table as text: one fact a line, to be read and changed by people.
    pub fn to_text(&self) -> String {
        let mut text = format!("{TITLE}\nprovider {}\n", self.provider);
        for (mechanism, points) in &self.points {
            for (bytes, nanoseconds) in points {
                let _ = writeln!(text, "{} {bytes} {nanoseconds:.1}", mechanism.name());
            }
        }
        let _ = writeln!(text, "pack-segment {:.3}", self.pack_segment);
        let _ = writeln!(text, "pack-byte {:.5}", self.pack_byte);
        let _ = writeln!(text, "gather-segment {:.3}", self.gather_segment);
        let _ = writeln!(text, "piece {}", self.piece);
        text
    }

    /// The table that `text` is.
    pub fn from_text(text: &str) -> Result<Self, FabricError> {
        let malformed = |line: &str| FabricError::Malformed {
            what: "a table of costs",
            cause: format!("the line {line:?}; remove the file, and it is measured anew"),
        };
        let mut lines = text.lines().take(LINES_MAX);
        let title = lines.next().unwrap_or_default();
        if title != TITLE {
            return Err(malformed(title));
        }
        let mut costs = Self::empty("");
        for line in lines {
            costs.take_line(line).ok_or_else(|| malformed(line))?;
        }
        Ok(costs)
    }

    fn take_line(&mut self, line: &str) -> Option<()> {
        let (key, rest) = line.split_once(' ')?;
        match key {
            "provider" => self.provider = rest.into(),
            "pack-segment" => self.pack_segment = cost(rest)?,
            "pack-byte" => self.pack_byte = cost(rest)?,
            "gather-segment" => self.gather_segment = cost(rest)?,
            "piece" => self.piece = rest.parse().ok().filter(|piece| *piece >= 4096)?,
            _ => {
                let mechanism = Mechanism::ALL.into_iter().find(|one| one.name() == key)?;
                let (bytes, nanoseconds) = rest.split_once(' ')?;
                self.add(mechanism, bytes.parse().ok()?, cost(nanoseconds)?);
            }
        }
        Some(())
    }
}

fn cost(text: &str) -> Option<f64> {
    text.parse().ok().filter(|cost: &f64| cost.is_finite() && *cost >= 0.0)
}
