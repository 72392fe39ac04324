//! The bus of a disk node and the disks on it.
//!
//! A command selects its disk, which leaves the bus as soon as it has to do with its surface, and
//! comes back when it has something to give or to say (thesis 2.1.2, Fig. 2.4); so the disks work
//! at the same time and share the bus. Data crosses the bus in pieces: while the controller moves
//! one, the processor copies the next, or sends the last (Fig. 2.5). A disk takes and gives one
//! buffer of data at a time, and has one command at a time; further ones wait for it in order.

use std::collections::VecDeque;

use super::Numbers;
use super::mechanics::Mechanics;

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// Data comes from the disk.
    Read,
    /// Data goes to the disk, and is on its surface when this is done.
    Write,
    /// Nothing moves: a command and its status.
    Sync,
}

/// One command, and the time of the processor that goes with it.
#[derive(Clone, Copy, Debug)]
pub struct ScsiCommand<T> {
    /// Given back when it is done.
    pub token: T,
    /// Which disk of the bus.
    pub disk: usize,
    /// What to do.
    pub direction: TransferDirection,
    /// From where on the disk.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// From when on the processor sets the command up and copies what is written.
    pub from_ns: u64,
    /// When it has copied all.
    pub copied_ns: u64,
    /// What it needs to send each piece that was read.
    pub send_piece_ns: u64,
    /// Factor by which the disk is slower.
    pub slowness: u64,
}

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandPhase {
    /// Waits for the processor.
    Set,
    /// Waits for the bus, to say this.
    Wants(BusPhase),
    Says(BusPhase),
    /// What was read is at hand as soon as the processor can send it; the rest is still on the bus.
    Gives,
    /// Moves arm and surface.
    Moves,
}

/// What is said on the bus at one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BusPhase {
    /// Selection and command; for a write with the first data.
    Command,
    /// The disk comes back for data.
    Data,
    /// The disk comes back with its status.
    Status,
}

#[derive(Clone, Debug)]
struct ActiveCommand<T> {
    operation: ScsiCommand<T>,
    phase: CommandPhase,
    /// Bytes that have been on the surface and on the bus.
    moved: u64,
    /// The disk may move from then on, if not earlier.
    ready_ns: u64,
}

#[derive(Clone, Debug)]
struct ScsiStation<T> {
    mechanics: Mechanics,
    active: Option<ActiveCommand<T>>,
    queue: VecDeque<ScsiCommand<T>>,
    moved_ns: u64,
}

/// A bus with its disks. Its events are for their owner to keep: each call adds to `due` when which
/// disk shall [`advance`](Self::advance).
#[derive(Clone, Debug)]
pub struct Bus<T> {
    numbers: Numbers,
    stations: Vec<ScsiStation<T>>,
    occupied: bool,
    /// Disks that wait for the bus.
    waiting: VecDeque<usize>,
    occupied_ns: u64,
}

/// When a disk is to advance.
pub type Due = (u64, usize);

impl<T: Copy> Bus<T> {
    /// A bus without disks.
    pub fn new(numbers: &Numbers) -> Self {
        Self {
            numbers: numbers.clone(),
            stations: Vec::new(),
            occupied: false,
            waiting: VecDeque::new(),
            occupied_ns: 0,
        }
    }

    /// Connects one more disk; its number.
    pub fn connect(&mut self) -> usize {
        self.stations.push(ScsiStation {
            mechanics: Mechanics::new(&self.numbers.disk),
            active: None,
            queue: VecDeque::new(),
            moved_ns: 0,
        });
        self.stations.len() - 1
    }

    /// How long the bus has been held so far.
    pub fn occupied_ns(&self) -> u64 {
        self.occupied_ns
    }

    /// How long the arms and surfaces of each disk have been at work so far.
    pub fn moved_ns(&self) -> impl Iterator<Item = u64> {
        self.stations.iter().map(|station| station.moved_ns)
    }

