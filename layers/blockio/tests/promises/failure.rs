//! A disk that fails is not written again, one on a full host is; a wrong byte is never returned.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::disk::Started;
use crate::support::volume::STRIPE;
use crate::support::{Kind, Volume, sync_all};
use blockio::protocol::{Describe, DiskStatus, Error, FollowRecord, Unsynced, WriteObstacle};
use blockio::{Config, DiskName, Stripes as _, VolumeRecord, checksum};
use bytes::Bytes;
use futures::future::join_all;
use runtime::NodeId;
use runtime::wire::to_bytes;

const FAILED: Error = Error::DiskFailed { disk: 0 };

#[test]
fn a_disk_that_fails_to_write_or_flush_is_never_written_again() {
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
            client.read(0, 0, 1, Vec::new()).await.expect("reads go on");
            assert_eq!(sync_all(&client).await, Err(FAILED));
            let disk = DiskName::default();
            client.read_slot(disk, 0).await.expect("reads go on");
            assert_eq!(client.write_slot(disk, 0, vec![0; 4096].into()).await, Err(FAILED));
            client.write(1, 0, vec!["x".into()]).await.expect("the other disk goes on");
            let status = context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there");
            assert_eq!([status[0].healthy, status[1].healthy], [false, true]);
        });
        let on_disk_0 = |event: &Started| event.disk == 0 && event.kind != Kind::Read;
        assert!(!volume.started().iter().any(on_disk_0));
    }
}

/// Sends a later record to the disk node; its answer, and the state of its disks then.
fn follow_record(volume: &Volume) -> (Result<(), Error>, Vec<DiskStatus>) {
    let record = to_bytes(&VolumeRecord::of(&volume.map).with_balancing(true));
    let context = volume.context();
    volume.ask(async move |_| {
        let node = NodeId::disk(0);
        let followed = context.spawn(node, FollowRecord { record }).await;
        (followed, context.spawn(node, Describe {}).await.expect("it is there"))
    })
}

#[test]
fn a_disk_that_fails_to_write_its_superblock_has_failed() {
    let volume = Volume::start(1, 1, 2, Config::default());
    volume.disks[0].set_failing(&[Kind::Write]);
    let (followed, status) = follow_record(&volume);
    assert_eq!(followed, Ok(()), "the other disk knows it");
    assert_eq!([status[0].healthy, status[1].healthy], [false, true]);
    volume.disks[0].set_failing(&[]);
    assert_eq!(volume.ask(async |client| client.write(0, 0, x()).await), Err(FAILED));
}

#[test]
fn a_full_host_below_a_superblock_is_no_failure_of_the_disk() {
    let volume = Volume::start(1, 1, 2, Config::default());
    volume.disks[0].set_error(ErrorKind::StorageFull);
    volume.disks[0].set_failing(&[Kind::Write]);
    let (followed, status) = follow_record(&volume);
    assert_eq!(followed, Err(Error::NotReady { disk_node: 0, disk: 0 }));
    assert!(status[0].healthy);
    volume.disks[0].set_failing(&[]);
    assert_eq!(follow_record(&volume).0, Ok(()));
}

const FULL: Error = Error::Unwritable { disk_node: 0, disk: 0, why: WriteObstacle::Full {} };

fn x() -> Vec<Bytes> {
    vec!["x".into()]
}

#[test]
fn a_disk_on_a_full_host_takes_no_writes_until_the_one_that_failed_succeeds() {
    let volume = Volume::start(1, 1, 2, Config::default());
    volume.disks[0].set_error(ErrorKind::StorageFull);
    volume.disks[0].set_failing(&[Kind::Write]);
    let answer = volume.ask(async |client| client.write(0, 0, x()).await);
    assert_eq!(answer, Err(FULL));
    volume.started();

    let context = volume.context();
    volume.ask(async move |client| {
        assert_eq!(client.write(2, 0, x()).await, Err(FULL), "another place of the disk");
        assert_eq!(
            client.write_slot(DiskName::default(), 0, vec![0; 4096].into()).await,
            Err(FULL)
        );
        client.read(0, 0, 1, Vec::new()).await.expect("reads go on");
        client.write(1, 0, x()).await.expect("the other disk goes on");
        let status = context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there");
        let obstacles = [status[0].obstacle, status[1].obstacle];
        assert_eq!(obstacles, [Some(WriteObstacle::Full {}), None]);
        assert!(status[0].healthy, "the disk itself is");
    });
    let writes = |events: Vec<Started>| {
        events.iter().filter(|event| event.disk == 0 && event.kind == Kind::Write).count()
    };
    assert_eq!(writes(volume.started()), 0, "the others did not reach the disk");
    assert_eq!(volume.ask(async |client| client.write(0, 0, x()).await), Err(FULL));
    assert_eq!(writes(volume.started()), 1, "the one that failed tries again");

    volume.disks[0].set_failing(&[]);
    let context = volume.context();
    volume.ask(async move |client| {
        assert_eq!(client.write(2, 0, x()).await, Err(FULL), "not before that one");
        client.write(0, 0, x()).await.expect("there is space");
        client.write(2, 0, x()).await.expect("and for all others");
        sync_all(&client).await.expect("it is written");
        let status = context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there");
        assert_eq!(status[0].obstacle, None);
    });
}

