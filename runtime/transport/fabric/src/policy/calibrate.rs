//! Measures what each mechanism costs, over a connection to a peer that answers.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Costs, Mechanism, PolicyOverride, SegmentLayout};
use crate::FabricError;
use crate::link::EndpointOptions;
use crate::transport::{
    BulkPart, ConnectionId, FabricEvent, Loss, TICKET_SIZE, Transport, TransportOptions,
};

/// Sizes of messages that are measured, in bytes.
const SIZES: [usize; 11] =
    [64, 256, 1 << 10, 3 << 10, 4 << 10, 12 << 10, 16 << 10, 60 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Segments of a measured list, and their bytes.
const SEGMENTS: usize = 128;
const SEGMENT_SIZES: [usize; 3] = [128, 1 << 10, 8 << 10];
/// Pieces that are tried, and the bulk that is cut into them.
const PIECES: [usize; 4] = [256 << 10, 512 << 10, 1 << 20, 4 << 20];
const PIECED: usize = 4 << 20;
/// The head of a message that [`answer_one`] answers; the number of a mechanism follows.
pub const CALIBRATES: &[u8] = b"calibrate";
/// Polls in vain before others may have the core.
const POLLS_BEFORE_REST: u32 = 100;
/// A measurement takes no longer.
const TIME_MAX: Duration = Duration::from_secs(20);

/// How exactly to measure.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Round trips of each kind; the lower quartile counts.
    pub rounds: usize,
    /// Bytes of the largest message.
    pub largest: usize,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { rounds: 15, largest: 4 << 20 }
    }
}

/// Answers every message with its first byte until the peer leaves, or until nothing was heard for
/// a while: the other side of [`calibrate`].
pub fn answer(transport: &mut Transport) -> Result<(), FabricError> {
    let mut last = now();
    let mut idle = 0;
    loop {
        transport.poll()?;
        idle += 1;
        rest(idle);
        while let Some(event) = transport.next_event() {
            (last, idle) = (now(), 0);
            match event {
                FabricEvent::Received { connection, head, .. } => {
                    answer_one(transport, connection, &head)?;
                }
                FabricEvent::Closed { .. } => return Ok(()),
                FabricEvent::Opened { .. } => {}
            }
        }
        if last.elapsed() > TIME_MAX {
            return Ok(());
        }
    }
}

/// Answers one message, whose head ends in the number of a mechanism, by the same mechanism as far
/// as a short message can: one that pays in one direction may cost more when both use it.
pub fn answer_one(
    transport: &mut Transport,
    connection: ConnectionId,
    head: &Bytes,
) -> Result<(), FabricError> {
    let asked = Mechanism::ALL.into_iter().find(|one| head.last() == Some(&(*one as u8)));
    let same = asked.filter(|mechanism| !mechanism.is_rendezvous()).unwrap_or(Mechanism::Eager);
    let before = transport.policy.forced;
    transport.policy.forced = PolicyOverride { mechanism: Some(same), layout: None };
    let sent = transport.send(connection, head.slice(..1), Vec::new());
    transport.policy.forced = before;
    sent
}

