//! The server is killed in the middle of everything, again and again: what was acknowledged as
//! durable is there afterwards.
//!
//! Promises about one name only: create, mkdir, remove, write and commit. A rename that was under
//! way may be half done (until the metadata issue), so its two names are not looked at again; one
//! that was acknowledged is done.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

#[path = "crash/model.rs"]
mod model;
#[path = "crash/writer.rs"]
mod writer;

use std::thread;
use std::time::Duration;

use client::blocking::Volume;
use runtime::seed::with_seed;
use tests::Site;
use writer::Writer;

const WRITERS: u64 = 4;
const KILLS: usize = 10;
/// Time from the start of the writers to the kill of the server, at most; in milliseconds.
const KILL_AFTER_MS: u64 = 700;

#[test]
fn what_was_acknowledged_as_durable_survives_ten_kills() {
    with_seed(|rng| {
        let site = Site::formatted(1024, 16);
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        for round in 0..KILLS {
            let served = site.serve();
            let volume = site.open_impatiently();
            check(&mut writers, &volume, round);
            let pause = Duration::from_millis(10 + rng.below(KILL_AFTER_MS));
            thread::scope(|scope| {
                for writer in &mut writers {
                    let volume = site.open_impatiently();
                    scope.spawn(move || writer.work(&volume));
                }
                thread::sleep(pause);
                served.kill();
            });
        }
        let served = site.serve();
        let volume = site.open_impatiently();
        check(&mut writers, &volume, KILLS);
        drop(volume);
        served.stop();
        // And once more by a process that opens the volume itself.
        let volume = site.open_impatiently();
        check(&mut writers, &volume, KILLS);
        volume.mkdir("/after-all").unwrap();
        volume.finish().unwrap();
        let acknowledged: u64 = writers.iter().map(Writer::acknowledged).sum();
        assert!(acknowledged > 100, "{acknowledged} acknowledged operations show little");
    });
}

fn check(writers: &mut [Writer], volume: &Volume, crashes: usize) {
    for writer in writers {
        writer.check(volume, crashes);
    }
}
