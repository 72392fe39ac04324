//! A flush answers for its own life only: what another life was told may be gone, and is told so.

use blockio::protocol::{Error, Unsynced};
use blockio::{Config, Stripes as _};
use bytes::Bytes;
use runtime::Epoch;
use runtime::seed::with_seed;

use crate::support::Volume;

/// Stripes that are written, on all disks.
const STRIPES: u64 = 6;
const BLOCK: usize = 4096;

#[test]
fn a_sync_never_says_ok_for_writes_of_a_life_that_is_over() {
    with_seed(|rng| {
        let volume = Volume::start(rng.bits(), 2, 2, Config::default());
        let mut epoch = 1;
        // The restart comes after each of the steps in turn.
        for restart_after in 0..=STRIPES {
            let fill = restart_after as u8 + 1;
            let write = |stripe| {
                let boot_id = volume.ask(async move |client| {
                    client.write(stripe, 0, vec![Bytes::from(vec![fill; BLOCK])]).await
                });
                Unsynced { stripe, boot_id: boot_id.expect("the stripe exists") }
            };
            let mut restart = || {
                epoch += 1;
                volume.crash(Epoch(epoch), rng);
            };
            let mut written = Vec::new();
            for step in 0..STRIPES {
                if step == restart_after {
                    restart();
                }
                written.push(write(step));
            }
            if restart_after == STRIPES {
                restart();
            }
            let (mut before, mut after) = (written.clone(), Vec::new());
            if restart_after < STRIPES {
                after = before.split_off(restart_after as usize);
            }
            for lost in before {
                let synced = volume.ask(async move |client| client.sync(vec![lost]).await);
                let said = matches!(synced, Err(Error::LostWrites { stripe, .. }) if stripe == lost.stripe);
                assert!(said, "{synced:?} to stripe {}", lost.stripe);
                after.push(write(lost.stripe));
            }
            volume.ask(async move |client| client.sync(after).await).expect("one life");
            restart();
            for stripe in 0..STRIPES {
                let found = volume
                    .ask(async move |client| client.read(stripe, 0, BLOCK as u32, Vec::new()).await)
                    .expect("the stripe exists");
                assert!(found.iter().all(|&byte| byte == fill), "stripe {stripe} was synced");
            }
        }
    });
}

#[test]
fn what_was_answered_in_a_life_that_is_handed_over_is_durable_and_synced_in_it() {
    with_seed(|rng| {
        let volume = Volume::start(rng.bits(), 1, 2, Config::default());
        let mut written = Vec::new();
        for stripe in 0..STRIPES {
            let boot_id = volume.ask(async move |client| {
                client.write(stripe, 0, vec![Bytes::from(vec![7; BLOCK])]).await
            });
            written.push(Unsynced { stripe, boot_id: boot_id.expect("the stripe exists") });
        }
        let boot_id = volume.hand_over();
        let refused = volume
            .ask(async move |client| client.write(0, 0, vec![Bytes::from(vec![9; BLOCK])]).await);
        assert!(refused.is_err(), "it has ended: {refused:?}");

        volume.crash_to(Config { boot_id: Some(boot_id), ..Config::default() }, Epoch(2), rng);
        volume.ask(async move |client| client.sync(written).await).expect("the same life");
        for stripe in 0..STRIPES {
            let found = volume
                .ask(async move |client| client.read(stripe, 0, BLOCK as u32, Vec::new()).await)
                .expect("the stripe exists");
            assert!(found.iter().all(|&byte| byte == 7), "stripe {stripe} was handed over");
        }
    });
}
