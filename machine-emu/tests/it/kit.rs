//! A small layer: it echoes, counts, and passes on.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{World, WorldShape};
use runtime::{Caller, Context, NodeId, Undelivered as Error};

runtime::protocol! {
    /// Echoes and counters.
    Pingpong id 7 version 1;

    /// Send it back.
    1 Control Ping { number: u64 } -> u64, by caller, retry never, from any, after recovery;
    /// Send the payload back.
    2 Bulk Echo { data: Bytes } -> Bytes, by caller, retry never, from any, after recovery;
    /// Answer with how often this was asked.
    3 Control Count {} -> u64, by caller, retry never, from any, after recovery;
    /// Answer after a while.
    4 Bulk Slowly { nanoseconds: u64 } -> (), by caller, retry never, from any, after recovery;
    /// Ask the next node, as many times as `hops` says.
    5 Control Hop { hops: u32 } -> u32, by caller, retry never, from any, after recovery;
    /// Never answer.
    6 Control Never {} -> (), by caller, retry never, from any, after recovery;
}

pub(crate) struct Server {
    context: Context,
    count: Cell<u64>,
}

impl Server {
    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Ping(Ping { number }) => Reply::Ping(Ok(number)),
            Request::Echo(Echo { data }) => Reply::Echo(Ok(data)),
            Request::Count(_) => {
                self.count.set(self.count.get() + 1);
                Reply::Count(Ok(self.count.get()))
            }
            Request::Slowly(Slowly { nanoseconds }) => {
                self.context.sleep(Duration::from_nanos(nanoseconds)).await;
                Reply::Slowly(Ok(()))
            }
            Request::Hop(Hop { hops: 0 }) => Reply::Hop(Ok(0)),
            Request::Hop(Hop { hops }) => {
                let next = (self.context.node().0 + 1) % self.context.fs_nodes();
                let answer = self.context.spawn(NodeId::fs(next), Hop { hops: hops - 1 }).await;
                Reply::Hop(answer.map(|hops| hops + 1))
            }
            Request::Never(_) => futures::future::pending().await,
        }
    }
}

impl runtime::Server<Pingpong> for Server {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move { self.answer(request).await }.boxed_local()
    }
}

/// Makes a node serve.
pub(crate) fn serve(context: &Context) {
    let server = Server { context: context.clone(), count: Cell::new(0) };
    context.serve::<Pingpong>(Rc::new(server));
}

/// A world in which every file-system node serves.
pub(crate) fn serving(seed: u64, fs_nodes: u32) -> World {
    let world = World::new(seed, WorldShape { fs_nodes, disk_nodes: 1 });
    for index in 0..fs_nodes {
        serve(&world.context(NodeId::fs(index)));
    }
    world
}

/// The context of an application.
pub(crate) fn application(world: &World) -> Context {
    world.context(NodeId::application(0))
}
