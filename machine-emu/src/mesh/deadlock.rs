//! Deadlocks: who waits for whom, and whether anybody of them can ever go on.
//!
//! A message waits for the message that holds its next channel, or for room in a full queue. A queue
//! gets room from any handler that works on its messages. A handler may wait until a message of its
//! own has left: so does the one that passes messages on. Each leg alone is free of circles, since
//! routes go X before Y before Z; forwarding and handlers that send can close one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::timing::Priority;
use super::worm::{Mesh, describe};

/// Who may wait.
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
    /// How many parties stand still for it.
    pub stuck: usize,
    text: String,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// For each party, those of which one must go on before it can. Who is not a key can go on.
type WaitGraph = BTreeMap<WaitingParty, Vec<(WaitingParty, String)>>;

impl Mesh {
    fn waits(&self) -> WaitGraph {
        let mut waits = WaitGraph::new();
        for (number, channel, owner) in self.waiters() {
            let (node, level, direction) = describe(channel);
            let place = self.geometry().place(node);
            let level = level_name(level);
            let why = format!("channel {} of {place}, {level}", direction.name());
            waits
                .entry(WaitingParty::Message(number))
                .or_default()
                .push((WaitingParty::Message(owner), why));
        }
        let full: Vec<(u64, u32)> = self.blocked().collect();
        for &(number, queue) in &full {
            let (node, level) = queue_party(queue);
            let why = "room".to_owned();
            waits
                .entry(WaitingParty::Message(number))
                .or_default()
                .push((WaitingParty::Queue(node, level), why));
        }
        self.add_queues(&mut waits, full.into_iter().map(|(_, queue)| queue).collect());
        waits
    }

    /// What the full queues wait for: the handlers that their nodes reported, and the second legs.
    fn add_queues(&self, waits: &mut WaitGraph, full: BTreeSet<u32>) {
        let mut second_legs: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (number, queue) in self.passing() {
            second_legs.entry(queue).or_default().push(number);
        }
        for queue in full {
            let (node, level) = queue_party(queue);
            let own = self.handlers[queue as usize];
            let legs = second_legs.remove(&queue).unwrap_or_default();
            // A queue without a known handler is consumed in time.
            if own.is_none() && legs.is_empty() {
                continue;
            }
            let handler = WaitingParty::Handler(node, level);
            waits.insert(
                WaitingParty::Queue(node, level),
                vec![(handler, "its messages".to_owned())],
            );
            let sent = own.into_iter().chain(legs);
            let sent = sent.map(|number| (WaitingParty::Message(number), "it to leave".to_owned()));
            waits.insert(handler, sent.collect());
        }
    }

    /// Parties that can never go on, if there are any.
    pub fn find_deadlock(&self) -> Option<Deadlock> {
        let mut waits = self.waits();
        loop {
            let free = |party: &WaitingParty| !waits.contains_key(party);
            let mut going = waits.iter().filter(|(_, on)| on.iter().any(|(party, _)| free(party)));
            let Some((&party, _)) = going.next() else { break };
            waits.remove(&party);
        }
        let first = *waits.keys().next()?;
        let mut path: Vec<WaitingParty> = Vec::new();
        let mut at = first;
        let start = loop {
            if let Some(seen) = path.iter().position(|&party| party == at) {
                break seen;
            }
            path.push(at);
            at = waits[&at].first()?.0;
        };
        let circle = path.split_off(start);
        let text = self.tell(&circle, &waits);
        Some(Deadlock { circle, stuck: waits.len(), text })
    }

    fn tell(&self, circle: &[WaitingParty], waits: &WaitGraph) -> String {
        let mut text = format!("deadlock of {}:", circle.len());
        for party in circle {
            let Some((on, why)) = waits[party].first() else { continue };
            let (party, on) = (self.name(*party), self.name(*on));
            let _ = write!(text, "\n  {party} waits for {on}: {why}");
        }
        text
    }

    fn name(&self, party: WaitingParty) -> String {
        match party {
            WaitingParty::Message(number) => {
                let ends = self.ends_of(number).map(|(from, to)| {
                    let [from, to] = [from, to].map(|node| self.geometry().place(node));
                    format!(" {from} to {to}")
                });
                format!("message {number}{}", ends.unwrap_or_default())
            }
            WaitingParty::Queue(node, level) => {
                format!("the {} queue of {}", level_name(level), self.geometry().place(node))
            }
            WaitingParty::Handler(node, level) => {
                format!("the {} handler of {}", level_name(level), self.geometry().place(node))
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
