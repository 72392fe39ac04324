//! A faster way for the requests of a link, where both processes have one: offered and granted over
//! the link, and over as soon as the link is. Without the feature `fabric` there is none.

#[cfg(feature = "fabric")]
use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;

#[cfg(feature = "fabric")]
use futures::StreamExt as _;

#[cfg(feature = "fabric")]
use super::fabric::{Asking, Granted};
use super::frame::{FabricAnswer, LinkFrame, PeerHello};
use super::guard::Guard;
use runtime::context::Context;
use runtime::mail::Envelope;

/// The faster way of the asking side of a link.
#[derive(Debug, Default)]
pub(crate) struct FastPath {
    #[cfg(feature = "fabric")]
    asking: Option<RefCell<Asking>>,
}

#[cfg_attr(
    not(feature = "fabric"),
    expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "there is none")
)]
impl FastPath {
    /// To this life of a process, as `guard` says.
    pub(crate) fn new(guard: &Guard, number: u32, incarnation: u64) -> Self {
        let _ = (guard, number, incarnation);
        Self {
            #[cfg(feature = "fabric")]
            asking: guard.fabrics().and_then(|fabrics| {
                let asking = Asking::new(fabrics, guard.seals(), (number, incarnation));
                asking.map(RefCell::new)
            }),
        }
    }

    /// What is to be told the other side now.
    pub(super) fn offer(&self) -> Vec<Bytes> {
        #[cfg(feature = "fabric")]
        if let Some(asking) = &self.asking {
            return asking.borrow_mut().offer();
        }
        Vec::new()
    }

    /// The other side has answered.
    pub(super) fn take_grant(&self, head: &[u8]) {
        let _ = head;
        #[cfg(feature = "fabric")]
        if let Some(asking) = &self.asking {
            let over = asking.borrow_mut().take_grant(head);
            // Outside the borrow: callers that wait learn that the answer is lost, and may ask
            // again.
            drop(over);
        }
    }

    /// Sends a request, or gives it back if it has to go over the link itself.
    pub(crate) fn send(&self, envelope: Envelope) -> Option<Envelope> {
        #[cfg(feature = "fabric")]
        if let Some(asking) = &self.asking {
            let way = asking.borrow().way();
            return match way {
                Some(way) => way.send(envelope),
                None => Some(envelope),
            };
        }
        Some(envelope)
    }

    /// The link is over, and with it this.
    pub(crate) fn end(&self) {
        #[cfg(feature = "fabric")]
        if let Some(asking) = &self.asking {
            let over = asking.borrow_mut().end();
            // Outside the borrow, as above.
            drop(over);
        }
    }
}

/// The faster way of the answering side of a link.
pub(super) struct Serving {
    guard: Arc<Guard>,
    hello: PeerHello,
    #[cfg(feature = "fabric")]
    granted: Option<Granted>,
}

impl Serving {
    /// For the process that has introduced itself by `hello`.
    pub(super) fn new(guard: Arc<Guard>, hello: PeerHello) -> Self {
        Self {
            guard,
            hello,
            #[cfg(feature = "fabric")]
            granted: None,
        }
    }

    /// The process makes an offer; `tell` brings what is to be said of it. What was granted before
    /// is over.
    pub(super) fn take_offer(
        &mut self,
        context: &Context,
        frame: &LinkFrame,
        tell: impl Fn(FabricAnswer) + 'static,
    ) {
        #[cfg(feature = "fabric")]
        {
            self.granted = None;
            let incarnation = (self.hello.process, self.hello.incarnation);
            let offer = runtime::wire::from_bytes(&frame.head).ok();
            let grant = offer.zip(self.guard.fabrics()).and_then(|(offer, fabrics)| {
                Granted::of(fabrics, self.guard.seals(), context, incarnation, &offer)
            });
            if let Some((granted, telling)) = grant {
                self.granted = Some(granted);
                context.task(telling.for_each(move |grant| {
                    tell(grant);
                    std::future::ready(())
                }));
                return;
            }
        }
        let _ = (context, frame, &self.guard, &self.hello);
        tell(FabricAnswer::default());
    }
}
