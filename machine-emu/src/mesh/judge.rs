//! The judgement: random cases on which worms and flits must agree message by message.

use runtime::seed::Rng;
use thiserror::Error;

use super::SendError;
use super::flit::FlitMesh;
use super::forward::ForwardPolicy;
use super::geometry::{MeshGeometry, MeshGeometryError};
use super::timing::{Delivery, MeshTiming};
use super::traffic::{MeshModel, Traffic};
use super::worm::Mesh;

/// Cycles in which messages are sent.
const CYCLES: u64 = 600;

/// Both differ, or the case cannot be.
#[derive(Debug, Error)]
pub enum Disagreement {
    /// The first message in whose cycle they differ.
    #[error("worms and flits give {deliveries:?}, on {size:?} with {timing:?}")]
    Differ {
        /// By worms and by flits; absent if never delivered.
        deliveries: Box<[Option<Delivery>; 2]>,
        /// Of the mesh.
        size: [u8; 3],
        /// Its parameters.
        timing: Box<MeshTiming>,
    },
    /// A mistake of this file.
    #[error(transparent)]
    MeshGeometry(#[from] MeshGeometryError),
    /// A mistake of this file.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// A small machine, some traffic, and queues that may fill.
struct TrafficCase {
    geometry: MeshGeometry,
    timing: MeshTiming,
    traffic: Traffic,
    service: Option<u64>,
}

impl TrafficCase {
    fn draw(rng: &mut Rng) -> Result<Self, MeshGeometryError> {
        let side = |rng: &mut Rng| 1 + rng.below(5) as u8;
        let geometry = MeshGeometry::new([side(rng), side(rng), side(rng)], 0, &[], None)?;
        let (hop_cycles, credit_cycles) = (1 + rng.below(4), 1 + rng.below(3));
        let words = 1 + rng.below(20) as u32;
        let service = rng.chance(1, 3).then(|| 1 + rng.below(60));
        let timing = MeshTiming {
            hop_cycles,
            credit_cycles,
            buffer_flits: (hop_cycles + credit_cycles + rng.below(8)) as u32,
            gap_cycles: rng.below(3),
            header_flits: rng.below(4) as u32,
            queue_words: service.map(|_| 20 + rng.below(40) as u32),
            ..MeshTiming::default()
        };
        let load = [0.02, 0.1, 0.2, 0.4, 0.8][rng.index(5)];
        let rate = load / f64::from(timing.flits(words));
        let hot = if rng.chance(1, 3) { 10 } else { 0 };
        let traffic = Traffic::uniform(rng.bits(), geometry.main_nodes(), words, rate).hot(hot);
        Ok(Self { geometry, timing, traffic, service })
    }

    fn run(&self, mesh: &mut impl MeshModel) -> Result<Vec<Delivery>, SendError> {
        let mut all = Vec::new();
        let mut traffic = self.traffic.clone();
        let hear = |delivery: &Delivery| all.push(*delivery);
        match self.service {
            None => traffic.drive(mesh, CYCLES, hear),
            Some(service) => traffic.drive_served(mesh, CYCLES, service, hear),
        }?;
        all.sort_unstable();
        Ok(all)
    }
}

/// Runs one random case through both; how many messages agree.
pub fn judge(rng: &mut Rng) -> Result<u64, Disagreement> {
    let case = TrafficCase::draw(rng)?;
    let worms =
        case.run(&mut Mesh::new(case.geometry.clone(), case.timing, ForwardPolicy::Canonical))?;
    let flits = case.run(&mut FlitMesh::new(case.geometry.clone(), case.timing))?;
    let differ = (0..worms.len().max(flits.len())).find(|&at| worms.get(at) != flits.get(at));
    let Some(at) = differ else { return Ok(worms.len() as u64) };
    Err(Disagreement::Differ {
        deliveries: Box::new([&worms, &flits].map(|all| all.get(at).copied())),
        size: case.geometry.size(),
        timing: Box::new(case.timing),
    })
}
