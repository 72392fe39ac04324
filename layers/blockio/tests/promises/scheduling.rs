//! The I/O manager: a queue per disk, every disk busy, neighbours go together, flushes are shared
//! by those who may share them.

use std::time::Duration;

use crate::support::volume::STRIPE;
use crate::support::{Kind, Volume, sync, sync_all};
use blockio::protocol::{Describe, DiskStatus, Latency};
use blockio::server::DEPTH_PER_DISK;
use blockio::{BlockClient, Config, DiskName, Stripes as _};
use bytes::Bytes;
use futures::future::join_all;
use runtime::NodeId;

const LATENCY: Duration = Duration::from_millis(10);

fn slow_volume(disks: u32, depth_per_disk: usize) -> Volume {
    let volume = Volume::start(1, 1, disks, Config { depth_per_disk, ..Config::default() });
    volume.set_latency(LATENCY);
    volume
}

async fn read_all(client: BlockClient, stripes: Vec<u64>) {
    let reads = stripes.into_iter().map(|stripe| client.read(stripe, 0, 512, Vec::new()));
    for read in join_all(reads).await {
        read.expect("the stripe exists");
    }
}

#[test]
fn requests_of_a_disk_start_in_the_order_in_which_they_came() {
    let volume = slow_volume(1, 2);
    let stripes = vec![5, 3, 9, 1, 7, 0, 2];
    let offsets: Vec<_> =
        stripes.iter().map(|&stripe| volume.geometry.stripe_offset(stripe)).collect();
    volume.ask(async move |client| read_all(client, stripes).await);
    let started = volume.started();
    assert_eq!(started.iter().map(|event| event.offset).collect::<Vec<_>>(), offsets);
    let at: Vec<_> = started.iter().map(|event| event.at.saturating_sub(started[0].at)).collect();
    let turns = [0, 0, 1, 1, 2, 2, 3].map(|turn| LATENCY * turn);
    assert_eq!(at, turns, "two at a time, the next as soon as one is done");
}

#[test]
fn every_idle_disk_gets_a_request_before_any_disk_gets_two() {
    let volume = slow_volume(3, DEPTH_PER_DISK);
    // Disk 0 holds stripes 0, 3, 6, ...: it is asked for far more than the others.
    let stripes = vec![0, 3, 6, 9, 12, 15, 18, 21, 1, 2];
    volume.ask(async move |client| read_all(client, stripes).await);
    let started = volume.started();
    let first: Vec<_> =
        started.iter().filter(|event| event.at == started[0].at).map(|event| event.disk).collect();
    assert_eq!(first, [0, 1, 2, 0, 0, 0], "a full disk does not hold up the others");
}