    /// Takes a command, after those that its disk has already.
    pub fn start(&mut self, operation: ScsiCommand<T>, due: &mut Vec<Due>) {
        self.stations[operation.disk].queue.push_back(operation);
        self.begin_next(operation.from_ns, operation.disk, due);
    }

    fn begin_next(&mut self, now_ns: u64, disk: usize, due: &mut Vec<Due>) {
        let station = &mut self.stations[disk];
        if station.active.is_some() {
            return;
        }
        let Some(operation) = station.queue.pop_front() else { return };
        station.active = Some(ActiveCommand {
            operation,
            phase: CommandPhase::Set,
            moved: 0,
            ready_ns: operation.from_ns,
        });
        due.push((operation.from_ns.max(now_ns), disk));
    }

    /// The time of a disk has come; the token of the command that is done by that.
    pub fn advance(&mut self, now_ns: u64, disk: usize, due: &mut Vec<Due>) -> Option<T> {
        let phase = self.stations[disk].active.as_ref()?.phase;
        match phase {
            CommandPhase::Set => self.want(now_ns, disk, BusPhase::Command, due),
            CommandPhase::Wants(_) => {}
            CommandPhase::Says(word) => return self.said(now_ns, disk, word, due),
            CommandPhase::Gives => {
                self.release(now_ns, due);
                self.stations[disk].active = None;
                self.begin_next(now_ns, disk, due);
            }
            CommandPhase::Moves => {
                let active = self.stations[disk].active.as_ref()?;
                let all = active.moved == active.operation.bytes;
                let writes = active.operation.direction == TransferDirection::Write;
                let word = if writes && all { BusPhase::Status } else { BusPhase::Data };
                self.want(now_ns, disk, word, due);
            }
        }
        None
    }

    /// A disk, or the controller for it, wants the bus.
    fn want(&mut self, now_ns: u64, disk: usize, word: BusPhase, due: &mut Vec<Due>) {
        if let Some(active) = &mut self.stations[disk].active {
            active.phase = CommandPhase::Wants(word);
        }
        self.waiting.push_back(disk);
        self.grant(now_ns, due);
    }

    fn release(&mut self, now_ns: u64, due: &mut Vec<Due>) {
        self.occupied = false;
        self.grant(now_ns, due);
    }

    /// Grants the bus to the command that has waited longest, if it is free.
    fn grant(&mut self, now_ns: u64, due: &mut Vec<Due>) {
        if self.occupied {
            return;
        }
        let Some(disk) = self.waiting.pop_front() else { return };
        let numbers = &self.numbers;
        let start_ns = now_ns + us_ns(numbers.bus.arbitration.value);
        let command_ns = us_ns(numbers.bus.command.value);
        let come_back_ns = ms_ns(numbers.disk.reselect.value);
        let completion_ns = ms_ns(numbers.disk.completion.value);
        let Some(active) = &mut self.stations[disk].active else { return };
        let CommandPhase::Wants(word) = active.phase else { return };
        let direction = active.operation.direction;
        let pieces = TransferPieces::new(active.load(numbers), numbers);
        let end_ns = match (word, direction) {
            (BusPhase::Command, TransferDirection::Write) => {
                active.ready_ns = start_ns + command_ns;
                pieces.written_ns(active, start_ns + command_ns)
            }
            (BusPhase::Command, TransferDirection::Read) => start_ns + command_ns,
            (BusPhase::Command, TransferDirection::Sync) => start_ns + command_ns + completion_ns,
            (BusPhase::Data, TransferDirection::Write) => {
                let end_ns = pieces.written_ns(active, start_ns + come_back_ns);
                active.ready_ns = end_ns;
                end_ns
            }
            (BusPhase::Data, _) => pieces.at_hand_ns(active, start_ns + come_back_ns),
            (BusPhase::Status, _) => start_ns + come_back_ns + completion_ns,
        };
        active.phase = CommandPhase::Says(word);
        self.occupied = true;
        self.occupied_ns += end_ns - now_ns;
        due.push((end_ns, disk));
    }

