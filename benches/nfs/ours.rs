//! Our own server, as a process of its own: this program, told to serve.

use std::io::{Read as _, Write as _};
use std::path::Path;

use futures::channel::oneshot;
use futures::executor::block_on;
use nfs_gateway::{Config, Gateway, Settings};
use runtime::net::Address;
use volume::{FormatOptions, RunOptions};

/// Tells this program to serve: then come a directory, a number of threads, and `sync` or `async`.
pub(crate) const SERVE: &str = "serve";

/// Bytes of cached stripes: all that the rows touch.
const CACHE_BYTES: usize = 1 << 30;

/// Makes a volume and serves it until the input ends; its port is the first line.
pub(crate) fn serve(mut arguments: impl Iterator<Item = String>) {
    let mut next = || arguments.next().expect("a directory, a number of threads, sync or async");
    let (directory, threads, sync) = (next(), next(), next() == "sync");
    let threads = threads.parse().expect("a number of threads");
    let directory = Path::new(&directory).join("volume");
    let format = FormatOptions {
        disk_nodes: 2,
        disks_per_node: 2,
        disk_bytes: 1 << 30,
        ..FormatOptions::default()
    };
    volume::format(&directory, &format).expect("the shape is possible");
    let options = RunOptions { threads, cache_bytes: CACHE_BYTES, ..RunOptions::default() };
    let running = volume::open(&directory, &options).expect("the volume was just made");
    let config = exports(sync).apply(&Config::new(running.geometry().volume, [7; 32]));
    let (listens, listening) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = running.on_application(move |context| async move {
        let address = Address::Tcp("127.0.0.1:0".into());
        let gateway = Gateway::start(context, &address, config).await.expect("a free port");
        // The parent process waits for this.
        let _ = listens.send(gateway.address().to_string());
        // It is told to stop by the end of the other side.
        let _ = stopped.await;
        gateway.stop().await;
    });
    println!("{}", block_on(listening).expect("the gateway starts"));
    std::io::stdout().flush().expect("the output is a pipe");
    // The end of the input, or anything else, is the end.
    let _ = std::io::stdin().read(&mut [0]);
    drop(stop);
    block_on(serving).expect("the gateway stops");
    running.stop().expect("everything can be made durable");
}

fn exports(sync: bool) -> Settings {
    let text = format!(
        "[[export]]\npath = \"/\"\n[[export.client]]\nnetwork = \"127.0.0.0/8\"\naccess = \"rw\"\n\
         squash = \"no_root_squash\"\nsecure = false\nsync = {sync}\n"
    );
    Settings::parse(&text, "the exports of the benchmark").expect("a table as in the README")
}
