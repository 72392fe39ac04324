//! Calls to the metadata of a node. A call to a node that is busy or down is sent again after a
//! pause: nothing was done, so the retry class of its row does not matter. After a lost reply
//! nothing is sent again, whatever the class: callers handle [`Undelivered::Lost`] themselves.
//!
//! [`Undelivered::Lost`]: runtime::protocol::Undelivered::Lost

use std::time::Duration;

use runtime::{Call, Context, Epoch, NodeId};

use crate::protocol::{Error, Meta};

/// Attempts to call a node that is busy or down, before the caller gets the error.
const BUSY_TRIES_MAX: u32 = 10;
/// The first pause before a retry; each later one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// The base-2 logarithm of the number of remote locks that one node may take in one epoch.
const REMOTE_LOCKS_BITS: u32 = 40;

/// The number of the first remote lock that a node takes in an epoch: above all numbers of earlier
/// epochs.
pub fn first_remote_lock(epoch: Epoch) -> u64 {
    epoch.0 << REMOTE_LOCKS_BITS
}

/// Calls the metadata of `node`.
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
