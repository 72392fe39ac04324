//! The trace of a mesh as a file: the machine, then every message with its times. The format is in
//! docs/format.md.

use runtime::hash;
use thiserror::Error;

use super::forward::ForwardPolicy;
use super::geometry::{AXIS_MAX, Coordinates, MeshGeometry, MeshGeometryError};
use super::record::{EVENT_BYTES, EVENTS_MAX, TraceEvent};
use super::timing::{MeshTiming, Spill, Wires};
use super::worm::Mesh;

/// A trace file starts with this.
const MAGIC: [u8; 8] = *b"MDFSmesh";
/// Of the format.
const VERSION: u32 = 1;
/// Where the checksum ends: it is of all that follows.
const SUMMED_FROM: usize = 16;
/// Bytes before the first event.
const HEAD_BYTES: usize = 200;
/// Bytes of a trace file, at most.
pub const TRACE_BYTES_MAX: usize = HEAD_BYTES + EVENTS_MAX * EVENT_BYTES;
/// No limit of the queues.
const UNLIMITED: u32 = u32::MAX;

/// What happened in a mesh, and in which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTrace {
    /// Of the run.
    pub seed: u64,
    /// A hash of all else that the run follows from.
    pub configuration: u64,
    /// Events that found no room: what comes after the last one is missing.
    pub events_lost: u64,
    /// The nodes and links.
    pub geometry: MeshGeometry,
    /// The parameters.
    pub timing: MeshTiming,
    /// Who passed on what could not be sent directly.
    pub policy: ForwardPolicy,
    /// The messages.
    pub events: Vec<TraceEvent>,
}

/// Bytes are no trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TraceError {
    /// Something else.
    #[error("it does not begin with MDFSmesh: it is no trace of a mesh; record one with --record")]
    Magic,
    /// Of another program.
    #[error("it is a trace of version {0}, this program reads version {VERSION}: record it anew")]
    Version(u32),
    /// Too short, or too long.
    #[error(
        "it has {found} bytes where its head says {expected}: it was cut or added to; copy it again"
    )]
    Length {
        /// By the head; the head itself if that is not whole.
        expected: u64,
        /// Of the file.
        found: u64,
    },
    /// Some byte is another one.
    #[error(
        "its checksum is {found:08x} where its head says {expected:08x}: it is damaged; copy it again"
    )]
    Checksum {
        /// By the head.
        expected: u32,
        /// Of the bytes.
        found: u32,
    },
    /// There is no such machine.
    #[error("its machine cannot be: {0}")]
    MeshGeometry(#[from] MeshGeometryError),
    /// A field of the head.
    #[error("its head makes no sense: {0}")]
    Head(&'static str),
    /// An event makes no sense.
    #[error("event {0} makes no sense")]
    Event(usize),
}

/// Puts numbers one after the other.
#[derive(Default)]
struct TraceWriter(Vec<u8>);

impl TraceWriter {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

/// Takes them from the front; all zeros after the end, which the length was compared with before.
struct TraceReader<'a>(&'a [u8]);

impl TraceReader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some((first, rest)) = self.0.split_at_checked(N) {
            bytes.copy_from_slice(first);
            self.0 = rest;
        }
        bytes
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

impl MeshTrace {
    /// Of a mesh that records.
    pub fn of(mesh: &Mesh) -> Option<Self> {
        let recorder = mesh.recorder()?;
        Some(Self {
            seed: recorder.seed(),
            configuration: recorder.configuration(),
            events_lost: recorder.events_lost(),
            geometry: mesh.geometry().clone(),
            timing: *mesh.timing(),
            policy: mesh.policy(),
            events: recorder.events().to_vec(),
        })
    }

    /// As a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = TraceWriter(MAGIC.to_vec());
        out.u32(VERSION);
        out.u32(0);
        for number in [self.seed, self.configuration, self.events.len() as u64, self.events_lost] {
            out.u64(number);
        }
        self.put_geometry(&mut out);
        self.put_timing(&mut out);
        debug_assert_eq!(out.0.len(), HEAD_BYTES);
        let mut bytes = out.0;
        bytes.extend(self.events.iter().flat_map(|event| event.to_bytes()));
        let sum = hash::crc32c(&bytes[SUMMED_FROM..]);
        bytes[12..SUMMED_FROM].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn put_geometry(&self, out: &mut TraceWriter) {
        let geometry = &self.geometry;
        geometry.size().into_iter().for_each(|side| out.u32(side.into()));
        out.u32(geometry.disk_nodes());
        let mut boards = [u8::MAX; AXIS_MAX as usize];
        boards[..geometry.boards().len()].copy_from_slice(geometry.boards());
        out.0.extend_from_slice(&boards);
        let host = geometry.host().map(|host| geometry.place(host));
        out.u32(host.is_some().into());
        let Coordinates { x, y, z } = host.unwrap_or(Coordinates::new(0, 0, 0));
        out.0.extend([x, y, z, 0].map(i8::cast_unsigned));
        out.u32(self.policy as u32);
    }

    fn put_timing(&self, out: &mut TraceWriter) {
        let MeshTiming {
            hop_cycles,
            credit_cycles,
            buffer_flits,
            gap_cycles,
            header_flits,
            interface_cycles,
            queue_words,
            spill,
            forward_cycles,
            wires,
            cycle_ns,
        } = self.timing;
        let (fixed, per_word) = spill.map_or((0, 0), |s| (s.fixed_cycles, s.cycles_per_word));
        for cycles in [
            hop_cycles,
            credit_cycles,
            gap_cycles,
            interface_cycles,
            forward_cycles,
            cycle_ns,
            fixed,
            per_word,
        ] {
            out.u64(cycles);
        }
        let queue_words = queue_words.unwrap_or(UNLIMITED);
        let spilling = u32::from(spill.is_some());
        for number in [buffer_flits, header_flits, queue_words, spilling, wires as u32] {
            out.u32(number);
        }
        out.u64(0);
    }

    /// From a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let found = bytes.len() as u64;
        if !bytes.starts_with(&MAGIC) {
            return Err(TraceError::Magic);
        }
        if bytes.len() < HEAD_BYTES {
            return Err(TraceError::Length { expected: HEAD_BYTES as u64, found });
        }
        let mut from = TraceReader(&bytes[MAGIC.len()..]);
        let (version, expected_sum) = (from.u32(), from.u32());
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let [seed, configuration, count, events_lost] = [(); 4].map(|()| from.u64());
        let rest = count.saturating_mul(EVENT_BYTES as u64);
        let expected = rest.saturating_add(HEAD_BYTES as u64);
        if expected != found {
            return Err(TraceError::Length { expected, found });
        }
        let sum = hash::crc32c(&bytes[SUMMED_FROM..]);
        if sum != expected_sum {
            return Err(TraceError::Checksum { expected: expected_sum, found: sum });
        }
        let (geometry, policy) = take_geometry(&mut from)?;
        let timing = take_timing(&mut from)?;
        let nodes = geometry.nodes();
        let known = |event: &TraceEvent| u32::from(event.from.max(event.to)) < nodes;
        let events = bytes[HEAD_BYTES..].as_chunks::<EVENT_BYTES>().0.iter().enumerate();
        let events = events.map(|(at, event)| {
            TraceEvent::from_bytes(event).filter(known).ok_or(TraceError::Event(at))
        });
        let events = events.collect::<Result<_, _>>()?;
        Ok(Self { seed, configuration, events_lost, geometry, timing, policy, events })
    }
}

