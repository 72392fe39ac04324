//! A machine whose nodes are all served by one model: what clients and gateways are tested on.

use std::io;
use std::rc::Rc;

use futures::executor::block_on;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::{Epoch, NodeId, Server};

use super::Model;
use crate::protocol::FileIo;

/// File-system nodes of the machine: enough to see that requests are sent to different ones.
const NODES: u32 = 4;

/// Bytes of buffers of the machine.
const POOL_BYTES: usize = 64 << 20;

thread_local! {
    /// The machine has one thread, so this is its one model.
    static MODEL: Rc<Model> = Rc::new(Model::default());
}

/// Starts a machine on a fresh, empty model.
pub fn start() -> io::Result<Embedded> {
    start_with(|model| model)
}

/// The same, with a server of the test's own between the requests and the model, one per node.
pub fn start_with<S: Server<FileIo>>(
    server: impl Fn(Rc<Model>) -> Rc<S> + Send + Clone + 'static,
) -> io::Result<Embedded> {
    let machine = Embedded::start(Config {
        threads: 1,
        fs_nodes: NODES,
        disk_nodes: 0,
        epoch: Epoch(1),
        pool_bytes: POOL_BYTES,
        disk_access: DiskAccess::Best,
    })?;
    for node in (0..NODES).map(NodeId::fs) {
        let server = server.clone();
        let ready = machine.on_node(node, move |context| async move {
            context.serve::<FileIo>(server(MODEL.with(Rc::clone)));
        });
        block_on(ready).map_err(io::Error::other)?;
    }
    Ok(machine)
}