    /// A disk has said what it had to say.
    fn said(&mut self, now_ns: u64, disk: usize, word: BusPhase, due: &mut Vec<Due>) -> Option<T> {
        let active = self.stations[disk].active.as_mut()?;
        let ScsiCommand { token, direction, bytes, send_piece_ns, .. } = active.operation;
        let ends = match (word, direction) {
            (BusPhase::Command, TransferDirection::Sync) | (BusPhase::Status, _) => true,
            (BusPhase::Data, TransferDirection::Read) if active.moved == bytes => {
                // The rest of the data is still crossing; the processor can begin.
                let pieces = TransferPieces::new(active.load(&self.numbers), &self.numbers);
                let completion_ns = ms_ns(self.numbers.disk.completion.value);
                let rest_ns = pieces.rest_ns(send_piece_ns) + completion_ns;
                active.phase = CommandPhase::Gives;
                self.occupied_ns += rest_ns;
                due.push((now_ns + rest_ns, disk));
                return Some(token);
            }
            _ => false,
        };
        if ends {
            self.stations[disk].active = None;
        } else {
            self.move_surface(now_ns, disk, due);
        }
        self.release(now_ns, due);
        if ends {
            self.begin_next(now_ns, disk, due);
        }
        ends.then_some(token)
    }

    /// The disk is off the bus: it seeks, waits for its sector and moves a buffer.
    fn move_surface(&mut self, now_ns: u64, disk: usize, due: &mut Vec<Due>) {
        let numbers = &self.numbers.disk;
        let station = &mut self.stations[disk];
        let Some(active) = &mut station.active else { return };
        let ScsiCommand { direction, offset, bytes, slowness, .. } = active.operation;
        let off_ns = now_ns + ms_ns(numbers.disconnect.value);
        let at = offset + active.moved;
        let load = (bytes - active.moved).min(numbers.buffer.value as u64);
        let (from_ns, after_ns) = match direction {
            // The arm moves while the data comes.
            TransferDirection::Write => {
                (active.ready_ns + ms_ns(numbers.write_overhead.value), off_ns)
            }
            _ => (off_ns + ms_ns(numbers.read_overhead.value), off_ns),
        };
        let there_ns = station.mechanics.seek(from_ns, at).max(after_ns);
        let ready_ns = station.mechanics.under_head_ns(there_ns, at);
        let end_ns = ready_ns + station.mechanics.media_ns(at, load);
        active.moved += load;
        active.phase = CommandPhase::Moves;
        let moving_ns = (end_ns - now_ns) * slowness;
        station.moved_ns += moving_ns;
        due.push((now_ns + moving_ns, disk));
    }
}

impl<T> ActiveCommand<T> {
    /// Bytes that cross the bus next: of a read what was on the surface last, of a write what will
    /// be.
    fn load(&self, numbers: &Numbers) -> u64 {
        let buffer = numbers.disk.buffer.value as u64;
        let ScsiCommand { direction, bytes, .. } = self.operation;
        match direction {
            TransferDirection::Write => (bytes - self.moved).min(buffer),
            // All parts before it were full.
            _ => self.moved - self.moved.saturating_sub(1) / buffer * buffer,
        }
    }
}

/// A buffer of data in transfer between disk and memory, cut into transfers of the controller.
#[derive(Clone, Copy, Debug)]
struct TransferPieces {
    bytes: u64,
    count: u64,
    each_ns: u64,
}

impl TransferPieces {
    fn new(bytes: u64, numbers: &Numbers) -> Self {
        let piece = numbers.disk_node.dma.value;
        let each_ns = (piece * 1000.0 / numbers.bus.rate.value) as u64;
        Self { bytes, count: bytes.div_ceil(piece as u64), each_ns }
    }

