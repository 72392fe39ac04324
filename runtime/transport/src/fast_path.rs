//! A faster way for the requests of a link, where both processes have one: offered and granted over
//! the link, and over as soon as the link is. Without the feature `fabric` there is none.

#[cfg(feature = "fabric")]
use std::cell::RefCell;
#[cfg(feature = "fabric")]
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

#[cfg(feature = "fabric")]
use futures::{Stream, StreamExt as _};

#[cfg(feature = "fabric")]
use super::fabric::{
    AskedGrant, Asking, FRAMES_BYTES_MAX, FrameAsking, FramePath, Granted, GrantedFrames,
};
#[cfg(feature = "fabric")]
use super::frame::frame_length;
use super::frame::{FabricAnswer, FrameHeader, LinkFrame, PeerHello};
use super::guard::Guard;
#[cfg(feature = "fabric")]
use super::remote::ClientSecurity;
use super::remote::{ClientFabric, ClientOptions};
use runtime::context::Context;
use runtime::mail::Envelope;
#[cfg(feature = "fabric")]
use runtime::sync::Event;
use runtime::wire::Encoder;

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
                tell_all(context, telling, tell);
                return;
            }
        }
        let _ = (context, frame, &self.guard, &self.hello);
        tell(FabricAnswer::default());
    }
}

/// What is said of a grant, as it comes.
#[cfg(feature = "fabric")]
fn tell_all(
    context: &Context,
    telling: impl Stream<Item = FabricAnswer> + 'static,
    tell: impl Fn(FabricAnswer) + 'static,
) {
    context.task(telling.for_each(move |grant| {
        tell(grant);
        std::future::ready(())
    }));
}

/// The way for frames, once there is one that is not over; `changed` tells when to look again.
#[cfg(feature = "fabric")]
async fn open_path(changed: &Event, path: impl Fn() -> Option<Arc<FramePath>>) -> Arc<FramePath> {
    loop {
        let changed = changed.next();
        if let Some(path) = path() {
            return path;
        }
        changed.await;
    }
}

/// Frames with less bulk go over the link itself: the threads on the faster way are woken for each.
#[cfg(feature = "fabric")]
pub(crate) const FAST_BULK_MIN: usize = 16 << 10;

/// The faster way of the serving side of the link of a client.
#[derive(Default)]
pub(crate) struct ClientServing {
    #[cfg(feature = "fabric")]
    granted: RefCell<Option<GrantedFrames>>,
    #[cfg(feature = "fabric")]
    changed: Event,
}

/// By which grant a frame has come.
pub(crate) struct FrameOrigin {
    #[cfg(feature = "fabric")]
    path: Arc<FramePath>,
}

impl FrameOrigin {
    /// Is the grant over? Then the client has sent the frame again, or will.
    #[cfg_attr(not(feature = "fabric"), expect(clippy::unused_self, reason = "there is none"))]
    pub(crate) fn is_over(&self) -> bool {
        #[cfg(feature = "fabric")]
        return self.path.is_over();
        #[cfg(not(feature = "fabric"))]
        true
    }
}

#[cfg_attr(not(feature = "fabric"), expect(clippy::unused_self, reason = "there is none"))]
impl ClientServing {
    /// A client of `account` makes an offer; `tell` brings what is to be said of it. What was
    /// granted before is over.
    pub(crate) fn take_offer(
        &self,
        context: &Context,
        guard: &Guard,
        (account, head): (Option<u64>, &[u8]),
        tell: impl Fn(FabricAnswer) + 'static,
    ) {
        let _ = (context, guard, account, head);
        #[cfg(feature = "fabric")]
        {
            self.granted.take();
            let offer = runtime::wire::from_bytes(head).ok();
            let grant = offer.zip(guard.fabrics()).and_then(|(offer, fabrics)| {
                GrantedFrames::of(fabrics, guard.seals(), account, &offer)
            });
            if let Some((granted, telling)) = grant {
                self.granted.replace(Some(granted));
                self.changed.tell();
                tell_all(context, telling, tell);
                return;
            }
        }
        tell(FabricAnswer::default());
    }

    /// Sends a frame, or gives it back if it has to go over the link itself.
    pub(crate) fn send(
        &self,
        header: FrameHeader,
        body: Encoder,
    ) -> Result<(), (FrameHeader, Encoder)> {
        #[cfg(feature = "fabric")]
        if body.bulk_length() >= FAST_BULK_MIN
            && let Some(granted) = &*self.granted.borrow()
        {
            return granted.path().send(header, body);
        }
        Err((header, body))
    }

