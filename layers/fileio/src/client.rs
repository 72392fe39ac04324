//! How the layer above asks: routes by hash, and asks again later where a node was busy or away.

use std::time::Duration;

use runtime::{Call, Spawn};

use crate::hash;
use crate::protocol::{Error, FileIo, Request};

/// A node that is busy or away is asked so many times before the caller hears of it.
pub const BUSY_TRIES_MAX: u32 = 12;

/// The first pause before asking it again; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Asks the node that owns `call`, in turn as often as [`BUSY_TRIES_MAX`] while it is busy or away.
pub async fn ask<S, C>(from: &S, call: C) -> Result<C::Reply, Error>
where
    S: Spawn,
    C: Call<Protocol = FileIo> + Clone,
{
    let request: Request = call.clone().into();
    let to = hash::owner(&request, from.fs_nodes());
    let mut pause = BUSY_PAUSE;
    for _ in 1..BUSY_TRIES_MAX {
        match from.spawn(to, call.clone()).await {
            Err(error) if error.is_undone() => from.sleep(pause).await,
            answer => return answer,
        }
        pause *= 2;
    }
    from.spawn(to, call).await
}