#[test]
fn any_write_may_try_when_the_one_that_failed_is_not_repeated() {
    let volume = Volume::start(1, 1, 1, Config::default());
    volume.disks[0].set_error(ErrorKind::ReadOnlyFilesystem);
    volume.disks[0].set_failing(&[Kind::Write]);
    let why = WriteObstacle::ReadOnly {};
    let read_only = Err(Error::Unwritable { disk_node: 0, disk: 0, why });
    assert_eq!(volume.ask(async |client| client.write(0, 0, x()).await), read_only);
    volume.disks[0].set_failing(&[]);
    assert_eq!(volume.ask(async |client| client.write(1, 0, x()).await), read_only);
    let context = volume.context();
    volume.ask(async move |client| {
        context.sleep(Duration::from_secs(11)).await;
        client.write(1, 0, x()).await.expect("it may try");
    });
}

#[test]
fn of_neighbours_that_go_together_only_those_without_space_are_refused() {
    let volume = Volume::start(1, 1, 1, Config { depth_per_disk: 1, ..Config::default() });
    volume.disks[0].set_error(ErrorKind::StorageFull);
    volume.disks[0].set_full_from(volume.geometry.stripe_offset(1));
    let whole = || vec![Bytes::from(vec![1; STRIPE as usize])];
    let answers = volume.ask(async move |client| {
        join_all([0, 1].map(|stripe| client.write(stripe, 0, whole()))).await
    });
    assert!(answers[0].is_ok() && answers[1] == Err(FULL), "{answers:?}");
    let kinds: Vec<Kind> = volume.started().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::Write; 3], "together, then each alone");
}

#[test]
fn a_flush_without_space_is_the_loss_of_what_was_answered_before() {
    let volume = Volume::start(1, 1, 1, Config::default());
    let before = volume.ask(async |client| client.write(0, 0, x()).await).expect("it is good");
    volume.disks[0].set_error(ErrorKind::StorageFull);
    volume.disks[0].set_failing(&[Kind::Sync]);
    assert_eq!(volume.ask(async |client| sync_all(&client).await), Err(FULL));
    volume.disks[0].set_failing(&[]);
    volume.ask(async move |client| {
        // A host says once that it has lost something. The next flush succeeds.
        let synced = client.sync(vec![Unsynced { stripe: 0, boot_id: before }]).await;
        assert!(matches!(synced, Err(Error::LostWrites { stripe: 0, .. })), "{synced:?}");
        let boot_id = client.write(0, 0, x()).await.expect("it takes writes again");
        assert_eq!(client.sync(vec![Unsynced { stripe: 0, boot_id }]).await, Ok(()));
    });
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
fn one_checksum_may_stand_for_several_blocks() {
    let (volume, data, _) = written_stripe();
    let sums: Vec<u32> = data.chunks(8192).map(runtime::hash::crc32c).collect();
    let expect = sums.clone();
    let found = volume.ask(async move |client| client.read(0, 0, STRIPE, expect).await);
    assert_eq!(found, Ok(data));
    volume.disks[0].poke(volume.geometry.stripe_offset(0) + 3 * 4096 + 5, b"!");
    let read = async move |client: blockio::BlockClient| client.read(0, 0, STRIPE, sums).await;
    assert_eq!(volume.ask(read), Err(Error::Corrupt { stripe: 0, block: 2 }));
}

#[test]
fn checksums_of_anything_but_whole_blocks_are_refused() {
    let (volume, _, sums) = written_stripe();
    for (offset, length) in [(1, 4096), (0, 4095), (4096, 8192), (0, 12288), (0, 0)] {
        let expect = sums[..1].to_vec();
        let answer = volume.ask(async move |client| client.read(0, offset, length, expect).await);
        assert_eq!(answer, Err(Error::OutOfRange { stripe: 0, offset, length }));
    }
}
