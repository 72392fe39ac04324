//! Tracing spans follow a request from node to node, over threads too.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::LocalBoxFuture;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::{Caller, Context, Epoch, NodeId, Server};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

mod hop {
    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// For tests.
        Hop id 7 version 1;
        /// Goes on to the next node, `hops` times.
        1 Bulk Go { hops: u32 } -> (), by caller, retry never, from any, after recovery;
    }
}

struct Hopper(Context);

impl Server<hop::Hop> for Hopper {
    fn handle(
        self: Rc<Self>,
        _: Caller,
        request: hop::Request,
    ) -> LocalBoxFuture<'static, hop::Reply> {
        async move {
            let hop::Request::Go(hop::Go { hops }) = request;
            if hops == 0 {
                return hop::Reply::Go(Ok(()));
            }
            let next = (self.0.node().0 + 1) % self.0.fs_nodes();
            hop::Reply::Go(self.0.spawn(NodeId::fs(next), hop::Go { hops: hops - 1 }).await)
        }
        .boxed_local()
    }
}

/// The spans of requests.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<u64, Hop>>>);

/// The node of a span, and the span above.
type Hop = (u64, Option<u64>);

struct NodeField(Option<u64>);

impl Visit for NodeField {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "node" {
            self.0 = Some(value);
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        let mut node = NodeField(None);
        attributes.record(&mut node);
        let above =
            context.span(id).and_then(|span| span.parent()).map(|span| span.id().into_u64());
        if let Some(node) = node.0 {
            self.0.lock().unwrap().insert(id.into_u64(), (node, above));
        }
    }
}

#[test]
fn the_span_of_a_request_is_below_the_one_that_asked_for_it() {
    let seen = Seen::default();
    tracing_subscriber::registry().with(seen.clone()).init();
    let config = Config {
        threads: 2,
        fs_nodes: 4,
        disk_nodes: 0,
        epoch: Epoch(1),
        pool_bytes: 1 << 20,
        disk_access: DiskAccess::Best,
    };
    let machine = Embedded::start(config).unwrap();
    for node in 0..4 {
        let serve = |context: Context| async move {
            context.serve::<hop::Hop>(Rc::new(Hopper(context.clone())));
        };
        block_on(machine.on_node(NodeId::fs(node), serve)).unwrap();
    }
    // Nodes 0 and 2 are on one thread, 1 and 3 on the other: each hop crosses.
    block_on(machine.client_handle().spawn(NodeId::fs(0), hop::Go { hops: 3 })).unwrap();
    let seen = seen.0.lock().unwrap();
    let mut at = *seen.iter().find(|(_, (node, _))| *node == 3).unwrap().0;
    let mut way = Vec::new();
    loop {
        let (node, above) = seen[&at];
        way.push(node);
        match above {
            Some(above) => at = above,
            None => break,
        }
    }
    assert_eq!(way, [3, 2, 1, 0]);
}
