//! A disk that fails is left alone; a wrong byte is never returned.

use std::time::Duration;

use crate::support::volume::STRIPE;
use crate::support::{Kind, Volume, sync_all};
use blockio::protocol::{Describe, Error};
use blockio::{Config, Stripes as _, checksum};
use bytes::Bytes;
use futures::future::join_all;
use runtime::NodeId;

const FAILED: Error = Error::DiskFailed { disk: 0 };

#[test]
fn a_disk_that_fails_to_write_or_flush_is_never_used_again() {
    for kind in [Kind::Write, Kind::Sync] {
        let volume = Volume::start(1, 1, 2, Config::default());
        volume.disks[0].set_failing(&[kind]);
        let hurt = volume.ask(async |client| {
            client.write(0, 0, vec!["x".into()]).await?;
            sync_all(&client).await
        });
        assert_eq!(hurt, Err(FAILED));

        // It would work again, but may have lost writes meanwhile.
        volume.disks[0].set_failing(&[]);
        volume.started();
        let context = volume.context();
        volume.ask(async move |client| {
            assert_eq!(client.write(0, 0, vec!["x".into()]).await, Err(FAILED));
            assert_eq!(client.read(0, 0, 1, Vec::new()).await, Err(FAILED));
            assert_eq!(sync_all(&client).await, Err(FAILED));
            assert_eq!(client.read_slot(0, 0).await, Err(FAILED));
            assert_eq!(client.write_slot(0, 0, vec![0; 4096].into()).await, Err(FAILED));
            client.write(1, 0, vec!["x".into()]).await.expect("the other disk goes on");
            let status = context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there");
            assert_eq!([status[0].healthy, status[1].healthy], [false, true]);
        });
        assert!(volume.started().iter().all(|event| event.disk == 1));
    }
}

#[test]
fn everything_that_waits_for_a_failed_disk_is_told() {
    let volume = Volume::start(1, 1, 1, Config { depth_per_disk: 1, ..Config::default() });
    volume.set_latency(Duration::from_millis(1));
    volume.disks[0].set_failing(&[Kind::Write]);
    let answers = volume.ask(async |client| {
        join_all((0..10).map(|stripe| client.write(stripe, 0, vec!["x".into()]))).await
    });
    assert_eq!(answers, [Err(FAILED); 10]);
    assert_eq!(volume.started().len(), 1, "nine never reached the disk");
}

#[test]
fn those_who_share_a_failed_flush_are_all_told() {
    let volume = Volume::start(1, 1, 1, Config::default());
    volume.set_latency(Duration::from_millis(1));
    volume.disks[0].set_failing(&[Kind::Sync]);
    let answers = volume.ask(async |client| join_all((0..5).map(|_| sync_all(&client))).await);
    assert_eq!(answers, [Err(FAILED); 5]);
    assert_eq!(volume.started().len(), 1, "a failed flush is not tried again");
}

#[test]
fn a_failed_read_does_not_condemn_the_disk() {
    let volume = Volume::start(1, 1, 1, Config::default());
    volume.disks[0].set_failing(&[Kind::Read]);
    let offset = volume.geometry.stripe_offset(2);
    let answer = volume.ask(async |client| client.read(2, 0, 1, Vec::new()).await);
    assert_eq!(answer, Err(Error::Unreadable { disk: 0, offset }));
    volume.disks[0].set_failing(&[]);
    let answer = volume.ask(async |client| client.read(2, 0, 1, Vec::new()).await);
    assert!(answer.is_ok(), "{answer:?}");
}

/// A volume whose stripe 0 is full, and the checksums of its blocks.
fn written_stripe() -> (Volume, Bytes, Vec<u32>) {
    let volume = Volume::start(1, 1, 1, Config::default());
    let data = Bytes::from((0..STRIPE).map(|i| (i / 7) as u8).collect::<Vec<_>>());
    let written = data.clone();
    volume.ask(async move |client| client.write(0, 0, vec![written]).await).expect("exists");
    volume.started();
    let sums = checksum::of_blocks(&data);
    (volume, data, sums)
}

#[test]
fn a_read_with_the_right_checksums_brings_the_bytes() {
    let (volume, data, sums) = written_stripe();
    let found =
        volume.ask(async move |client| client.read(0, 4096, 8192, sums[1..3].to_vec()).await);
    assert_eq!(found, Ok(data.slice(4096..12288)));
    assert_eq!(volume.started().len(), 1);
}

#[test]
fn bytes_that_were_hurt_on_their_way_are_read_again() {
    let (volume, data, sums) = written_stripe();
    volume.disks[0].hurt_reads(1);
    let found = volume.ask(async move |client| client.read(0, 0, STRIPE, sums).await);
    assert_eq!(found, Ok(data));
    assert_eq!(volume.started().len(), 2);
}

#[test]
fn a_damaged_block_is_named() {
    let (volume, _, sums) = written_stripe();
    volume.disks[0].poke(volume.geometry.stripe_offset(0) + 2 * 4096 + 5, b"!");
    let read = async move |client: blockio::BlockClient| {
        client.read(0, 4096, 12288, sums[1..].to_vec()).await
    };
    assert_eq!(volume.ask(read), Err(Error::Corrupt { stripe: 0, block: 2 }));
    assert_eq!(volume.started().len(), 2, "not more than one second try");
}

#[test]
fn checksums_of_anything_but_whole_blocks_are_refused() {
    let (volume, _, sums) = written_stripe();
    for (offset, length) in [(1, 4096), (0, 4095), (0, 8192), (0, 0)] {
        let expect = sums[..1].to_vec();
        let answer = volume.ask(async move |client| client.read(0, offset, length, expect).await);
        assert_eq!(answer, Err(Error::OutOfRange { stripe: 0, offset, length }));
    }
}
