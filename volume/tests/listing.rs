//! Directories whose names are more than one page holds, listed by pages of every size.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;

use fileio::client::ask;
use fileio::protocol::{
    CallId, Change, Create, Credentials, ENTRIES_MAX, Existing, Name, ROOT, ReadDirectory,
};
use futures::executor::block_on;
use futures::{StreamExt as _, stream};
use runtime::{Context, NodeId};

const STRIPES: u64 = 4096;
/// More than two of the largest pages.
const FILES: u64 = 2 * ENTRIES_MAX as u64 + 100;

async fn make(context: &Context, number: u64) {
    let create = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number },
        directory: ROOT,
        name: Name::new(format!("file-{number}").into_bytes()).unwrap(),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    ask(context, create).await.unwrap();
}

/// How many names the pages have.
async fn listed(context: &Context, count_max: u32) -> u64 {
    let (mut after, mut names) = (0, BTreeSet::new());
    loop {
        let who = Credentials::root();
        let call = ReadDirectory { who, directory: ROOT, after, count_max, attributes: false };
        let page = ask(context, call).await.unwrap();
        for entry in page.entries {
            after = entry.cookie;
            assert!(names.insert(entry.name.to_string()), "{} comes twice", entry.name);
        }
        if page.end {
            return names.len() as u64;
        }
    }
}

#[test]
fn a_page_of_any_size_tells_whether_there_are_more() {
    for nodes in [1, 3] {
        let machine = support::machine(nodes, STRIPES);
        let counts = machine.on_node(NodeId::fs(0), async |context| {
            let made = (0..FILES).map(|number| make(&context, number));
            stream::iter(made).buffered(16).collect::<Vec<_>>().await;
            let mut counts = Vec::new();
            for size in [100, 1000, ENTRIES_MAX - 1, ENTRIES_MAX, u32::MAX] {
                counts.push((size, listed(&context, size).await));
            }
            counts
        });
        for (size, count) in block_on(counts).unwrap() {
            assert_eq!(count, FILES, "{nodes} nodes, pages of {size}");
        }
    }
}
