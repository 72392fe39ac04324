//! Full is `Busy` and harmless; what does not exist is refused.

use std::time::Duration;

use crate::support::Volume;
use crate::support::volume::STRIPE;
use blockio::protocol::{Error, Read, ReadSlot, SLOT_SIZE, Unsynced, Write, WriteSlot};
use blockio::{Config, DiskName, Stripes as _};
use bytes::Bytes;
use futures::future::join_all;
use runtime::{NodeId, Undelivered};

const LATENCY: Duration = Duration::from_millis(10);
const BUSY: Error = Error::Undelivered { why: Undelivered::Busy };

fn full_stripe() -> Vec<Bytes> {
    vec![vec![1; STRIPE as usize].into()]
}

#[test]
fn a_write_without_buffer_space_is_busy_and_works_later() {
    let config = Config { write_buffer_bytes: 2 * STRIPE as usize, ..Config::default() };
    let volume = Volume::start(1, 1, 1, config);
    volume.set_latency(LATENCY);
    let context = volume.context();
    volume.world.run(async move {
        let write = |stripe| {
            let data = full_stripe();
            context.spawn(NodeId::disk(0), Write { stripe, offset: 0, data })
        };
        let answers = join_all((0..3).map(write)).await;
        let answers = answers.into_iter().map(|answer| answer.map(drop));
        assert_eq!(answers.collect::<Vec<_>>(), [Ok(()), Ok(()), Err(BUSY)]);
        assert!(write(2).await.is_ok(), "the space came back");
    });
}

#[test]
fn the_client_waits_until_a_busy_node_has_room() {
    let config = Config { write_buffer_bytes: 2 * STRIPE as usize, ..Config::default() };
    let volume = Volume::start(1, 1, 1, config);
    volume.set_latency(LATENCY);
    let answers = volume.ask(async |client| {
        // Far more than tries: those who come back together would push each other out.
        join_all((0..100).map(|i| client.write(i % 50, 0, full_stripe()))).await
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn the_client_gives_up_on_a_node_that_stays_busy() {
    let config = Config { write_buffer_bytes: STRIPE as usize, ..Config::default() };
    let volume = Volume::start(1, 1, 1, config);
    volume.set_latency(Duration::from_hours(1));
    let context = volume.context();
    let waited = volume.ask(async move |client| {
        let stuck = client.write(0, 0, full_stripe());
        context.task(async move {
            let _ = stuck.await;
        });
        // The stuck write comes first.
        context.sleep(Duration::from_millis(1)).await;
        let began = context.now();
        assert_eq!(client.write(1, 0, full_stripe()).await, Err(BUSY));
        context.now().saturating_sub(began)
    });
    assert!(Duration::from_secs(1) < waited && waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn one_stripe_has_room_in_the_smallest_buffer() {
    let config = Config { write_buffer_bytes: 0, ..Config::default() };
    let volume = Volume::start(1, 1, 1, config);
    let answer = volume.ask(async |client| client.write(0, 0, full_stripe()).await);
    assert_eq!(answer.map(drop), Ok(()));
}

#[test]
fn a_full_queue_is_busy() {
    let config = Config { depth_per_disk: 2, queue_length_max: 3, ..Config::default() };
    let volume = Volume::start(1, 1, 1, config);
    volume.set_latency(LATENCY);
    let context = volume.context();
    let answers = volume.world.run(async move {
        let read = |stripe| context.spawn(NodeId::disk(0), Read { stripe, offset: 0, length: 8 });
        join_all((0..7).map(read)).await
    });
    let done: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(done, [true, true, true, true, true, false, false]);
    assert_eq!(answers[6], Err(BUSY));
}

#[test]
fn bytes_that_do_not_exist_are_refused_by_client_and_server() {
    let volume = Volume::start(1, 2, 1, Config::default());
    let (context, stripes) = (volume.context(), volume.map.stripes());
    volume.ask(async move |client| {
        let beyond = [(stripes, 0, 1), (u64::MAX, 0, 1), (0, STRIPE, 1), (0, u32::MAX, u32::MAX)];
        for (stripe, offset, length) in beyond {
            let expected = Error::OutOfRange { stripe, offset, length };
            let by_client = client.read(stripe, offset, length, Vec::new()).await;
            assert_eq!(by_client, Err(expected));
            let by_server = context.spawn(NodeId::disk(0), Read { stripe, offset, length }).await;
            assert_eq!(by_server, Err(expected));
        }
        let data = vec![vec![0; STRIPE as usize].into(), Bytes::from_static(b"x")];
        let expected = Err(Error::OutOfRange { stripe: 0, offset: 0, length: STRIPE + 1 });
        assert_eq!(client.write(0, 0, data.clone()).await, expected);
        let write = Write { stripe: 0, offset: 0, data };
        assert_eq!(context.spawn(NodeId::disk(0), write).await, expected);
        assert!(client.sync(vec![Unsynced { stripe: stripes, boot_id: 0 }]).await.is_err());
        assert!(client.write_zeros(0, 1, STRIPE).await.is_err());
        assert!(client.forget(0, 1, STRIPE).await.is_err());
    });
    assert_eq!(volume.started(), [], "no disk was bothered");
}

#[test]
fn a_stripe_of_another_node_is_refused() {
    let volume = Volume::start(1, 2, 1, Config::default());
    let context = volume.context();
    let answer = volume.world.run(async move {
        context.spawn(NodeId::disk(0), Read { stripe: 1, offset: 0, length: 1 }).await
    });
    assert_eq!(answer, Err(Error::OutOfRange { stripe: 1, offset: 0, length: 1 }));
}

#[test]
fn slots_that_do_not_exist_are_refused() {
    let volume = Volume::start(1, 1, 2, Config::default());
    let (context, slots) = (volume.context(), volume.geometry.slots_per_disk());
    volume.ask(async move |client| {
        for (disk, slot) in [(256, 0), (0, slots), (u32::MAX, u32::MAX)] {
            let expected = Error::NoSuchSlot { disk, slot, length: 4096 };
            assert_eq!(
                client.read_slot(DiskName { disk_node: 0, disk }, slot).await,
                Err(expected)
            );
            let by_server = context.spawn(NodeId::disk(0), ReadSlot { disk, slot }).await;
            assert_eq!(by_server, Err(expected));
        }
        for length in [0, 4095, 4097] {
            let expected = Error::NoSuchSlot { disk: 1, slot: 0, length: length as u64 };
            let write = WriteSlot { disk: 1, slot: 0, data: vec![0; length].into() };
            assert_eq!(context.spawn(NodeId::disk(0), write).await, Err(expected));
        }
    });
}

#[test]
fn a_slot_of_a_disk_that_may_be_coming_is_waited_for() {
    let volume = Volume::start(1, 1, 2, Config::default());
    let context = volume.context();
    let answer = volume.world.run(async move {
        let data = vec![0; SLOT_SIZE].into();
        context.spawn(NodeId::disk(0), WriteSlot { disk: 2, slot: 0, data }).await
    });
    assert_eq!(answer, Err(Undelivered::Busy.into()));
}
