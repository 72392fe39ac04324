//! How the layer above asks. A node that is busy or away is asked again after a pause.

use std::time::Duration;

use runtime::{Call, Context, NodeId};

use crate::protocol::{Error, Meta};

/// A node that is busy or away is asked so many times before the caller hears of it.
const BUSY_TRIES_MAX: u32 = 10;
/// The first pause before asking a busy node again; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Asks the metadata of `node`.
pub async fn ask<C>(context: &Context, node: NodeId, call: C) -> Result<C::Reply, Error>
where
    C: Call<Protocol = Meta> + Clone,
{
    let mut pause = BUSY_PAUSE;
    for _ in 1..BUSY_TRIES_MAX {
        match context.spawn(node, call.clone()).await {
            Err(error) if error.is_undone() => context.sleep(pause).await,
            answer => return answer,
        }
        pause *= 2;
    }
    context.spawn(node, call).await
}