    /// When all of it is at the disk: a piece crosses while the next is copied (Fig. 2.5b).
    fn written_ns<T>(self, active: &ActiveCommand<T>, start_ns: u64) -> u64 {
        if self.count == 0 {
            return start_ns;
        }
        let ScsiCommand { bytes, from_ns, copied_ns, .. } = active.operation;
        let copying_ns = u128::from(copied_ns - from_ns);
        let share = |part: u64| (copying_ns * u128::from(part) / u128::from(bytes)) as u64;
        let first_ns = from_ns + share(active.moved + self.bytes / self.count);
        let last_ns = from_ns + share(active.moved + self.bytes);
        let crossed_ns = start_ns.max(first_ns) + self.count * self.each_ns;
        crossed_ns.max(last_ns + self.each_ns)
    }

    /// When the processor may begin to send, so that it never waits for a piece: a piece crosses
    /// while the one before is sent (Fig. 2.5a).
    fn at_hand_ns<T>(self, active: &ActiveCommand<T>, start_ns: u64) -> u64 {
        let last = active.moved == active.operation.bytes;
        let sent_meanwhile_ns =
            if last { self.count.saturating_sub(1) * active.operation.send_piece_ns } else { 0 };
        let crossed_ns = start_ns + self.count * self.each_ns;
        crossed_ns.saturating_sub(sent_meanwhile_ns).max(start_ns + self.each_ns)
    }

    /// How long the bus is held after that: whichever of the two is slower, the last piece then
    /// goes over the bus as the one before is sent.
    fn rest_ns(self, send_piece_ns: u64) -> u64 {
        self.count.saturating_sub(1) * send_piece_ns
    }
}