fn take_geometry(from: &mut TraceReader<'_>) -> Result<(MeshGeometry, ForwardPolicy), TraceError> {
    let size = [(); 3].map(|()| u8::try_from(from.u32()).unwrap_or(u8::MAX));
    let disk_nodes = from.u32();
    let boards: [u8; AXIS_MAX as usize] = from.bytes();
    let boards: Vec<u8> = boards.into_iter().take_while(|&board| board != u8::MAX).collect();
    let has_host = from.u32() == 1;
    let [x, y, z, _] = from.bytes().map(u8::cast_signed);
    let host = has_host.then_some(Coordinates::new(x, y, z));
    let policy = ForwardPolicy::ALL.get(from.u32() as usize);
    let policy = *policy.ok_or(TraceError::Head("the choice of forwarders is unknown"))?;
    Ok((MeshGeometry::new(size, disk_nodes, &boards, host)?, policy))
}

fn take_timing(from: &mut TraceReader<'_>) -> Result<MeshTiming, TraceError> {
    let [hop_cycles, credit_cycles, gap_cycles, interface_cycles] = [(); 4].map(|()| from.u64());
    let [forward_cycles, cycle_ns, fixed_cycles, cycles_per_word] = [(); 4].map(|()| from.u64());
    let [buffer_flits, header_flits, queue_words, spilling, wires] = [(); 5].map(|()| from.u32());
    let wires = [Wires::Own, Wires::Priorities, Wires::Links].get(wires as usize).copied();
    let wires = wires.ok_or(TraceError::Head("who shares a wire is unknown"))?;
    let timing = MeshTiming {
        hop_cycles,
        credit_cycles,
        buffer_flits,
        gap_cycles,
        header_flits,
        interface_cycles,
        queue_words: Some(queue_words).filter(|&words| words != UNLIMITED),
        spill: (spilling == 1).then_some(Spill { fixed_cycles, cycles_per_word }),
        forward_cycles,
        wires,
        cycle_ns,
    };
    if timing.can_be() { Ok(timing) } else { Err(TraceError::Head("its flits take no time")) }
}
