//! Nodes die, come back, freeze and grow slow.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use runtime::{Context, Epoch, NodeId, Undelivered};

use crate::kit::{Count, Never, Ping, Slowly, application, serve, serving};

#[test]
fn the_caller_of_a_node_that_dies_half_way_hears_lost() {
    let world = serving(1, 1);
    let context = application(&world);
    let answer = world.run(async {
        let pending = context.spawn(NodeId::fs(0), Slowly { nanoseconds: 1_000_000 });
        context.sleep(Duration::from_micros(100)).await;
        world.kill(NodeId::fs(0));
        pending.await
    });
    assert_eq!(answer, Err(Undelivered::Lost));
    assert!(!world.is_alive(NodeId::fs(0)));
}

#[test]
fn a_dead_node_refuses_or_swallows_messages_and_a_fresh_one_has_no_memory() {
    let world = serving(1, 1);
    let context = application(&world);
    let node = NodeId::fs(0);
    assert_eq!(world.run(context.spawn(node, Count {})), Ok(1));
    world.kill(node);
    let mut heard = Vec::new();
    for _ in 0..40 {
        heard.push(world.run(context.spawn(node, Count {})).unwrap_err());
    }
    assert!(heard.contains(&Undelivered::Unreachable) && heard.contains(&Undelivered::Lost));
    serve(&world.restart(node));
    assert_eq!(world.run(context.spawn(node, Count {})), Ok(1));
}

/// Asks another node for something when dropped, in every way there is.
struct LastWords(Context);

impl Drop for LastWords {
    fn drop(&mut self) {
        self.0.notify(NodeId::fs(1), Count {});
        let context = self.0.clone();
        self.0.task(async move {
            let _ = context.spawn(NodeId::fs(1), Count {}).await;
        });
        drop(self.0.spawn(NodeId::fs(0), Count {}));
    }
}

#[test]
fn the_last_words_of_a_dying_node_are_not_heard() {
    let world = serving(1, 2);
    let context = world.context(NodeId::fs(0));
    let words = LastWords(context.clone());
    context.task(async move {
        // A direct call that is dropped half-way as well.
        let _ = words.0.spawn(NodeId::fs(0), Never {}).await;
    });
    world.advance(Duration::from_micros(1));
    world.kill(NodeId::fs(0));
    // The same from a context that outlives its incarnation.
    drop(LastWords(context));
    world.advance(Duration::from_secs(1));
    assert_eq!(world.run(application(&world).spawn(NodeId::fs(1), Count {})), Ok(1));
}

#[test]
fn a_task_given_to_a_dead_node_never_runs() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    world.kill(NodeId::fs(0));
    let ran = Rc::new(Cell::new(false));
    let flag = ran.clone();
    context.task(async move { flag.set(true) });
    world.restart(NodeId::fs(0));
    world.run_until_idle();
    assert!(!ran.get());
}

#[test]
fn a_node_may_kill_itself() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    let after = Rc::new(Cell::new(false));
    let (inside, flag, own) = (world.clone(), after.clone(), context.clone());
    context.task(async move {
        inside.kill(NodeId::fs(0));
        own.sleep(Duration::from_nanos(1)).await;
        flag.set(true);
    });
    world.run_until_idle();
    assert!(!after.get(), "a dead node does not run on");
}

#[test]
fn a_frozen_node_goes_on_later_as_if_nothing_were() {
    let world = serving(1, 1);
    let context = application(&world);
    world.node(NodeId::fs(0)).freeze(Duration::from_mins(1));
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Ping { number: 3 })), Ok(3));
    assert!(world.now() >= Duration::from_mins(1));
}

#[test]
fn a_frozen_node_that_is_restarted_runs_at_once() {
    let world = serving(1, 1);
    let context = application(&world);
    world.node(NodeId::fs(0)).freeze(Duration::from_mins(1));
    context.notify(NodeId::fs(0), Ping { number: 1 });
    world.advance(Duration::from_millis(1));
    serve(&world.restart(NodeId::fs(0)));
    assert_eq!(world.run(context.spawn(NodeId::fs(0), Ping { number: 3 })), Ok(3));
    assert!(world.now() < Duration::from_secs(1));
}

#[test]
fn a_slow_node_takes_its_time_and_others_do_not() {
    let world = serving(1, 2);
    let context = application(&world);
    world.node(NodeId::fs(0)).slow(100, Duration::from_micros(50));
    world.run(context.spawn(NodeId::fs(1), Ping { number: 3 })).unwrap();
    let fast = world.now();
    world.run(context.spawn(NodeId::fs(0), Ping { number: 3 })).unwrap();
    assert!(world.now() > fast * 21);
}

#[test]
fn a_step_of_a_busy_processor_delays_the_next_one() {
    let world = serving(1, 1);
    let context = world.context(NodeId::fs(0));
    world.node(NodeId::fs(0)).slow(1, Duration::from_micros(10));
    let done = Rc::new(Cell::new(Duration::ZERO));
    for _ in 0..5 {
        let (done, world) = (done.clone(), world.clone());
        context.task(async move { done.set(world.now()) });
    }
    world.run_until_idle();
    assert_eq!(done.get(), Duration::from_micros(40));
}

#[test]
fn a_restarted_node_lives_in_the_epoch_of_the_world_and_fences_the_old_one() {
    let world = serving(1, 1);
    let old = application(&world);
    world.set_epoch(Epoch(2));
    serve(&world.restart(NodeId::fs(0)));
    let fenced = world.run(old.spawn(NodeId::fs(0), Ping { number: 1 }));
    assert_eq!(fenced, Err(Undelivered::Fenced));
    world.node(old.node()).set_epoch(Epoch(2));
    assert_eq!(world.run(old.spawn(NodeId::fs(0), Ping { number: 1 })), Ok(1));
}

#[test]
fn a_power_cut_takes_everything_but_the_applications() {
    let world = serving(1, 3);
    let context = application(&world);
    world.crash_everything();
    let nodes = [NodeId::fs(0), NodeId::fs(2), NodeId::disk(0)];
    assert!(nodes.iter().all(|&node| !world.is_alive(node)));
    assert!(world.is_alive(context.node()));
}

#[test]
fn a_dead_context_answers_everything_with_an_error() {
    let world = serving(1, 2);
    world.create_disk("disk", 1 << 20);
    let context = world.context(NodeId::fs(0));
    world.kill(NodeId::fs(0));
    let unreachable = Some(Err(Undelivered::Unreachable));
    assert_eq!(context.spawn(NodeId::fs(1), Ping { number: 1 }).now_or_never(), unreachable);
    assert_eq!(context.spawn(NodeId::fs(0), Ping { number: 1 }).now_or_never(), unreachable);
    assert!(context.open_disk("disk").now_or_never().unwrap().is_err());
    assert_eq!(context.sleep(Duration::ZERO).now_or_never(), None);
    serve(&context);
}