fn ms_ns(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

fn us_ns(us: f64) -> u64 {
    (us * 1e3) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use runtime::seed::Rng;

    use super::*;
    use crate::jmachine::Profile;

    const STRIPE: u64 = 64 << 10;

    fn numbers(changes: &[(&str, f64)]) -> Numbers {
        let change = |profile: Profile, (name, value): &(&str, f64)| {
            profile.with(name, *value).unwrap_or_else(|| panic!("{name}"))
        };
        changes.iter().fold(Profile::ideal(), change).numbers().clone()
    }

    /// A disk whose mechanics take no time worth a look.
    const NO_MECHANICS: [(&str, f64); 5] = [
        ("disk.seek", 0.0),
        ("disk.seek_root", 0.0),
        ("disk.rotation", 1e9),
        ("disk.media_outer", 1e6),
        ("disk.media_inner", 1e6),
    ];

    /// No time but that of data on the bus.
    const NO_OVERHEADS: [(&str, f64); 7] = [
        ("disk.read_overhead", 0.0),
        ("disk.write_overhead", 0.0),
        ("disk.completion", 0.0),
        ("disk.disconnect", 0.0),
        ("disk.reselect", 0.0),
        ("bus.arbitration", 0.0),
        ("bus.command", 0.0),
    ];

    fn operation(
        token: u32,
        disk: usize,
        direction: TransferDirection,
        offset: u64,
    ) -> ScsiCommand<u32> {
        ScsiCommand {
            token,
            disk,
            direction,
            offset,
            bytes: STRIPE,
            from_ns: 0,
            copied_ns: 0,
            send_piece_ns: 0,
            slowness: 1,
        }
    }

    /// A bus, its events, and when what was done.
    struct BusRun {
        bus: Bus<u32>,
        due: Vec<Due>,
        now_ns: u64,
        done: BTreeMap<u32, u64>,
    }

    impl BusRun {
        fn new(numbers: &Numbers, disks: usize) -> Self {
            let mut bus = Bus::new(numbers);
            (0..disks).for_each(|disk| assert_eq!(bus.connect(), disk));
            Self { bus, due: Vec::new(), now_ns: 0, done: BTreeMap::new() }
        }

        fn start(&mut self, operation: ScsiCommand<u32>) {
            let from_ns = operation.from_ns.max(self.now_ns);
            let copied_ns = operation.copied_ns.max(from_ns);
            self.bus.start(ScsiCommand { from_ns, copied_ns, ..operation }, &mut self.due);
        }

        /// Lets the next thing happen; which command is done by that. False if nothing is to come.
        fn step(&mut self) -> bool {
            let next = self.due.iter().enumerate().min_by_key(|(_, due)| **due);
            let Some((index, &(now_ns, disk))) = next else { return false };
            self.due.remove(index);
            assert!(now_ns >= self.now_ns, "time goes back");
            self.now_ns = now_ns;
            let done = self.bus.advance(now_ns, disk, &mut self.due);
            if let Some(token) = done {
                assert_eq!(self.done.insert(token, now_ns), None, "{token} is done twice");
            }
            true
        }

        /// When the last command is done.
        fn end(&mut self) -> u64 {
            while self.step() {}
            self.done.values().copied().max().unwrap_or_default()
        }
    }

    fn ms(ns: u64) -> f64 {
        ns as f64 / 1e6
    }

    #[test]
    fn copies_and_transfers_of_a_write_overlap_piece_by_piece() {
        let numbers = numbers(&[NO_MECHANICS.as_slice(), NO_OVERHEADS.as_slice()].concat());
        let (pieces, transfer_ns) = (128, 102_400);
        for copy_ns in [0, 50_000, 102_400, 256_000] {
            let mut run = BusRun::new(&numbers, 1);
            let copied_ns = pieces * copy_ns;
            run.start(ScsiCommand { copied_ns, ..operation(0, 0, TransferDirection::Write, 0) });
            // Fig. 2.5b: the first copy, then the slower of the two each time, then a transfer.
            let expected_ns = copy_ns + (pieces - 1) * transfer_ns.max(copy_ns) + transfer_ns;
            assert!(run.end().abs_diff(expected_ns) < 1000, "{copy_ns}");
        }
    }

    #[test]
    fn transfers_and_sends_of_a_read_overlap_piece_by_piece() {
        let numbers = numbers(&[NO_MECHANICS.as_slice(), NO_OVERHEADS.as_slice()].concat());
        let (pieces, transfer_ns) = (128, 102_400);
        for send_piece_ns in [0, 50_000, 102_400, 256_000] {
            let mut run = BusRun::new(&numbers, 1);
            run.start(ScsiCommand { send_piece_ns, ..operation(0, 0, TransferDirection::Read, 0) });
            let sent_ns = run.end() + pieces * send_piece_ns;
            // Fig. 2.5a: the first transfer, then the slower of the two each time, then a send.
            let slower_ns = transfer_ns.max(send_piece_ns);
            let expected_ns = transfer_ns + (pieces - 1) * slower_ns + send_piece_ns;
            assert!(sent_ns.abs_diff(expected_ns) < 1000, "{send_piece_ns}: {sent_ns}");
        }
    }

    /// The mean time of one stripe after the other at random places of one disk, in milliseconds.
    fn mean_ms(numbers: &Numbers, direction: TransferDirection) -> f64 {
        let mut run = BusRun::new(numbers, 1);
        let mut rng = Rng::new(3);
        let stripes = numbers.disk.capacity.value as u64 / STRIPE;
        let count = 5_000;
        for token in 0..count {
            run.start(operation(token, 0, direction, rng.below(stripes) * STRIPE));
            run.end();
        }
        ms(run.now_ns) / f64::from(count)
    }

    #[test]
    fn one_stripe_at_a_random_place_takes_71_ms_and_the_overheads_at_1_3_megabytes_a_second() {
        let media = [("disk.media_outer", 1.3), ("disk.media_inner", 1.3)];
        let moving_ms = 50.4 + 12.6 + 8.33;
        // The data crosses before the surface moves, but while the arm does: 12.6 of 13.1 ms.
        let write_ms = mean_ms(&numbers(&media), TransferDirection::Write);
        let overheads_ms = 0.824 + 0.166 + 0.162 + 0.055 + 0.06;
        let more_ms = write_ms - moving_ms - overheads_ms;
        assert!((0.0..3.5).contains(&more_ms), "{write_ms} ms");
        let read_ms = mean_ms(&numbers(&media), TransferDirection::Read);
        let crossing_ms = 65_536.0 / 5e3;
        let overheads_ms = 0.558 + 0.166 + 0.162 + 0.055 + 0.06;
        let more_ms = read_ms - moving_ms - crossing_ms - overheads_ms;
        assert!(more_ms.abs() < 0.5, "{read_ms} ms");
    }

    /// Keeps `disks` disks busy with stripes at random places; megabytes per second.
    fn rate(numbers: &Numbers, disks: usize, direction: TransferDirection) -> f64 {
        let mut run = BusRun::new(numbers, disks);
        let mut rng = Rng::new(4);
        let stripes = numbers.disk.capacity.value as u64 / STRIPE;
        let count = 1_000;
        for token in 0..count {
            let disk = token as usize % disks;
            run.start(operation(token, disk, direction, rng.below(stripes) * STRIPE));
        }
        let end_ns = run.end();
        assert_eq!(run.done.len(), count as usize);
        f64::from(count) * STRIPE as f64 * 1000.0 / end_ns as f64
    }

    #[test]
    fn four_disks_work_at_the_same_time() {
        for direction in [TransferDirection::Read, TransferDirection::Write] {
            let numbers = numbers(&[]);
            let (one, four) = (rate(&numbers, 1, direction), rate(&numbers, 4, direction));
            assert!((3.4..4.01).contains(&(four / one)), "{direction:?}: {one} and {four} MB/s");
        }
    }

    #[test]
    fn the_bus_gives_what_the_controller_moves_and_no_more() {
        for direction in [TransferDirection::Read, TransferDirection::Write] {
            let rate = rate(&numbers(&NO_MECHANICS), 4, direction);
            assert!((4.5..=5.0).contains(&rate), "{direction:?}: {rate} MB/s");
        }
    }

    #[test]
    fn a_disk_does_its_commands_in_order_and_one_at_a_time() {
        let mut run = BusRun::new(&numbers(&[]), 2);
        for token in 0..20 {
            let direction =
                [TransferDirection::Read, TransferDirection::Write, TransferDirection::Sync]
                    [token as usize % 3];
            let offset = u64::from(token * 7 % 20) * STRIPE;
            run.start(operation(token, token as usize % 2, direction, offset));
        }
        run.end();
        for disk in 0..2 {
            let ends: Vec<_> = (0..20).filter(|t| t % 2 == disk).map(|t| run.done[&t]).collect();
            assert!(ends.is_sorted(), "{ends:?}");
        }
        assert!(run.bus.moved_ns().all(|moved_ns| moved_ns > 0 && moved_ns < run.now_ns));
        assert!(run.bus.occupied_ns() < run.now_ns);
    }

    #[test]
    fn what_is_longer_than_a_buffer_goes_in_parts() {
        for direction in [TransferDirection::Read, TransferDirection::Write] {
            let mut run = BusRun::new(&numbers(&[]), 1);
            run.start(ScsiCommand { bytes: 3 * STRIPE + 4096, ..operation(0, 0, direction, 0) });
            let end_ms = ms(run.end());
            // The surface and the bus take turns; after each turn on the bus the sector is awaited.
            let least_ms = (3.0 * 65.536 + 4.096) * (1.0 / 1.6 + 1.0 / 5.0);
            assert!((least_ms..least_ms + 5.0 * 17.0).contains(&end_ms), "{end_ms} ms");
        }
    }
}
