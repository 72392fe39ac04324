//! Finding out that another process is dead.

use std::io;
use std::time::Duration;

use futures::future::{Either, select};

use crate::client::{dial, pause, within};
use crate::frame::{FrameReader, PeerHello, frame_of, kind};
use crate::guard::Guard;
use runtime::net::StreamWriter;

/// A process that sends nothing for this long is silent.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How often it is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_millis(250);
/// The pause before a connection that was not made is tried again.
const REDIAL_PAUSE: Duration = Duration::from_millis(100);

/// The link of the connection by which a process watches another.
pub const WATCH_LINK: u64 = u64::MAX;

/// How a process was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// Its host is there, and no process listens at its address.
    Refused,
    /// It says nothing, nor does its host.
    Silent,
}

/// Keeps a connection to the process at `address`, and resolves when that process is lost. A
/// connection that is closed is no sign: it is made anew.
pub async fn watch_peer(address: &str, hello: &PeerHello, guard: &Guard) -> PeerLoss {
    loop {
        match within(SILENCE_MAX, dial(address, hello, guard)).await {
            None => return PeerLoss::Silent,
            Some(Ok((frames, writer))) => {
                if is_silent_in_the_end(frames, writer).await {
                    return PeerLoss::Silent;
                }
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return PeerLoss::Refused;
            }
            // It may not know yet that it is the incarnation that is looked for.
            Some(Err(_)) => pause(REDIAL_PAUSE).await,
        }
    }
}

/// Exchanges signs of life. True if the other side sends none, false if the connection is closed.
async fn is_silent_in_the_end(mut frames: FrameReader, mut writer: Box<dyn StreamWriter>) -> bool {
    let ask = async {
        while writer.write(frame_of(kind::PING, &())).await.is_ok() {
            pause(PING_EVERY).await;
        }
    };
    let listen = async {
        loop {
            match within(SILENCE_MAX, frames.next()).await {
                Some(Ok(Some(_))) => {}
                Some(_) => return false,
                None => return true,
            }
        }
    };
    match select(Box::pin(listen), Box::pin(ask)).await {
        Either::Left((is_silent, _)) => is_silent,
        Either::Right(((), _)) => false,
    }
}
