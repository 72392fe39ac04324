//! Neighbouring stripes go over all disk nodes, then over all disks; a range over many stripes runs
//! on all of them at once.

use std::time::Duration;

use crate::support::volume::STRIPE;
use crate::support::{Kind, Volume, sync, sync_all};
use blockio::protocol::Describe;
use blockio::{Config, DiskName, Stripes as _, read_range, write_range};
use bytes::Bytes;
use runtime::NodeId;
use runtime::seed::with_seed;

#[test]
fn no_disk_gets_a_second_request_before_every_disk_got_one() {
    let volume = Volume::start(1, 3, 2, Config::default());
    volume.set_latency(Duration::from_millis(10));
    let length = u64::from(STRIPE) * 12;
    volume.ask(async move |client| read_range(&client, 0, length).await).expect("all is well");

    let started = volume.started();
    let disks: Vec<_> = started.iter().map(|event| event.disk).collect();
    // The two stripes of each disk are neighbours there and go together.
    assert_eq!(disks, [0, 1, 2, 3, 4, 5]);
    assert!(started.iter().all(|event| event.at == started[0].at), "all at once");
}

#[test]
fn a_range_is_spread_evenly() {
    let volume = Volume::start(1, 2, 2, Config::default());
    let whole = volume.map.bytes();
    volume.ask(async move |client| read_range(&client, 0, whole).await).expect("all is well");
    let context = volume.context();
    volume.ask(async move |client| {
        for node in 0..2 {
            for status in context.spawn(NodeId::disk(node), Describe {}).await.expect("it is there")
            {
                assert_eq!(status.reads, client.map().stripes_on(DiskName::default()));
            }
        }
    });
}

#[test]
fn any_range_reads_back_as_written() {
    with_seed(|rng| {
        let volume = Volume::start(rng.bits(), 3, 2, Config::default());
        let whole = volume.map.bytes();
        let mut model = vec![0; whole as usize];
        for _ in 0..100 {
            let start = rng.below(whole);
            let length = rng.below((whole - start).min(5 * u64::from(STRIPE)) + 1);
            let mut data = vec![0; length as usize];
            rng.fill(&mut data);
            model[start as usize..][..data.len()].copy_from_slice(&data);
            let middle = rng.index(data.len() + 1);
            let mut data = Bytes::from(data);
            let pieces = vec![data.split_to(middle), data];
            volume
                .ask(async move |client| write_range(&client, start, pieces).await)
                .expect("the range exists");

            let start = rng.below(whole);
            let length = rng.below(whole - start + 1);
            let found = volume
                .ask(async move |client| read_range(&client, start, length).await)
                .expect("the range exists");
            assert_eq!(found.concat(), &model[start as usize..][..length as usize]);
        }
    });
}

#[test]
fn zeros_replace_exactly_their_range() {
    let volume = Volume::start(1, 1, 1, Config::default());
    let found = volume.ask(async |client| {
        let ones = Bytes::from(vec![1; STRIPE as usize]);
        client.write(3, 0, vec![ones]).await?;
        client.write_zeros(3, 100, 5000).await?;
        client.read(3, 0, STRIPE, Vec::new()).await
    });
    let found = found.expect("all is well");
    assert!(found[..100].iter().all(|&byte| byte == 1));
    assert!(found[100..5100].iter().all(|&byte| byte == 0));
    assert!(found[5100..].iter().all(|&byte| byte == 1));
}

#[test]
fn slots_are_apart_from_each_other_and_from_stripes() {
    let volume = Volume::start(1, 2, 2, Config::default());
    let slots = volume.geometry.slots_per_disk();
    let all: Vec<(DiskName, u32)> = (volume.map.disks().into_iter())
        .flat_map(|disk| (0..slots).map(move |slot| (disk, slot)))
        .collect();
    let fill = |index: usize| Bytes::from(vec![index as u8 + 1; 4096]);
    for (index, &(disk, slot)) in all.iter().enumerate() {
        let data = fill(index);
        volume.ask(async move |client| client.write_slot(disk, slot, data).await).expect("exists");
    }
    let whole = volume.map.bytes();
    volume
        .ask(async move |client| {
            write_range(&client, 0, vec![vec![0xEE; whole as usize].into()]).await
        })
        .expect("the range exists");
    for (index, &(disk, slot)) in all.iter().enumerate() {
        let found = volume.ask(async move |client| client.read_slot(disk, slot).await);
        assert_eq!(found, Ok(fill(index)), "slot {slot} of disk {disk}");
    }
}

#[test]
fn a_sync_flushes_only_the_disk_nodes_of_its_stripes() {
    let volume = Volume::start(1, 3, 1, Config::default());
    let write =
        |stripe| volume.ask(async move |client| client.write(stripe, 0, vec!["x".into()]).await);
    for stripe in 0..6 {
        write(stripe).expect("the stripe exists");
    }
    volume.started();
    volume.ask(async |client| sync(&client, vec![1, 4]).await).expect("the disks are good");
    let started = volume.started();
    assert_eq!(started.len(), 1, "two stripes of one node: one flush");
    assert_eq!((started[0].kind, started[0].disk), (Kind::Sync, 1));

    volume.ask(async |client| sync_all(&client).await).expect("the disks are good");
    let disks: Vec<_> = volume.started().iter().map(|event| event.disk).collect();
    assert_eq!(disks, [0, 2], "no stripe named: all nodes, but disk 1 holds nothing unflushed");
}
