//! A node by itself: a processor that serves two queues of messages and a background.
//!
//! Messages come into a queue of bounded size per priority; the one at the head is dispatched and
//! runs until it ends or waits for a value. A process that waited goes on by a message of its
//! own, in the queue like any other. Priority 1 interrupts priority 0, both interrupt the
//! background.

use std::collections::{BTreeMap, VecDeque};

use super::levels::{Levels, PriorityLevel};
use super::{NodeCosts, Numbers};

/// One thing that a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerAction {
    /// Computes, in cycles.
    Compute(u32),
    /// Sends a message, in bytes.
    Send(u32),
    /// Needs a value that is not there; [`Mdp::wake`] says when it is.
    Wait,
}

/// A message, and what its handler will do.
#[derive(Clone, Debug)]
pub struct MdpMessage {
    /// Names it; no two that are in the node at the same time may have the same.
    pub id: u64,
    /// Data that it carries.
    pub bytes: u32,
    /// What is done for it, in this order.
    pub acts: VecDeque<HandlerAction>,
}

/// The queue has no room: the message stays in the network and holds its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of {level:?} has {free} words free, {needed} are needed; offer it again later")]
pub struct QueueFull {
    /// Which queue.
    pub level: PriorityLevel,
    /// What it could take.
    pub free: u32,
    /// What the message takes.
    pub needed: u32,
}

/// What has happened at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MdpEvent {
    /// The handler of this message begins.
    Dispatched(u64),
    /// It waits for a value.
    Suspended(u64),
    /// It has ended.
    Ended(u64),
}

/// What stands in a queue.
#[derive(Debug)]
struct MdpQueueEntry {
    words: u32,
    process: MdpProcess,
    /// It waited for a value and has it now.
    resumed: bool,
}

#[derive(Debug)]
struct MdpProcess {
    id: u64,
    level: PriorityLevel,
    bytes: u32,
    acts: VecDeque<HandlerAction>,
}

/// What a level is doing.
#[derive(Debug)]
enum LevelState {
    /// Dispatches, receives and acts.
    Acting(MdpProcess),
    /// Saves a process that waits.
    Saving(MdpProcess),
}

/// A node.
#[derive(Debug)]
pub struct Mdp {
    costs: NodeCosts,
    row: u32,
    envelope: u32,
    queue_words: u32,
    levels: Levels,
    queues: [VecDeque<MdpQueueEntry>; 3],
    used_words: [u32; 3],
    doing: [Option<LevelState>; 3],
    waiting: BTreeMap<u64, MdpProcess>,
}

impl Mdp {
    /// An idle node.
    pub fn new(numbers: &Numbers) -> Self {
        Self {
            costs: NodeCosts::new(numbers),
            row: numbers.node.row.value as u32,
            envelope: numbers.node.envelope.value as u32,
            queue_words: numbers.node.queue.value as u32,
            levels: Levels::default(),
            queues: Default::default(),
            used_words: [0; 3],
            doing: Default::default(),
            waiting: BTreeMap::new(),
        }
    }

    /// A message has come, or work for the background, which has no limit.
    pub fn arrive(
        &mut self,
        now_ns: u64,
        level: PriorityLevel,
        message: MdpMessage,
    ) -> Result<(), QueueFull> {
        let MdpMessage { id, bytes, acts } = message;
        let words = self.envelope + NodeCosts::words(u64::from(bytes)) as u32;
        let process = MdpProcess { id, level, bytes, acts };
        self.enqueue(MdpQueueEntry { words, process, resumed: false })?;
        self.begin_next(now_ns, level);
        Ok(())
    }

    /// The value that the process of message `id` waits for has come. False if it does not wait; it
    /// waits on if its queue is full.
    pub fn wake(&mut self, now_ns: u64, id: u64) -> Result<bool, QueueFull> {
        let Some(process) = self.waiting.get(&id) else { return Ok(false) };
        let level = process.level;
        self.check_room(level, self.row)?;
        if let Some(process) = self.waiting.remove(&id) {
            self.enqueue(MdpQueueEntry { words: self.row, process, resumed: true })?;
        }
        self.begin_next(now_ns, level);
        Ok(true)
    }

