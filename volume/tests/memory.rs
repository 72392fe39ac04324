//! Metadata take no more memory than they may, however many files there are, and nothing is lost by
//! it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use fileio::client::ask;
use fileio::protocol::{
    CallId, Change, Create, Credentials, Error, Existing, GetAttributes, Handle, Lookup, Name, ROOT,
};
use futures::executor::block_on;
use futures::{StreamExt as _, stream};
use meta::memory::MemoryBudget;
use runtime::{Context, NodeId};

const NODES: u32 = 4;
const STRIPES: u64 = 4096;
const BYTES: usize = 2 << 20;
/// About 1 KiB each in memory, if all stayed there.
const FILES: u64 = 12_000;

fn name_of(number: u64) -> Name {
    Name::new(format!("file-{number}").into_bytes()).unwrap()
}

async fn make(context: &Context, number: u64) -> Handle {
    let create = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory: ROOT,
        name: name_of(number),
        existing: Existing::Refuse {},
        change: Change { mode: Some(0o600 + number as u32 % 8), ..Change::default() },
        durable: false,
    };
    let made = ask(context, create).await.unwrap().attributes;
    Handle { ino: made.ino, generation: made.generation }
}

async fn check(context: &Context, number: u64, file: Handle) {
    let lookup = Lookup { who: Credentials::root(), directory: ROOT, name: name_of(number) };
    let found = ask(context, lookup).await.unwrap();
    assert_eq!((found.ino, found.mode), (file.ino, 0o600 + number as u32 % 8), "file {number}");
    assert_eq!(ask(context, GetAttributes { file }).await.unwrap(), found, "file {number}");
    let other = Name::new(format!("other-{number}").into_bytes()).unwrap();
    let lookup = Lookup { who: Credentials::root(), directory: ROOT, name: other };
    assert_eq!(ask(context, lookup).await, Err(Error::NotFound {}));
}

#[test]
fn many_files_take_no_more_memory_than_they_may() {
    let memory = MemoryBudget::new(BYTES);
    let machine = support::machine_within(NODES, STRIPES, memory.clone());
    let most = block_on(machine.on_node(NodeId::fs(0), move |context| async move {
        let mut most = 0;
        let mut files = Vec::new();
        for first in (0..FILES).step_by(100) {
            let made = (first..first + 100).map(|number| make(&context, number));
            files.extend(stream::iter(made).buffered(16).collect::<Vec<_>>().await);
            most = most.max(memory.used_bytes());
        }
        for (number, file) in (0..).zip(files) {
            check(&context, number, file).await;
            most = most.max(memory.used_bytes());
        }
        most
    }))
    .unwrap();
    // Replies are bounded by their number, and a checkpoint takes a moment.
    assert!(most < 2 * BYTES, "{most} bytes");
    assert!(most > BYTES / 2, "{most} bytes: the test makes too few files to show anything");
}
