//! How the layer above asks: routes by hash, and asks again later where a node was busy or away, or
//! where nobody knows whether a call was done that is done once.

use std::time::Duration;

use runtime::protocol::Undelivered;
use runtime::{Call, NodeId, Spawn};

use crate::hash;
use crate::protocol::{Error, FileIo, Request};

/// A node that is busy or away is asked so many times before the caller hears of it.
pub const BUSY_TRIES_MAX: u32 = 12;

/// The first pause before asking it again; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Asks the node that owns `call`, in turn as often as [`BUSY_TRIES_MAX`] while it is busy or away; a
/// request with a call id also if its reply was lost. After [`Undelivered::Lost`] a request with a call
/// id can be sent once more, as it is: it was done, or will be then.
pub async fn ask<S, C>(from: &S, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    let request: Request = call.clone().into();
    let to = hash::owner(&request, from.fs_nodes());
    let is_done_once = request.call().is_some();
    let lost = Error::Undelivered { why: Undelivered::Lost };
    match from.spawn(to, call.clone()).await {
        Err(error) if error.is_undone() || (error == lost && is_done_once) => {
            // Boxed: what is rare would be moved with each request.
            Box::pin(ask_again(from, to, call, is_done_once, error == lost)).await
        }
        answer => answer,
    }
}

/// The tries after the first.
async fn ask_again<S, C>(
    from: &S,
    to: NodeId,
    call: C,
    is_done_once: bool,
    mut was_lost: bool,
) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    let lost = Error::Undelivered { why: Undelivered::Lost };
    let mut pause = BUSY_PAUSE;
    for _ in 2..BUSY_TRIES_MAX {
        from.sleep(pause).await;
        pause *= 2;
        match from.spawn(to, call.clone()).await {
            Err(error) if error.is_undone() => {}
            Err(error) if error == lost && is_done_once => was_lost = true,
            answer => return answer,
        }
    }
    from.sleep(pause).await;
    match from.spawn(to, call).await {
        // Not this time, but perhaps before.
        Err(error) if error.is_undone() && was_lost => Err(lost),
        answer => answer,
    }
}