/// Polls go on at once for a while; then others may have the core, should they want it.
fn rest(idle: u32) {
    if idle > POLLS_BEFORE_REST {
        std::thread::yield_now();
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Measures over `connection`, whose peer runs [`answer`].
pub fn calibrate(
    transport: &mut Transport,
    connection: ConnectionId,
    how: Calibration,
) -> Result<Costs, FabricError> {
    let before = std::mem::take(&mut transport.policy);
    let mut run = CalibrationRun { transport, connection, how };
    let result = run.all();
    run.transport.policy = before;
    result
}

struct CalibrationRun<'a> {
    transport: &'a mut Transport,
    connection: ConnectionId,
    how: Calibration,
}

impl CalibrationRun<'_> {
    fn all(&mut self) -> Result<Costs, FabricError> {
        let mut costs = Costs::empty(self.transport.link().provider().name());
        let largest = self.how.largest;
        for size in SIZES.into_iter().filter(|size| *size <= largest) {
            let parts = [Bytes::from(vec![7; size])];
            // In turn, so that what the machine does besides hits all alike.
            let mut times: [Option<Vec<f64>>; 5] = [const { Some(Vec::new()) }; 5];
            for round in 0..=self.how.rounds {
                for (mechanism, times) in Mechanism::ALL.into_iter().zip(&mut times) {
                    if times.is_none() {
                        continue;
                    }
                    self.force(mechanism, SegmentLayout::Gather);
                    let Some(time) = self.one(mechanism, &parts)? else {
                        *times = None;
                        continue;
                    };
                    // The first one finds cold memory, and makes registrations.
                    times.iter_mut().filter(|_| round > 0).for_each(|times| times.push(time));
                }
            }
            for (mechanism, times) in Mechanism::ALL.into_iter().zip(times) {
                if let Some(cost) = times.and_then(lower_quartile) {
                    costs.add(mechanism, size, cost);
                }
            }
        }
        self.measure_lists(&mut costs)?;
        self.measure_pieces(&mut costs)?;
        Ok(costs)
    }

    fn force(&mut self, mechanism: Mechanism, layout: SegmentLayout) {
        self.transport.policy.forced =
            PolicyOverride { mechanism: Some(mechanism), layout: Some(layout) };
    }

    /// What a round trip takes; `None` if `mechanism` could not carry it.
    fn time_of(
        &mut self,
        mechanism: Mechanism,
        parts: &[Bytes],
    ) -> Result<Option<f64>, FabricError> {
        let mut times = Vec::new();
        for round in 0..=self.how.rounds {
            let Some(time) = self.one(mechanism, parts)? else { return Ok(None) };
            times.extend((round > 0).then_some(time));
        }
        Ok(lower_quartile(times))
    }

    /// One round trip that `mechanism` carried there; `None` if it cannot.
    fn one(&mut self, mechanism: Mechanism, parts: &[Bytes]) -> Result<Option<f64>, FabricError> {
        let before = self.transport.counters().by_mechanism;
        let time = self.round_trip(parts)?;
        let after = self.transport.counters().by_mechanism;
        // What is read counts at the receiver: nothing else was counted here.
        let index = mechanism as usize;
        let by_it = if mechanism == Mechanism::Read {
            before == after
        } else {
            after[index] > before[index]
        };
        Ok(by_it.then_some(time))
    }

    fn round_trip(&mut self, parts: &[Bytes]) -> Result<f64, FabricError> {
        let bulk = parts.iter().cloned().map(BulkPart::Bytes).collect();
        let start = now();
        let mut head = CALIBRATES.to_vec();
        let forced = self.transport.policy.forced.mechanism.unwrap_or(Mechanism::Eager);
        head.push(forced as u8);
        self.transport.send(self.connection, head.into(), bulk)?;
        let mut idle = 0;
        loop {
            self.transport.poll()?;
            idle += 1;
            rest(idle);
            match self.transport.next_event() {
                Some(FabricEvent::Received { .. }) => return Ok(start.elapsed().as_nanos() as f64),
                Some(FabricEvent::Closed { loss, .. }) => return Err(lost(&loss)),
                Some(FabricEvent::Opened { .. }) | None => {}
            }
            if start.elapsed() > TIME_MAX {
                return Err(lost(&Loss::Silent));
            }
        }
    }

    /// The extra cost of a list over the same bytes in one segment.
    fn measure_lists(&mut self, costs: &mut Costs) -> Result<(), FabricError> {
        let mechanism = Mechanism::Write;
        let mut packed = Vec::new();
        let mut gathered = Vec::new();
        for size in SEGMENT_SIZES {
            let parts: Vec<Bytes> = (0..SEGMENTS).map(|_| Bytes::from(vec![7; size])).collect();
            let whole = Bytes::from(vec![7; size * SEGMENTS]);
            self.force(mechanism, SegmentLayout::Gather);
            let one = self.time_of(mechanism, &[whole])?.unwrap_or_default();
            let many = self.time_of(mechanism, &parts)?.unwrap_or_default();
            self.force(mechanism, SegmentLayout::Pack);
            let copied = self.time_of(mechanism, &parts)?.unwrap_or_default();
            gathered.push((many - one).max(0.0) / SEGMENTS as f64);
            packed.push((copied - one).max(0.0));
        }
        gathered.sort_by(f64::total_cmp);
        costs.gather_segment = gathered[gathered.len() / 2];
        let (least, most) = (SEGMENT_SIZES[0] * SEGMENTS, SEGMENT_SIZES[2] * SEGMENTS);
        costs.pack_byte = ((packed[2] - packed[0]) / (most - least) as f64).max(0.0);
        let fixed = packed[0] - costs.pack_byte * least as f64;
        costs.pack_segment = (fixed / SEGMENTS as f64).max(0.0);
        Ok(())
    }

    fn measure_pieces(&mut self, costs: &mut Costs) -> Result<(), FabricError> {
        let bytes = [Bytes::from(vec![7; PIECED.min(self.how.largest)])];
        let mut best = f64::MAX;
        // Pieces of reads are cut by the peer.
        self.force(Mechanism::Write, SegmentLayout::Gather);
        for piece in PIECES {
            self.transport.policy.costs.piece = piece;
            let Some(cost) = self.time_of(Mechanism::Write, &bytes)? else { continue };
            // A smaller piece must earn its further operations.
            if cost < best * 0.97 {
                best = cost;
                costs.piece = piece;
            }
        }
        Ok(())
    }
}