#[test]
fn a_pass_goes_round_the_disks() {
    let volume = slow_volume(2, 1);
    // While both disks are busy four requests queue up, those of disk 0 first.
    let stripes = vec![0, 1, 2, 4, 3, 5];
    volume.ask(async move |client| read_all(client, stripes).await);
    let disks: Vec<_> = volume.started().iter().map(|event| event.disk).collect();
    assert_eq!(disks, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn no_disk_has_more_in_flight_than_its_depth() {
    for depth in [1, 4, 7] {
        let volume = slow_volume(2, depth);
        volume.ask(async move |client| read_all(client, (0..60).collect()).await);
        for disk in &volume.disks {
            assert_eq!(disk.in_flight_max(), depth);
        }
    }
}

#[test]
fn syncs_that_come_while_a_flush_runs_share_the_next_one() {
    let volume = slow_volume(1, DEPTH_PER_DISK);
    let context = volume.context();
    let done_ms = volume.ask(async move |client| {
        let began = context.now();
        let syncs = [0, 1, 5, 9].map(|pause_ms| {
            let (client, context) = (client.clone(), context.clone());
            async move {
                client.write(0, pause_ms * 8, vec!["x".into()]).await.expect("exists");
                // The writes are done at 10 ms.
                context.sleep(Duration::from_millis(u64::from(pause_ms))).await;
                sync_all(&client).await.expect("the disk is good");
                context.now().saturating_sub(began).as_millis()
            }
        });
        join_all(syncs).await
    });
    assert_eq!(done_ms, [20, 30, 30, 30]);
    let flushes = volume.started_ms(Kind::Sync);
    assert_eq!(flushes.len(), 2);
    assert_eq!(flushes[1] - flushes[0], 10, "the shared flush starts after the one that ran");
}

#[test]
fn a_disk_without_new_writes_is_not_flushed_again() {
    let volume = slow_volume(1, DEPTH_PER_DISK);
    let flushes = || {
        volume.ask(async |client| sync_all(&client).await).expect("the disk is good");
        volume.started_ms(Kind::Sync).len()
    };
    assert_eq!(flushes(), 1, "an earlier process may have left unflushed writes");
    assert_eq!(flushes(), 0);
    volume.ask(async |client| client.write(0, 0, vec!["x".into()]).await).expect("exists");
    assert_eq!(flushes(), 1);
    assert_eq!(flushes(), 0);
}

#[test]
fn a_write_that_ends_during_a_flush_is_not_taken_for_flushed() {
    let volume = slow_volume(1, DEPTH_PER_DISK);
    let context = volume.context();
    volume.ask(async move |client| {
        let early = async {
            client.write(0, 0, vec!["x".into()]).await.expect("exists");
            sync_all(&client).await.expect("the disk is good");
        };
        // Runs from 5 to 15 ms, the flush from 10 to 20.
        let late = async {
            context.sleep(LATENCY / 2).await;
            client.write(0, 8, vec!["y".into()]).await.expect("exists");
        };
        futures::future::join(early, late).await;
        sync_all(&client).await.expect("the disk is good");
    });
    assert_eq!(volume.started_ms(Kind::Sync).len(), 2);
}

#[test]
fn neighbours_that_wait_go_to_the_disk_together() {
    let volume = slow_volume(1, 1);
    let context = volume.context();
    let status = volume.ask(async move |client| {
        let written = |stripe: u64| vec![Bytes::from(vec![stripe as u8; STRIPE as usize])];
        // 5 is the oldest, and continues the others but for 9.
        let stripes = [5, 2, 9, 3, 4];
        let writes = stripes.map(|stripe| client.write(stripe, 0, written(stripe)));
        for answer in join_all(writes).await {
            answer.expect("the stripe exists");
        }
        let reads = stripes.map(|stripe| client.read(stripe, 0, STRIPE, Vec::new()));
        for (stripe, read) in stripes.into_iter().zip(join_all(reads).await) {
            assert_eq!(read, Ok(Bytes::from(vec![stripe as u8; STRIPE as usize])));
        }
        context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there")
    });
    let started = volume.started();
    let offsets: Vec<_> = started.iter().map(|event| event.offset).collect();
    let expected = [2, 9, 2, 9].map(|stripe| volume.geometry.stripe_offset(stripe));
    assert_eq!(offsets, expected);
    let DiskStatus { reads, writes, merged, written_bytes, .. } = status[0];
    assert_eq!((reads, writes, merged), (5, 5, 6));
    assert_eq!(written_bytes, 5 * u64::from(STRIPE));
}

#[test]
fn a_transfer_does_not_grow_past_its_limit() {
    let volume = slow_volume(1, 1);
    let stripes = volume.map.stripes().min(40);
    volume.ask(async move |client| {
        let reads = (0..stripes).map(|stripe| client.read(stripe, 0, STRIPE, Vec::new()));
        assert!(join_all(reads).await.iter().all(Result::is_ok));
    });
    let transfers = volume.started_ms(Kind::Read).len() as u64;
    let per_transfer = (1 << 20) / u64::from(STRIPE);
    assert_eq!(transfers, stripes.div_ceil(per_transfer));
}

#[test]
fn a_bad_place_fails_only_the_read_that_needs_it() {
    let volume = slow_volume(1, 1);
    volume.disks[0].fail_reads_at(volume.geometry.stripe_offset(2));
    let answers = volume.ask(async move |client| {
        join_all((0..5).map(|stripe| client.read(stripe, 0, STRIPE, Vec::new()))).await
    });
    let readable: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(readable, [true, true, false, true, true]);
}

#[test]
fn reads_and_writes_take_turns() {
    let volume = slow_volume(1, 1);
    volume.ask(async move |client| {
        let writes = (0..4).map(|i| client.write(2 * i, 0, vec!["x".into()]));
        let reads = (0..4).map(|i| client.read(2 * i + 1, 0, 512, Vec::new()));
        let (written, read) = futures::future::join(join_all(writes), join_all(reads)).await;
        assert!(written.iter().all(Result::is_ok) && read.iter().all(Result::is_ok));
    });
    let kinds: Vec<_> = volume.started().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::Read, Kind::Write].repeat(4));
}

#[test]
fn a_node_tells_how_long_its_disks_take() {
    let volume = slow_volume(1, 1);
    let context = volume.context();
    let status = volume.ask(async move |client| {
        // Each waits for those before it.
        read_all(client.clone(), vec![0, 2, 4, 6]).await;
        client.write(0, 0, vec!["x".into()]).await.expect("exists");
        sync_all(&client).await.expect("the disk is good");
        context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there")
    });
    let DiskStatus { read_latency, write_latency, sync_latency, .. } = status[0];
    let millis = |ns: u64| ns / 1_000_000;
    assert_eq!((read_latency.count, millis(read_latency.max_ns)), (4, 40));
    assert!((20..=22).contains(&millis(read_latency.p50_ns)), "{read_latency:?}");
    assert_eq!(millis(read_latency.p99_ns), 40);
    let one = Latency { count: 1, p50_ns: 10_000_000, p99_ns: 10_000_000, max_ns: 10_000_000 };
    assert_eq!((write_latency, sync_latency), (one, one));
}

#[test]
fn a_node_tells_what_its_disks_did() {
    let volume = Volume::start(1, 1, 2, Config::default());
    let context = volume.context();
    let status = volume.ask(async move |client| {
        client.write(0, 0, vec!["check".into(), "point".into()]).await.expect("exists");
        client.read(1, 0, 4096, Vec::new()).await.expect("exists");
        sync(&client, vec![0]).await.expect("the disk is good");
        context.spawn(NodeId::disk(0), Describe {}).await.expect("it is there")
    });
    let idle = DiskStatus {
        disk: 0,
        stripes: volume.map.stripes_on(DiskName::default()),
        queued: 0,
        healthy: true,
        reads: 0,
        writes: 0,
        syncs: 1,
        read_bytes: 0,
        written_bytes: 0,
        direct: true,
        merged: 0,
        busy: 0,
        read_latency: Latency::default(),
        write_latency: Latency::default(),
        sync_latency: Latency::default(),
        path: String::new(),
        obstacle: None,
        obstacle_since: 0,
    };
    // The disks of this test take no time.
    let once = Latency { count: 1, ..Latency::default() };
    let written = DiskStatus { writes: 1, written_bytes: 10, write_latency: once, ..idle.clone() };
    let written = DiskStatus { sync_latency: once, ..written };
    let read = DiskStatus { reads: 1, read_bytes: 4096, read_latency: once, ..idle };
    let read = DiskStatus { disk: 1, sync_latency: once, ..read };
    assert_eq!(status, [written, read]);
}
