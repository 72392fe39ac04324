//! The smallest NFS server: file I/O's executable reference, in memory, until standard input ends.
//!
//! ```text
//! cargo run -p nfs-gateway --example serve_memory -- 127.0.0.1:2049
//! nfs-ls 'nfs://127.0.0.1/?nfsport=2049&mountport=2049'
//! nfs-cp FILE 'nfs://127.0.0.1//FILE?nfsport=2049&mountport=2049'    (the export is "/": two slashes)
//! ```

use std::io::Read as _;
use std::rc::Rc;

use fileio::model::Model;
use fileio::protocol::FileIo;
use futures::executor::block_on;
use nfs_gateway::{Config, Gateway};
use runtime::embedded::{self, Embedded};
use runtime::net::Address;
use runtime::{Epoch, NodeId, VolumeId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".into());
    let machine = Embedded::start(embedded::Config {
        threads: 1,
        fs_nodes: 1,
        disk_nodes: 0,
        epoch: Epoch(1),
        pool_bytes: 256 << 20,
        disk_access: embedded::DiskAccess::Best,
    })?;
    let served = machine.on_node(NodeId::fs(0), async |ctx| {
        ctx.serve::<FileIo>(Rc::new(Model::default()));
    });
    block_on(served)?;
    let started = machine.on_node(machine.application(), move |ctx| async move {
        let config = Config::new(VolumeId(1), [1; 32]);
        let gateway = Gateway::start(ctx, &Address::Tcp(address), config).await;
        gateway.map(|gateway| gateway.address().to_string()).map_err(|error| error.to_string())
    });
    println!("serving at {}", block_on(started)??);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
