//! A layer that sends texts back.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::{Caller, Context, NodeId, Server};

pub mod echo {
    use bytes::Bytes;
    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// For tests.
        Echo id 7 version 1;
        /// Sends the text back from the node `hops` further on.
        1 Bulk Say { text: Bytes, hops: u32 } -> (Bytes, u32),
            by caller, retry never, from any, after recovery;
        /// Answers after a while.
        2 Control Wait { micros: u64 } -> (), by caller, retry never, from any, after recovery;
        /// How many texts have come so far.
        3 Control CountSaid {} -> u32, by caller, retry never, from any, after recovery;
    }
}

pub struct EchoServer {
    pub context: Context,
    pub said: Cell<u32>,
}
impl Server<echo::Echo> for EchoServer {
    fn handle(
        self: Rc<Self>,
        _: Caller,
        request: echo::Request,
    ) -> LocalBoxFuture<'static, echo::Reply> {
        async move {
            match request {
                echo::Request::CountSaid(_) => echo::Reply::CountSaid(Ok(self.said.get())),
                echo::Request::Say(echo::Say { text, hops: 0 }) => {
                    self.said.set(self.said.get() + 1);
                    echo::Reply::Say(Ok((text, self.context.node().0)))
                }
                echo::Request::Say(echo::Say { text, hops }) => {
                    let next = (self.context.node().0 + 1) % self.context.fs_nodes();
                    let call = echo::Say { text, hops: hops - 1 };
                    echo::Reply::Say(self.context.spawn(NodeId::fs(next), call).await)
                }
                echo::Request::Wait(echo::Wait { micros }) => {
                    self.context.sleep(Duration::from_micros(micros)).await;
                    echo::Reply::Wait(Ok(()))
                }
            }
        }
        .boxed_local()
    }
}

/// Lets the node of `context` send texts back.
pub async fn serve(context: Context) {
    let server = EchoServer { context: context.clone(), said: Cell::new(0) };
    context.serve::<echo::Echo>(Rc::new(server));
}
