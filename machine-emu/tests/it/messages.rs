//! Messages: their time, their order, and what may happen to them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use machine_emu::{FaultKind, FaultTolerance, LinkTiming, NetworkFaults, NetworkTiming};
use runtime::seed::with_seed;
use runtime::{NodeId, Undelivered};

use crate::kit::{Count, Echo, Hop, Ping, application, serving};

/// No jitter, no bandwidth.
fn exact(latency_ns: u64) -> NetworkTiming {
    NetworkTiming { latency_ns, picoseconds_per_byte: 0, jitter_ns: 0, lost_after_ns: 1_000_000 }
}

#[test]
fn the_latency_of_each_way_adds_up() {
    let world = serving(1, 4);
    world.network().set_timing(exact(1_000));
    let context = application(&world);
    let hops = world.run(context.spawn(NodeId::fs(0), Hop { hops: 7 }));
    assert_eq!(hops, Ok(7));
    assert_eq!(world.now(), Duration::from_micros(2 * 8));
}

#[test]
fn a_node_calls_itself_without_the_network() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Ping { number: 5 })), Ok(5));
    assert_eq!(world.now(), Duration::ZERO);
    assert_eq!(world.counters().messages, 0);
}

#[test]
fn a_payload_takes_the_time_of_its_bytes_and_comes_back_equal() {
    let world = serving(1, 1);
    let timing = NetworkTiming { picoseconds_per_byte: 1_000, ..exact(0) };
    world.network().set_timing(timing);
    let context = application(&world);
    let data = Bytes::from(vec![7; 1 << 20]);
    let echo = world.run(context.spawn(NodeId::fs(0), Echo { data: data.clone() }));
    assert_eq!(echo, Ok(data));
    let transfer = Duration::from_nanos(2 << 20);
    assert!(world.now() >= transfer && world.now() < transfer + Duration::from_micros(1));
}

#[test]
fn control_overtakes_bulk_and_each_class_keeps_its_order() {
    let world = serving(3, 1);
    world.network().set_timing(NetworkTiming { picoseconds_per_byte: 1_000, ..Default::default() });
    let context = application(&world);
    let order = Rc::new(RefCell::new(Vec::new()));
    world.run(async {
        let bulk = (0..10).map(|number| {
            let echo = context.spawn(NodeId::fs(0), Echo { data: vec![0; 100_000].into() });
            let order = order.clone();
            async move {
                echo.await.unwrap();
                order.borrow_mut().push(number);
            }
        });
        let bulk = join_all(bulk.collect::<Vec<_>>());
        let control = async {
            context.spawn(NodeId::fs(0), Ping { number: 0 }).await.unwrap();
            order.borrow_mut().push(100);
        };
        futures::join!(bulk, control);
    });
    assert_eq!(*order.borrow(), [100, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn jitter_does_not_change_the_order_of_a_link() {
    let world = serving(3, 1);
    world.network().set_timing(NetworkTiming { jitter_ns: 1_000_000, ..exact(1_000) });
    let context = application(&world);
    let order = Rc::new(RefCell::new(Vec::new()));
    world.run(join_all((0..100).map(|number| {
        let ping = context.spawn(NodeId::fs(0), Ping { number });
        let order = order.clone();
        async move {
            let answer = ping.await.unwrap();
            order.borrow_mut().push(answer);
        }
    })));
    assert!(order.borrow().is_sorted());
}

#[test]
fn the_caller_of_a_lost_message_hears_so_after_the_timeout() {
    let world = serving(1, 1);
    world.network().set_timing(exact(1_000));
    world.network().set_faults(NetworkFaults { loss_ppm: 1_000_000, ..Default::default() });
    let context = application(&world);
    let answer = world.run(context.spawn(NodeId::fs(0), Ping { number: 1 }));
    assert_eq!(answer, Err(Undelivered::Lost));
    assert_eq!(world.now(), Duration::from_millis(1));
    assert_eq!(world.counters().faults[&FaultKind::MessageLost], 1);
}

#[test]
fn a_doubled_request_runs_twice_and_is_answered_once() {
    let world = serving(1, 1);
    world.network().set_faults(NetworkFaults { duplicate_ppm: 1_000_000, ..Default::default() });
    let context = application(&world);
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Count {})), Ok(1));
    world.network().set_faults(NetworkFaults::default());
    world.run_until_idle();
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Count {})), Ok(3));
}

#[test]
fn a_damaged_message_is_never_delivered() {
    with_seed(|rng| {
        let world = serving(rng.bits(), 1);
        world.network().set_faults(NetworkFaults { corrupt_ppm: 300_000, ..Default::default() });
        let context = application(&world);
        world.run(async {
            for number in 0..200 {
                match context.spawn(NodeId::fs(0), Ping { number }).await {
                    Ok(answer) => assert_eq!(answer, number),
                    Err(error) => assert_eq!(error, Undelivered::Lost),
                }
            }
        });
        assert!(world.counters().faults[&FaultKind::MessageCorrupted] > 50);
    });
}