/// What else the machine does only ever adds.
fn lower_quartile(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 4).copied()
}

fn lost(loss: &Loss) -> FabricError {
    FabricError::Failed { call: "the calibration", cause: format!("{loss:?}"), code: 0 }
}

/// Measures a provider against a thread of this process, and stores the table at `path`; a table
/// that is there already is read and not measured anew.
pub fn calibrate_alone(
    link: &EndpointOptions,
    path: Option<&Path>,
    how: Calibration,
) -> Result<Costs, FabricError> {
    if let Some(text) = path.and_then(|path| std::fs::read_to_string(path).ok()) {
        return Costs::from_text(&text);
    }
    let ticket: [u8; TICKET_SIZE] = *b"mdfs calibration";
    let (tell, address) = mpsc::channel();
    let setup = TransportOptions {
        silence: TIME_MAX,
        ..TransportOptions::new(link.clone(), super::Policy::default())
    };
    let theirs = setup.clone();
    let other = spawn(move || {
        let mut transport = Transport::open(theirs)?;
        transport.admit(ticket, None)?;
        let _ = tell.send(transport.address().to_vec());
        answer(&mut transport)
    })?;
    let measured = measure(setup, &address, ticket, how);
    let answered = other.join().unwrap_or(Ok(()));
    let costs = measured?;
    answered?;
    if let Some(path) = path {
        std::fs::write(path, costs.to_text()).map_err(|error| FabricError::Failed {
            call: "storing the table of costs",
            cause: format!("{}: {error}", path.display()),
            code: error.raw_os_error().unwrap_or_default(),
        })?;
    }
    Ok(costs)
}

type Answering = std::thread::JoinHandle<Result<(), FabricError>>;

#[allow(clippy::disallowed_methods, reason = "the machine itself makes threads")]
fn spawn(
    work: impl FnOnce() -> Result<(), FabricError> + Send + 'static,
) -> Result<Answering, FabricError> {
    std::thread::Builder::new().name("mdfs-calibrate".into()).spawn(work).map_err(|error| {
        let code = error.raw_os_error().unwrap_or_default();
        FabricError::Failed { call: "a thread", cause: error.to_string(), code }
    })
}

fn measure(
    setup: TransportOptions,
    address: &mpsc::Receiver<Vec<u8>>,
    ticket: [u8; TICKET_SIZE],
    how: Calibration,
) -> Result<Costs, FabricError> {
    let address = address.recv_timeout(TIME_MAX).map_err(|_| lost(&Loss::Silent))?;
    let mut transport = Transport::open(setup)?;
    let connection = transport.connect(&address, ticket, None)?;
    let start = now();
    loop {
        transport.poll()?;
        match transport.next_event() {
            Some(FabricEvent::Opened { .. }) => break,
            Some(FabricEvent::Closed { loss, .. }) => return Err(lost(&loss)),
            Some(FabricEvent::Received { .. }) | None => {}
        }
        if start.elapsed() > TIME_MAX {
            return Err(lost(&Loss::Silent));
        }
    }
    let costs = calibrate(&mut transport, connection, how);
    transport.close(connection)?;
    // The peer hears of the end.
    let start = now();
    while start.elapsed() < Duration::from_millis(50) {
        transport.poll()?;
    }
    costs
}
