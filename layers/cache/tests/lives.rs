//! What one node was told and has lost is noticed: a disk node or a cache restarts while all others
//! live on.

mod support;

use std::time::Duration;

use blockio::Stripes as _;
use bytes::Bytes;
use cache::protocol::{Error, Unsynced};
use cache::{WRITE_BACK_AGE, WRITE_BACK_INTERVAL};
use support::{Setup, World, sync};

fn data(bytes: &'static [u8]) -> Vec<Bytes> {
    vec![Bytes::from_static(bytes)]
}

/// By then a dirty line is written back, and not flushed.
const WRITTEN_BACK: Duration = WRITE_BACK_AGE.saturating_add(WRITE_BACK_INTERVAL.saturating_mul(2));

fn is_lost(synced: Result<(), Error>) -> bool {
    matches!(synced, Err(Error::LostWrites { stripe: 2, .. }))
}

#[test]
fn a_disk_node_that_restarts_is_given_again_what_the_cache_still_has() {
    let world = World::new(&Setup::default());
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        let boot_id = client.write(2, 0, data(b"given")).await.unwrap();
        context.sleep(WRITTEN_BACK).await;
        assert_eq!(disk.content(2)[..5], *b"given");
        disk.restart();
        assert_ne!(disk.content(2)[..5], *b"given");
        client.sync(vec![Unsynced { stripe: 2, boot_id }]).await.unwrap();
        disk.restart();
        assert_eq!(disk.content(2)[..5], *b"given", "flushed");
    });
}

#[test]
fn a_write_back_that_meets_a_new_life_gives_everything_again() {
    let world = World::new(&Setup::default());
    let (client, disk, context) = (world.client.clone(), world.disk.clone(), world.context());
    world.run(async move {
        let boot_id = client.write(2, 0, data(b"old")).await.unwrap();
        context.sleep(WRITTEN_BACK).await;
        disk.restart();
        // Another line of the same node learns of the new life.
        client.write(5, 0, data(b"new")).await.unwrap();
        context.sleep(2 * WRITTEN_BACK).await;
        assert_eq!(disk.content(2)[..3], *b"old", "without being asked");
        client.sync(vec![Unsynced { stripe: 2, boot_id }]).await.unwrap();
        disk.restart();
        assert_eq!(disk.content(2)[..3], *b"old");
    });
}

#[test]
fn what_was_given_and_dropped_before_a_flush_is_told_to_be_lost() {
    let world = World::new(&Setup { lines_per_node: 1, ..Setup::default() });
    let (client, disk) = (world.client.clone(), world.disk.clone());
    world.run(async move {
        let boot_id = client.write(2, 0, data(b"dropped")).await.unwrap();
        client.write(5, 0, data(b"takes its place")).await.unwrap();
        assert_eq!(disk.content(2)[..7], *b"dropped");
        disk.restart();
        let written = vec![Unsynced { stripe: 2, boot_id }];
        assert!(is_lost(client.sync(written.clone()).await));
        assert!(is_lost(client.sync(written).await), "however often it is asked");
        client.write(2, 0, data(b"again")).await.unwrap();
        sync(&client, vec![2]).await.unwrap();
        disk.restart();
        assert_eq!(disk.content(2)[..5], *b"again");
    });
}

#[test]
fn a_sync_of_another_life_of_the_cache_says_lost_and_writes_nothing_else() {
    let world = World::new(&Setup::default());
    let (client, disk) = (world.client.clone(), world.disk.clone());
    let written = world.run(async {
        let boot_id = client.write(2, 0, data(b"lost")).await.unwrap();
        Unsynced { stripe: 2, boot_id }
    });
    world.restart(2);
    world.run(async {
        assert!(is_lost(client.sync(vec![written]).await));
        assert!(disk.syncs.borrow().is_empty());
        let boot_id = client.write(2, 0, data(b"here")).await.unwrap();
        let here = Unsynced { stripe: 2, boot_id };
        assert!(is_lost(client.sync(vec![written, here]).await), "in part");
        client.sync(vec![here]).await.unwrap();
        assert_eq!(disk.content(2)[..4], *b"here");
    });
}