    /// When something will next happen by itself.
    pub fn next_ns(&self) -> Option<u64> {
        let busy =
            PriorityLevel::ALL.into_iter().filter(|&level| self.doing[level as usize].is_some());
        busy.map(|level| self.levels.until_ns(level)).min()
    }

    /// Lets everything happen until `now_ns`; in order, with the times.
    pub fn advance(&mut self, now_ns: u64) -> Vec<(u64, MdpEvent)> {
        let mut happened = Vec::new();
        while let Some(at_ns) = self.next_ns().filter(|&at_ns| at_ns <= now_ns) {
            let due = PriorityLevel::ALL.into_iter().find(|&level| {
                self.doing[level as usize].is_some() && self.levels.until_ns(level) == at_ns
            });
            if let Some(level) = due {
                self.go_on(at_ns, level, &mut happened);
            }
        }
        happened
    }

    /// What `level` has worked so far, in nanoseconds.
    pub fn worked_ns(&self, level: PriorityLevel) -> u64 {
        self.levels.worked_ns(level)
    }

    /// Words that the queue of `level` still takes.
    pub fn free_words(&self, level: PriorityLevel) -> u32 {
        match level {
            PriorityLevel::Background => u32::MAX,
            _ => self.queue_words - self.used_words[level as usize],
        }
    }

    /// What a message takes in its queue: whole rows.
    fn rows(&self, words: u32) -> u32 {
        words.next_multiple_of(self.row)
    }

    fn check_room(&self, level: PriorityLevel, words: u32) -> Result<(), QueueFull> {
        let (free, needed) = (self.free_words(level), self.rows(words));
        if needed <= free { Ok(()) } else { Err(QueueFull { level, free, needed }) }
    }

    fn enqueue(&mut self, queued: MdpQueueEntry) -> Result<(), QueueFull> {
        let level = queued.process.level;
        self.check_room(level, queued.words)?;
        self.used_words[level as usize] += self.rows(queued.words);
        self.queues[level as usize].push_back(queued);
        Ok(())
    }

    /// Dispatches the head of a queue, if its level has nothing to do.
    fn begin_next(&mut self, now_ns: u64, level: PriorityLevel) {
        if self.doing[level as usize].is_some() {
            return;
        }
        let Some(head) = self.queues[level as usize].front() else { return };
        let bytes = u64::from(head.process.bytes);
        let cost_ns = match (head.resumed, level) {
            (true, _) => self.costs.resume_ns(),
            (false, PriorityLevel::Background) => 0,
            (false, _) => self.costs.receive_ns(bytes),
        };
        let (id, acts) = (head.process.id, head.process.acts.clone());
        let process = MdpProcess { id, level, bytes: head.process.bytes, acts };
        self.levels.charge(level, now_ns, cost_ns);
        self.doing[level as usize] = Some(LevelState::Acting(process));
    }

    /// What `level` was doing is done.
    fn go_on(&mut self, now_ns: u64, level: PriorityLevel, happened: &mut Vec<(u64, MdpEvent)>) {
        match self.doing[level as usize].take() {
            None => {}
            Some(LevelState::Saving(process)) => {
                happened.push((now_ns, MdpEvent::Suspended(process.id)));
                self.waiting.insert(process.id, process);
                self.leave(now_ns, level);
            }
            Some(LevelState::Acting(mut process)) => {
                self.tell_dispatch(now_ns, level, &process, happened);
                let Some(act) = process.acts.pop_front() else {
                    happened.push((now_ns, MdpEvent::Ended(process.id)));
                    return self.leave(now_ns, level);
                };
                let (cost_ns, next) = match act {
                    HandlerAction::Compute(cycles) => {
                        (self.costs.cycles_ns(f64::from(cycles)), LevelState::Acting(process))
                    }
                    HandlerAction::Send(bytes) => {
                        (self.costs.send_ns(u64::from(bytes)), LevelState::Acting(process))
                    }
                    HandlerAction::Wait => (self.costs.suspend_ns(), LevelState::Saving(process)),
                };
                self.levels.charge(level, now_ns, cost_ns);
                self.doing[level as usize] = Some(next);
            }
        }
    }