#[test]
fn reordered_and_delayed_messages_all_arrive() {
    with_seed(|rng| {
        let world = serving(rng.bits(), 2);
        world.network().set_faults(NetworkFaults {
            reorder_ppm: 300_000,
            delay_ppm: 100_000,
            delay_max_ns: 5_000_000,
            ..Default::default()
        });
        let context = application(&world);
        let order = Rc::new(RefCell::new(Vec::new()));
        world.run(join_all((0..200).map(|number| {
            let ping = context.spawn(NodeId::fs(1), Ping { number });
            let order = order.clone();
            async move {
                let answer = ping.await.unwrap();
                order.borrow_mut().push(answer);
            }
        })));
        let mut order = order.take();
        assert!(!order.is_sorted(), "some message must have overtaken another");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..200));
    });
}

#[test]
fn a_one_way_cut_loses_replies_but_not_requests_and_heals() {
    let world = serving(1, 1);
    let context = application(&world);
    world.network().cut(NodeId::fs(0), context.node());
    let lost = world.run(context.spawn(NodeId::fs(0), Count {}));
    assert_eq!(lost, Err(Undelivered::Lost));
    world.network().heal();
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Count {})), Ok(2));
}

#[test]
fn a_partition_separates_its_sides_only() {
    let world = serving(1, 3);
    let [first, second, third] = [0, 1, 2].map(NodeId::fs);
    world.network().partition(&[first], &[second, third]);
    let from = |node| world.context(node);
    let lost = Err(Undelivered::Lost);
    assert_eq!(world.run(from(first).spawn(second, Ping { number: 1 })), lost);
    assert_eq!(world.run(from(third).spawn(first, Ping { number: 1 })), lost);
    assert_eq!(world.run(from(second).spawn(third, Ping { number: 1 })), Ok(1));
    world.network().heal();
    assert_eq!(world.run(from(first).spawn(second, Ping { number: 1 })), Ok(1));
}

#[test]
fn what_was_held_for_a_clogged_node_arrives_later() {
    let world = serving(1, 2);
    let context = application(&world);
    world.network().clog(NodeId::fs(0));
    let waiting = context.spawn(NodeId::fs(0), Count {});
    assert_eq!(world.run(context.spawn(NodeId::fs(1), Ping { number: 1 })), Ok(1));
    world.advance(Duration::from_mins(1));
    world.network().unclog(NodeId::fs(0));
    assert_eq!(world.run(waiting), Ok(1));
}

#[test]
fn a_request_to_a_node_that_does_not_exist_or_serve_is_refused() {
    let world = serving(1, 1);
    let context = application(&world);
    let unreachable = Err(Undelivered::Unreachable);
    assert_eq!(world.run(context.spawn(NodeId::fs(9), Ping { number: 1 })), unreachable);
    assert_eq!(world.run(context.spawn(NodeId::disk(0), Ping { number: 1 })), unreachable);
}

#[test]
fn only_what_is_expendable_is_lost_by_chance() {
    let world = serving(7, 1);
    world.network().set_faults(NetworkFaults { loss_ppm: 1_000_000, ..Default::default() });
    // Row 1 is Ping.
    world.network().set_fault_tolerance(|_, tag| {
        if tag == 1 { FaultTolerance::All } else { FaultTolerance::Nothing }
    });
    let context = application(&world);
    let lost = world.run(context.spawn(NodeId::fs(0), Ping { number: 1 }));
    assert_eq!(lost, Err(Undelivered::Lost));
    assert!(world.run(context.spawn(NodeId::fs(0), Count {})).is_ok());
}

#[test]
fn a_link_has_a_latency_and_a_bandwidth_of_its_own_in_one_direction() {
    let world = serving(1, 2);
    world.network().set_timing(exact(1_000));
    let context = application(&world);
    let [here, near, far] = [context.node(), NodeId::fs(0), NodeId::fs(1)];
    let slow = LinkTiming { latency_ns: 500_000, picoseconds_per_byte: 1_000_000, tcp: None };
    world.network().slow_link(here, far, slow);
    let took = |node, data: &'static [u8]| {
        let before = world.now();
        world.run(context.spawn(node, Echo { data: Bytes::from_static(data) })).unwrap();
        world.now().saturating_sub(before)
    };
    assert_eq!(took(near, &[0; 1000]), Duration::from_micros(2));
    let small = took(far, &[]);
    assert!(small > Duration::from_micros(501), "{small:?}");
    // A byte takes a microsecond on the way there, and nothing on the way back.
    assert_eq!(took(far, &[0; 1000]), small + Duration::from_millis(1));
    assert_eq!(world.counters().faults[&FaultKind::LinkSlowed], 1);
    world.network().reset_links();
    assert_eq!(took(far, &[0; 1000]), Duration::from_micros(2));
}

#[test]
fn nodes_clogged_one_by_one_and_freed_in_another_order_lose_nothing() {
    let world = serving(5, 4);
    let context = application(&world);
    let nodes = [0, 1, 2, 3].map(NodeId::fs);
    let mut asked = Vec::new();
    for node in nodes {
        world.network().clog(node);
        asked.push(context.spawn(node, Count {}));
        world.advance(Duration::from_millis(1));
    }
    for index in [2, 0, 3, 1] {
        world.network().unclog(nodes[index]);
        world.advance(Duration::from_millis(1));
    }
    for answer in world.run(join_all(asked)) {
        assert_eq!(answer, Ok(1));
    }
}
