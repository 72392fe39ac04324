//! What a program's file system leads to: the cluster, or the reference.

use std::any::{Any, TypeId};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use fileio::model::Model;
use fileio::protocol::{Commit, Credentials, Reply, Request, Write};
use futures::FutureExt as _;
use runtime::protocol::ErrorOf;
use runtime::{Call, Context, NodeId, Protocol, Spawn};

use crate::planted::Planted;

/// A planted bug drops one write in this number.
const DROPPED_IN: u64 = 16;

/// The cluster, seen from an application node.
#[derive(Clone)]
pub(crate) struct ClusterSpawn {
    /// The application node.
    pub(crate) context: Context,
    /// A planted bug.
    pub(crate) planted: Option<Planted>,
}

impl ClusterSpawn {
    /// Shall the next call of type `C` be answered and not done?
    fn drops<C: Call>(&self) -> bool {
        let is = |of| TypeId::of::<C>() == of;
        match self.planted {
            Some(Planted::IdleCommits) => is(TypeId::of::<Commit>()),
            Some(Planted::DroppedWrites) => {
                is(TypeId::of::<Write>()) && self.context.random().is_multiple_of(DROPPED_IN)
            }
            _ => false,
        }
    }
}

impl Spawn for ClusterSpawn {
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        let (context, drops) = (self.context.clone(), self.drops::<C>());
        async move {
            if !drops {
                return context.spawn(to, call).await;
            }
            let request: Request = same(call.into());
            let (Request::Commit(Commit { file }) | Request::Write(Write { file, .. })) = request
            else {
                unreachable!("only these are dropped");
            };
            // An empty write returns what the program would get.
            let who = Credentials::root();
            let nothing = Write { who, file, offset: 0, data: Vec::new(), durable: false };
            let looked = context.spawn(to, nothing).await;
            C::answer(same(match request {
                Request::Commit(_) => Reply::Commit(looked),
                _ => Reply::Write(looked),
            }))
        }
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.context.sleep(duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.context.fs_nodes()
    }

    fn try_shared<P: Protocol>(&self, request: &P::Request) -> Option<P::Reply> {
        self.context.try_shared::<P>(request)
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        self.context.task(work(self.clone()));
    }
}

/// The reference, which answers at once.
#[derive(Clone)]
pub(crate) struct ModelSpawn(pub(crate) Rc<Model>);

impl Spawn for ModelSpawn {
    fn spawn<C: Call>(
        &self,
        _: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        let request: Request = same(call.into());
        let reply = self.0.answer(&request);
        futures::future::ready(C::answer(same(reply)))
    }

    fn sleep(&self, _: Duration) -> impl Future<Output = ()> + 'static {
        // No time passes here.
        futures::future::pending()
    }

    fn fs_nodes(&self) -> u32 {
        1
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        // What does not end at once waits for some time to pass.
        let _ = work(self.clone()).now_or_never();
    }
}

/// `value`, which is a `T`: file systems ask the file layer only.
fn same<T: Any>(value: impl Any) -> T {
    let value: Box<dyn Any> = Box::new(value);
    *value.downcast().expect("a request, or a reply, of the file layer")
}