    /// Reports a handler that begins: its message has been taken in and nothing done yet.
    fn tell_dispatch(
        &self,
        now_ns: u64,
        level: PriorityLevel,
        process: &MdpProcess,
        happened: &mut Vec<(u64, MdpEvent)>,
    ) {
        let head = self.queues[level as usize].front();
        let untouched =
            head.is_some_and(|head| !head.resumed && head.process.acts.len() == process.acts.len());
        if untouched {
            happened.push((now_ns, MdpEvent::Dispatched(process.id)));
        }
    }

    /// The message at the head of the queue is removed.
    fn leave(&mut self, now_ns: u64, level: PriorityLevel) {
        if let Some(head) = self.queues[level as usize].pop_front() {
            self.used_words[level as usize] -= self.rows(head.words);
        }
        self.begin_next(now_ns, level);
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;

    use super::*;
    use crate::jmachine::Profile;

    fn node() -> Mdp {
        Mdp::new(Profile::ideal().numbers())
    }

    fn message(id: u64, bytes: u32, acts: impl Into<VecDeque<HandlerAction>>) -> MdpMessage {
        MdpMessage { id, bytes, acts: acts.into() }
    }

    #[test]
    fn a_message_pays_dispatch_its_words_and_what_its_handler_does() {
        let mut node = node();
        let acts = [HandlerAction::Compute(50), HandlerAction::Send(8)];
        node.arrive(1000, PriorityLevel::P0, message(1, 16, acts)).unwrap();
        let received_ns = 1000 + 100 * (4 + 4 * 8);
        let ended_ns = received_ns + 100 * (50 + 7 + (7 + 2) * 20);
        let happened = node.advance(u64::MAX);
        let expected = [(received_ns, MdpEvent::Dispatched(1)), (ended_ns, MdpEvent::Ended(1))];
        assert_eq!(happened, expected);
        assert_eq!(node.next_ns(), None);
    }

    #[test]
    fn a_process_that_waits_lets_others_run_and_pays_for_both_ways() {
        let mut node = node();
        node.arrive(
            0,
            PriorityLevel::P0,
            message(1, 0, [HandlerAction::Wait, HandlerAction::Compute(10)]),
        )
        .unwrap();
        node.arrive(0, PriorityLevel::P0, message(2, 0, [HandlerAction::Compute(100)])).unwrap();
        let mut happened = node.advance(100_000);
        assert!(!node.wake(100_000, 2).unwrap(), "it has ended");
        assert!(node.wake(100_000, 1).unwrap());
        happened.extend(node.advance(u64::MAX));
        let expected = [
            (400, MdpEvent::Dispatched(1)),
            (400 + 4000, MdpEvent::Suspended(1)),
            (4400 + 400, MdpEvent::Dispatched(2)),
            (4800 + 10_000, MdpEvent::Ended(2)),
            (100_000 + 4000 + 1000, MdpEvent::Ended(1)),
        ];
        assert_eq!(happened, expected);
    }

    #[test]
    fn a_full_queue_refuses_and_takes_again_when_its_head_is_done() {
        let mut node = node();
        // 7 words of envelope and 25 of data: 32 words, 16 times.
        for id in 0..16 {
            node.arrive(0, PriorityLevel::P0, message(id, 100, [])).unwrap();
        }
        let refused = node.arrive(0, PriorityLevel::P0, message(16, 0, [])).unwrap_err();
        assert_eq!(refused, QueueFull { level: PriorityLevel::P0, free: 0, needed: 8 });
        node.arrive(0, PriorityLevel::P1, message(17, 100, [])).unwrap();
        node.advance(100 * (4 + 25 * 8) * 2);
        assert_eq!(node.free_words(PriorityLevel::P0), 32);
        node.arrive(0, PriorityLevel::P0, message(16, 0, [])).unwrap();
    }

    /// Lets messages come at random into both queues, with handlers of fixed length; how long
    /// those of each priority are in the node, on average, in nanoseconds.
    fn mean_stay_ns(rates_per_ns: [f64; 2], cycles: [u32; 2], count: u64) -> [f64; 2] {
        let mut numbers = Profile::ideal().numbers().clone();
        numbers.node.queue.value = 1e9;
        let mut node = Mdp::new(&numbers);
        let mut rng = Rng::new(5);
        let mut uniform = || (rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (mut came, mut sums, mut ended) = (BTreeMap::new(), [0.0; 2], [0.0; 2]);
        let mut next_ns = rates_per_ns.map(|rate| if rate > 0.0 { 0.0 } else { f64::INFINITY });
        let mut tally = |happened: Vec<(u64, MdpEvent)>, came: &mut BTreeMap<u64, u64>| {
            for (at_ns, what) in happened {
                if let MdpEvent::Ended(id) = what {
                    let stay_ns = at_ns - came.remove(&id).unwrap();
                    sums[(id % 2) as usize] += stay_ns as f64;
                    ended[(id % 2) as usize] += 1.0;
                }
            }
        };
        for id in 0..count {
            let class = usize::from(next_ns[1] < next_ns[0]);
            let at_ns = next_ns[class];
            next_ns[class] -= (1.0 - uniform()).ln() / rates_per_ns[class];
            tally(node.advance(at_ns as u64), &mut came);
            let id = 2 * id + class as u64;
            came.insert(id, at_ns as u64);
            let level = [PriorityLevel::P1, PriorityLevel::P0][class];
            node.arrive(
                at_ns as u64,
                level,
                message(id, 0, [HandlerAction::Compute(cycles[class])]),
            )
            .unwrap();
        }
        tally(node.advance(u64::MAX), &mut came);
        [sums[0] / ended[0], sums[1] / ended[1]]
    }

    #[test]
    fn messages_wait_as_long_as_queueing_theory_says() {
        // One queue with service time s and load r: s + r s / 2 (1 - r) (Pollaczek, Khinchine).
        for load in [0.3, 0.6, 0.8] {
            let service_ns = 100.0 * (4.0 + 96.0);
            let [_, stay_ns] = mean_stay_ns([0.0, load / service_ns], [0, 96], 200_000);
            let theory_ns = service_ns * (1.0 + load / (2.0 * (1.0 - load)));
            let error = stay_ns / theory_ns - 1.0;
            assert!(error.abs() < 0.02, "at {load}: {stay_ns}, theory {theory_ns}");
        }
    }

    #[test]
    fn a_lower_priority_waits_as_long_as_theory_says_for_a_server_that_is_interrupted() {
        let [s1, s0] = [100.0 * 54.0, 100.0 * 204.0];
        let [r1, r0] = [0.3, 0.4];
        let rates = [r1 / s1, r0 / s0];
        let stay_ns = mean_stay_ns(rates, [50, 200], 300_000);
        let first = s1 + r1 * s1 / (2.0 * (1.0 - r1));
        // Preemptive resume: (s0 (1 - r1 - r0) + R) / (1 - r1)(1 - r1 - r0), R the mean rest.
        let rest = f64::midpoint(r1 * s1, r0 * s0);
        let second = s0 / (1.0 - r1) + rest / ((1.0 - r1) * (1.0 - r1 - r0));
        for (stay_ns, theory_ns) in stay_ns.into_iter().zip([first, second]) {
            let error = stay_ns / theory_ns - 1.0;
            assert!(error.abs() < 0.03, "{stay_ns}, theory {theory_ns}");
        }
    }

    #[test]
    fn the_background_gets_what_the_messages_leave() {
        let mut node = node();
        node.arrive(0, PriorityLevel::Background, message(0, 0, [HandlerAction::Compute(10_000)]))
            .unwrap();
        for id in 1..=10 {
            let at_ns = id * 100_000;
            node.advance(at_ns);
            let level = if id % 2 == 0 { PriorityLevel::P0 } else { PriorityLevel::P1 };
            node.arrive(at_ns, level, message(id, 0, [HandlerAction::Compute(496)])).unwrap();
        }
        let happened = node.advance(u64::MAX);
        // Ten messages of 50 us came before the 1000 us of the background were over.
        assert_eq!(happened.last(), Some(&(1_500_000, MdpEvent::Ended(0))));
        assert_eq!(node.worked_ns(PriorityLevel::Background), 1_000_000);
    }
}
