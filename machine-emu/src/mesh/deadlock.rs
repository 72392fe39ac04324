//! Deadlocks: which party waits for which, and whether any of them can ever go on.
//!
//! A message waits for the message that holds its next channel, or for room in a full queue. A
//! queue gets room from any handler that works on its messages. A handler may wait until a message
//! of its own has left: so does the one that passes messages on. Each leg alone is free of circles,
//! since routes go X before Y before Z; forwarding and handlers that send can close one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::timing::Priority;
use super::worm::{Mesh, describe};

/// What may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitingParty {
    /// A message under way.
    Message(u64),
    /// A full queue: its node and level.
    Queue(u32, Priority),
    /// The handler of a queue's first message.
    Handler(u32, Priority),
}

/// Parties of which none can ever go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// A circle among them: each waits for the next, the last for the first.
    pub circle: Vec<WaitingParty>,
    /// Parties that cannot go on because of it.
    pub stuck: usize,
    text: String,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// For each party, those of which one must go on before it can, and why. A party that is not a key
/// can go on.
struct WaitGraph<'a> {
    mesh: &'a Mesh,
    waits: BTreeMap<WaitingParty, Vec<(WaitingParty, String)>>,
}

impl Mesh {
    /// Parties that can never go on, if there are any.
    pub fn find_deadlock(&self) -> Option<Deadlock> {
        WaitGraph::new(self).find()
    }
}

impl<'a> WaitGraph<'a> {
    fn new(mesh: &'a Mesh) -> Self {
        let mut graph = Self { mesh, waits: BTreeMap::new() };
        for (number, channel, owner) in mesh.worms.waiters(&mesh.channels) {
            let (node, level, direction) = describe(channel);
            let place = mesh.geometry().place(node);
            let why = format!("channel {} of {place}, {}", direction.name(), level_name(level));
            graph.message_waits(number, WaitingParty::Message(owner), why);
        }
        let full: Vec<(u32, u32)> = mesh.queues.blocked().collect();
        for &(slot, queue) in &full {
            let (node, level) = queue_party(queue);
            let number = mesh.worms.get(slot).number;
            graph.message_waits(number, WaitingParty::Queue(node, level), "room".to_owned());
        }
        graph.add_queues(full.into_iter().map(|(_, queue)| queue).collect());
        graph
    }

    fn message_waits(&mut self, number: u64, on: WaitingParty, why: String) {
        self.waits.entry(WaitingParty::Message(number)).or_default().push((on, why));
    }

    /// What the full queues wait for: the handlers that their nodes reported, and the second legs.
    fn add_queues(&mut self, full: BTreeSet<u32>) {
        let mut second_legs: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (number, queue) in self.mesh.worms.passing() {
            second_legs.entry(queue).or_default().push(number);
        }
        for queue in full {
            let (node, level) = queue_party(queue);
            let own = self.mesh.queues.handlers[queue as usize];
            let legs = second_legs.remove(&queue).unwrap_or_default();
            // A queue without a known handler is consumed in time.
            if own.is_none() && legs.is_empty() {
                continue;
            }
            let handler = WaitingParty::Handler(node, level);
            let messages = vec![(handler, "its messages".to_owned())];
            self.waits.insert(WaitingParty::Queue(node, level), messages);
            let sent = own.into_iter().chain(legs);
            let sent = sent.map(|number| (WaitingParty::Message(number), "it to leave".to_owned()));
            self.waits.insert(handler, sent.collect());
        }
    }

    fn find(mut self) -> Option<Deadlock> {
        loop {
            let free = |party: &WaitingParty| !self.waits.contains_key(party);
            let mut going =
                self.waits.iter().filter(|(_, on)| on.iter().any(|(party, _)| free(party)));
            let Some((&party, _)) = going.next() else { break };
            self.waits.remove(&party);
        }
        let first = *self.waits.keys().next()?;
        let mut path: Vec<WaitingParty> = Vec::new();
        let mut at = first;
        let start = loop {
            if let Some(seen) = path.iter().position(|&party| party == at) {
                break seen;
            }
            path.push(at);
            at = self.waits[&at].first()?.0;
        };
        let circle = path.split_off(start);
        let text = self.describe(&circle);
        Some(Deadlock { circle, stuck: self.waits.len(), text })
    }

    fn describe(&self, circle: &[WaitingParty]) -> String {
        let mut text = format!("deadlock of {}:", circle.len());
        for party in circle {
            let Some((on, why)) = self.waits[party].first() else { continue };
            let (party, on) = (self.name(*party), self.name(*on));
            let _ = write!(text, "\n  {party} waits for {on}: {why}");
        }
        text
    }

    fn name(&self, party: WaitingParty) -> String {
        let place = |node| self.mesh.geometry().place(node);
        match party {
            WaitingParty::Message(number) => {
                let ends = self.mesh.worms.ends_of(number);
                let ends = ends.map(|(from, to)| format!(" {} to {}", place(from), place(to)));
                format!("message {number}{}", ends.unwrap_or_default())
            }
            WaitingParty::Queue(node, level) => {
                format!("the {} queue of {}", level_name(level), place(node))
            }
            WaitingParty::Handler(node, level) => {
                format!("the {} handler of {}", level_name(level), place(node))
            }
        }
    }
}

fn queue_party(queue: u32) -> (u32, Priority) {
    (queue / 2, if queue.is_multiple_of(2) { Priority::Normal } else { Priority::High })
}

fn level_name(level: Priority) -> &'static str {
    match level {
        Priority::Normal => "normal",
        Priority::High => "high",
    }
}
