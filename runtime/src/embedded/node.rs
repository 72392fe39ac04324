//! One actor per lightweight node: the way in for requests of other threads, in two priorities.

use std::collections::VecDeque;
use std::rc::Rc;

use actix::{Actor, AsyncContext as _, Handler, Message};
use tracing::Instrument as _;

use super::thread;
use crate::host::Host;
use crate::mail::Envelope;
use crate::protocol::Class;

/// Requests started in one turn, so that a full mailbox does not hold up the thread.
const STARTED_PER_TURN: usize = 64;

/// A request from another thread.
#[derive(Debug)]
pub(super) struct Mail(pub(super) Envelope);

impl Message for Mail {
    type Result = ();
}

/// Start what has arrived.
struct Drain;

impl Message for Drain {
    type Result = ();
}

/// The actor: sorts what arrives by priority and starts the handlers.
pub(super) struct NodeActor {
    host: Rc<Host>,
    control: VecDeque<Envelope>,
    bulk: VecDeque<Envelope>,
    draining: bool,
}

impl NodeActor {
    pub(super) fn new(host: Rc<Host>) -> Self {
        Self { host, control: VecDeque::new(), bulk: VecDeque::new(), draining: false }
    }
}

impl Actor for NodeActor {
    type Context = actix::Context<Self>;
}

impl Handler<Mail> for NodeActor {
    type Result = ();

    fn handle(&mut self, Mail(envelope): Mail, context: &mut Self::Context) {
        thread::note_work();
        match envelope.class {
            Class::Control => self.control.push_back(envelope),
            Class::Bulk => self.bulk.push_back(envelope),
        }
        if !self.draining {
            self.draining = true;
            context.notify(Drain);
        }
    }
}

impl Handler<Drain> for NodeActor {
    type Result = ();

    fn handle(&mut self, _: Drain, context: &mut Self::Context) {
        for _ in 0..STARTED_PER_TURN {
            let Some(envelope) = self.control.pop_front().or_else(|| self.bulk.pop_front()) else {
                self.draining = false;
                return;
            };
            let Envelope { message, span, .. } = envelope;
            let handler = message.deliver(self.host.clone());
            if span.is_disabled() {
                thread::spawn(handler);
            } else {
                thread::spawn(handler.instrument(span));
            }
        }
        context.notify(Drain);
    }
}
