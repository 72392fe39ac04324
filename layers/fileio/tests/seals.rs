//! Which messages have handles, for clients of a subtree (ADR 88).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use bytes::Bytes;
use fileio::protocol::{Reply, Request};
use runtime::seal::HandleSeal;
use runtime::seed::with_seed;
use runtime::wire::{Decoder, Encoder, Wire};

fn coded<T: Wire>(value: &T, out: Option<&HandleSeal>, into: Option<&HandleSeal>) -> T {
    let mut encoder = Encoder::to_client(out.cloned().map(Arc::new));
    value.put(&mut encoder);
    let (head, bulk) = encoder.finish();
    let bulk = Bytes::from(bulk.concat());
    let mut decoder = Decoder::of_client(&head, bulk, into);
    T::take(&mut decoder).unwrap()
}

#[test]
fn each_handle_of_a_reply_is_sealed_and_each_of_a_request_is_opened() {
    let seal = HandleSeal::new(&[1; 32], (9, 1));
    with_seed(|rng| {
        let mut with_handles = 0;
        for _ in 0..2_000 {
            let reply = Reply::sample(rng);
            let sent = coded(&reply, Some(&seal), None);
            assert_eq!(coded(&sent, None, Some(&seal)), reply);
            // A handle of another form is found here.
            let text = format!("{reply:?}");
            assert_eq!(text.contains("generation"), sent != reply, "{text}");
            assert_eq!(text.contains(" ino: "), sent != reply, "{text}");
            let request = Request::sample(rng);
            let opened = coded(&request, None, Some(&seal));
            assert_eq!(coded(&opened, Some(&seal), None), request);
            let names = format!("{request:?}").contains("generation");
            assert_eq!(names, opened != request, "{request:?}");
            with_handles += u32::from(names);
        }
        assert!(with_handles > 1_000, "most requests name a file");
    });
}