    /// The next frame that comes by the faster way.
    pub(crate) async fn next(&self) -> (LinkFrame, FrameOrigin) {
        #[cfg(feature = "fabric")]
        loop {
            let path = open_path(&self.changed, || self.path()).await;
            if let Some(frame) = path.next().await {
                return (frame, FrameOrigin { path });
            }
        }
        #[cfg(not(feature = "fabric"))]
        std::future::pending().await
    }

    #[cfg(feature = "fabric")]
    fn path(&self) -> Option<Arc<FramePath>> {
        let granted = self.granted.borrow();
        let path = granted.as_ref().map(GrantedFrames::path);
        path.filter(|path| !path.is_over()).cloned()
    }

    /// The link is over, and with it this.
    pub(crate) fn end(&self) {
        #[cfg(feature = "fabric")]
        self.granted.take();
    }
}

/// The faster way of the asking side of the link of a client.
#[derive(Default)]
pub(crate) struct ClientAsking {
    fabric: ClientFabric,
    /// Whether what is not sealed is refused.
    #[cfg(feature = "fabric")]
    seals: bool,
    #[cfg(feature = "fabric")]
    process: u32,
    /// `None` before libfabric is there.
    #[cfg(feature = "fabric")]
    asking: RefCell<Option<FrameAsking>>,
    /// The calls that went there and were not answered, with what they count.
    #[cfg(feature = "fabric")]
    sent: RefCell<BTreeMap<u64, usize>>,
    #[cfg(feature = "fabric")]
    changed: Event,
}

#[cfg_attr(not(feature = "fabric"), expect(clippy::unused_self, reason = "there is none"))]
impl ClientAsking {
    /// For a link to `process`, if the client wants it.
    pub(crate) fn new(options: &ClientOptions, process: u32) -> Self {
        let _ = process;
        Self {
            fabric: options.fabric.clone(),
            #[cfg(feature = "fabric")]
            seals: !matches!(options.security, ClientSecurity::None),
            #[cfg(feature = "fabric")]
            process,
            ..Self::default()
        }
    }

    /// Bytes have come or gone by the link.
    pub(crate) fn note_moved(&self, bytes: usize) {
        self.fabric.note_moved(bytes);
    }

    /// Is the way over that there was? All calls are to be sent again then, after the
    /// [offer](Self::offer).
    pub(crate) fn is_lost(&self) -> bool {
        #[cfg(feature = "fabric")]
        if let Some(asking) = &mut *self.asking.borrow_mut()
            && asking.is_lost()
        {
            self.sent.take();
            return true;
        }
        false
    }

    /// What is to be told the other side now, before all else.
    pub(crate) fn offer(&self) -> Vec<Bytes> {
        #[cfg(feature = "fabric")]
        if let Some(fabrics) = self.fabric.fabrics() {
            let mut asking = self.asking.borrow_mut();
            if asking.is_none() {
                *asking = FrameAsking::new(fabrics, self.seals, self.process);
            }
            return asking.as_mut().map_or_else(Vec::new, FrameAsking::offer);
        }
        Vec::new()
    }

    /// The other side has answered; true if it knows that the last way is over.
    pub(crate) fn take_grant(&self, head: &[u8]) -> bool {
        let _ = head;
        #[cfg(feature = "fabric")]
        if let Some(asking) = &mut *self.asking.borrow_mut() {
            let grant = asking.take_grant(head);
            self.changed.tell();
            return grant == AskedGrant::Confirmed;
        }
        false
    }

    /// Sends a call, or gives it back if it has to go over the link itself.
    pub(crate) fn send(
        &self,
        header: FrameHeader,
        body: Encoder,
    ) -> Result<(), (FrameHeader, Encoder)> {
        #[cfg(feature = "fabric")]
        if body.bulk_length() >= FAST_BULK_MIN
            && let Some(path) = self.path()
        {
            let (number, length) = (header.call_id, frame_length(&body));
            let mut sent = self.sent.borrow_mut();
            if sent.values().sum::<usize>() + length <= FRAMES_BYTES_MAX {
                path.send(header, body)?;
                sent.insert(number, length);
                return Ok(());
            }
        }
        Err((header, body))
    }

    /// A call was answered.
    pub(crate) fn answered(&self, number: u64) {
        let _ = number;
        #[cfg(feature = "fabric")]
        self.sent.borrow_mut().remove(&number);
    }

    /// The next frame that comes by the faster way; `None` once when it is over.
    pub(crate) async fn next(&self) -> Option<LinkFrame> {
        #[cfg(feature = "fabric")]
        return open_path(&self.changed, || self.path()).await.next().await;
        #[cfg(not(feature = "fabric"))]
        std::future::pending().await
    }

    #[cfg(feature = "fabric")]
    fn path(&self) -> Option<Arc<FramePath>> {
        let asking = self.asking.borrow();
        asking.as_ref()?.path().filter(|path| !path.is_over()).cloned()
    }
}
