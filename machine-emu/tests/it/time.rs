//! Virtual time: timers, idleness, clocks, and worlds that stand still.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use machine_emu::{World, WorldShape};
use runtime::NodeId;
use runtime::sync::Event;

use crate::kit::{Never, Slowly, application, serving};

fn world() -> World {
    World::new(11, WorldShape { fs_nodes: 2, disk_nodes: 0 })
}

#[test]
fn timers_go_off_in_their_order_and_exactly_in_time() {
    let world = world();
    let context = world.context(NodeId::fs(0));
    let order = Rc::new(RefCell::new(Vec::new()));
    for delay in [30, 10, 20] {
        let (inside, order, context) = (world.clone(), order.clone(), context.clone());
        context.clone().task(async move {
            context.sleep(Duration::from_millis(delay)).await;
            assert_eq!(inside.now(), Duration::from_millis(delay));
            order.borrow_mut().push(delay);
        });
    }
    world.advance(Duration::from_millis(15));
    assert_eq!(*order.borrow(), [10]);
    assert_eq!(world.now(), Duration::from_millis(15));
    world.run_until_idle();
    assert_eq!(*order.borrow(), [10, 20, 30]);
}

#[test]
fn a_loop_without_a_pause_does_not_stop_time() {
    let world = world();
    let context = world.context(NodeId::fs(0));
    let spinning = context.clone();
    context.task(async move {
        loop {
            spinning.sleep(Duration::ZERO).await;
        }
    });
    world.advance(Duration::from_micros(10));
    assert_eq!(world.now(), Duration::from_micros(10));
}

#[test]
#[should_panic(expected = "deadlock in the world of seed 11")]
fn a_deadlock_is_reported_with_the_seed() {
    world().run(Event::default().next().then_never());
}

trait ThenNever: Future<Output = ()> + Sized {
    /// An event that is gone resolves; wait on.
    async fn then_never(self) {
        self.await;
        futures::future::pending::<()>().await;
    }
}
impl<F: Future<Output = ()>> ThenNever for F {}

#[test]
#[should_panic(expected = "application node 0 waits for the reply of node 1")]
fn a_deadlock_names_who_waits_for_whom() {
    let world = serving(5, 2);
    let _ = world.run(application(&world).spawn(NodeId::fs(1), Never {}));
}

#[test]
#[should_panic(expected = "stands still")]
fn a_task_that_polls_instead_of_waiting_is_reported() {
    let world = world();
    world.context(NodeId::fs(0)).task(std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }));
    world.run_until_idle();
}

#[test]
fn what_does_not_end_in_bounded_time_is_told_from_what_does() {
    let world = world();
    let context = world.context(NodeId::fs(0));
    let limit = Duration::from_secs(5);
    assert_eq!(world.run_within(limit, context.sleep(Duration::from_secs(4))), Some(()));
    assert_eq!(world.run_within(limit, context.sleep(Duration::from_secs(6))), None);
    assert!(world.now() <= Duration::from_secs(9));
    assert_eq!(world.run_within(limit, futures::future::pending::<()>()), None);
}

/// In which order the tasks of a node run.
fn order_of_steps(seed: u64, shuffled: bool) -> Vec<u32> {
    let world = World::new(seed, WorldShape { fs_nodes: 1, disk_nodes: 0 });
    if shuffled {
        world.shuffle_steps();
    }
    let context = world.context(NodeId::fs(0));
    let order = Rc::new(RefCell::new(Vec::new()));
    for task in 0..20 {
        let order = order.clone();
        context.task(async move { order.borrow_mut().push(task) });
    }
    world.run_until_idle();
    order.take()
}

#[test]
fn tasks_run_in_turn_unless_the_seed_shall_shuffle_them() {
    assert!(order_of_steps(1, false).is_sorted());
    let shuffled = order_of_steps(1, true);
    assert!(!shuffled.is_sorted());
    assert_eq!(shuffled, order_of_steps(1, true));
    assert_ne!(shuffled, order_of_steps(2, true));
}

#[test]
fn idle_resolves_when_the_node_has_nothing_to_run() {
    let world = world();
    let context = world.context(NodeId::fs(0));
    let rounds = Rc::new(Cell::new(0));
    let (busy, counted) = (context.clone(), rounds.clone());
    context.task(async move {
        for _ in 0..100 {
            busy.sleep(Duration::from_micros(10)).await;
            counted.set(counted.get() + 1);
        }
    });
    world.run(context.idle());
    assert_eq!(rounds.get(), 100, "a node that runs every 10 us is not idle");
    assert!(world.now() < Duration::from_millis(2));
}

#[test]
fn a_node_whose_request_waits_is_not_idle() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    let client = application(&world);
    let duration = Duration::from_millis(3);
    client.notify(NodeId::fs(0), Slowly { nanoseconds: duration.as_nanos() as u64 });
    world.advance(Duration::from_micros(50));
    world.run(context.idle());
    assert!(world.now() >= duration, "{:?}", world.now());
}

#[test]
fn background_work_of_an_idle_node_costs_little_and_wakes_up_for_a_request() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    let rounds = Rc::new(Cell::new(0));
    let (background, counted) = (context.clone(), rounds.clone());
    context.task(async move {
        loop {
            background.idle().await;
            counted.set(counted.get() + 1);
        }
    });
    world.advance(Duration::from_secs(10));
    assert!((900..2_000).contains(&rounds.get()), "{}", rounds.get());
    let before = rounds.get();
    let client = application(&world);
    world.run(client.spawn(NodeId::fs(0), Slowly { nanoseconds: 100_000 })).unwrap();
    world.advance(Duration::from_millis(2));
    assert!(rounds.get() >= before + 4, "background work resumes at its usual pace");
}

#[test]
fn clocks_of_nodes_differ_and_jump() {
    let world = world();
    let [first, second] = [0, 1].map(|index| world.context(NodeId::fs(index)));
    assert_ne!(first.now(), second.now(), "the clocks of two nodes are not comparable");
    assert_eq!(first.unix_time(), second.unix_time());
    world.node(NodeId::fs(0)).jump_clock(-86_400);
    assert_eq!(first.unix_time() + Duration::from_hours(24), second.unix_time());
    let (wall, monotonic) = (first.unix_time(), first.now());
    world.advance(Duration::from_secs(1));
    assert_eq!(first.unix_time(), wall + Duration::from_secs(1));
    assert_eq!(first.now(), monotonic + Duration::from_secs(1));
}
