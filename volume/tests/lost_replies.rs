//! A write during which the reply of another node is lost is done once more, and no error.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use fileio::client::{ask, send_with_retries};
use fileio::protocol::{
    CallId, Change, Create, Credentials, Existing, Handle, Name, PunchHole, ROOT, Read, Regions,
    Write, WriteList, handle_of,
};
use futures::executor::block_on;
use runtime::{Context, NodeId};

const BYTES: usize = 20_000;

async fn make(context: &Context) -> Handle {
    let create = Create {
        who: Credentials::root(),
        call: CallId { client: 1, number: 1 },
        directory: ROOT,
        name: Name::new(b"file".to_vec()).unwrap(),
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    handle_of(&ask(context, create).await.unwrap().attributes)
}

async fn content(context: &Context, file: Handle) -> Vec<u8> {
    let who = Credentials::root();
    let read = Read { who, file, offset: 0, length: BYTES as u32 };
    ask(context, read).await.unwrap().data.concat()
}

#[test]
fn a_lost_reply_of_a_disk_is_no_error_of_a_write() {
    let lost_replies = Arc::new(AtomicU32::new(0));
    let machine = support::machine_that_loses(&lost_replies);
    block_on(machine.on_node(NodeId::fs(0), move |context| async move {
        let file = make(&context).await;
        let who = Credentials::root();
        let lose_one = || lost_replies.store(1, Ordering::Relaxed);
        let is_lost = || lost_replies.load(Ordering::Relaxed) == 0;

        lose_one();
        let data = vec![Bytes::from(vec![1; BYTES])];
        let write = Write { who: who.clone(), file, offset: 0, data, durable: false };
        send_with_retries(&context, write).await.unwrap();
        assert!(is_lost());
        let mut expected = vec![1; BYTES];
        assert!(content(&context, file).await == expected);

        lose_one();
        let regions = Regions::strided(10, 10, 100, 100).unwrap();
        let data = vec![2; 1_000].into();
        let write = WriteList { who: who.clone(), file, regions, skip: 0, data, durable: false };
        send_with_retries(&context, write).await.unwrap();
        assert!(is_lost());
        for at in (10..10_000).step_by(100) {
            expected[at..at + 10].fill(2);
        }
        assert!(content(&context, file).await == expected);

        // Its edges are written.
        lose_one();
        let punch = PunchHole { who, file, offset: 5_000, length: 10_000, durable: false };
        send_with_retries(&context, punch).await.unwrap();
        assert!(is_lost());
        expected[5_000..15_000].fill(0);
        assert!(content(&context, file).await == expected);
    }))
    .unwrap();
}
