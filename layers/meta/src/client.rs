//! How the layer above asks. A node that is busy or away is asked again after a pause.

use std::time::Duration;

use runtime::{Call, Context, Epoch, NodeId};

use crate::protocol::{Error, Meta};

/// A node that is busy or away is asked so many times before the caller hears of it.
const BUSY_TRIES_MAX: u32 = 10;
/// The first pause before asking a busy node again; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Ties of one node in one epoch number fewer than two to the power of this.
const TIES_BITS: u32 = 40;

/// The number of the first tie that a node has in an epoch: above all of its earlier lives, whose epochs are over.
pub fn first_remote_lock(epoch: Epoch) -> u64 {
    epoch.0 << TIES_BITS
}

/// Asks the metadata of `node`.
pub async fn ask<C>(context: &Context, node: NodeId, call: C) -> Result<C::Reply, Error>
where
    C: Call<Protocol = Meta> + Clone,
{
    let mut pause = BUSY_PAUSE;
    for _ in 1..BUSY_TRIES_MAX {
        match context.spawn(node, call.clone()).await {
            Err(error) if error.not_applied() => context.sleep(pause).await,
            answer => return answer,
        }
        pause *= 2;
    }
    context.spawn(node, call).await
}
