//! A mount of another host lives through restarts of the only server.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use tests::mounted::may_mount;

use super::RemoteSite;

const FEW_RESTARTS: u64 = 5;
const RESTARTS: u64 = 100;

/// Every other time the server is killed; else it ends in order.
fn survives(restarts: u64) {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let client = remote.client();
    let mounted = client.mount("mnt", &[]);
    let file = File::create_new(mounted.path("open")).unwrap();
    let mut longest = Duration::ZERO;
    for restart in 0..restarts {
        file.write_all_at(&restart.to_le_bytes(), 8 * restart).unwrap();
        file.sync_all().unwrap();
        let is_kill = restart % 2 == 0;
        thread::scope(|scope| {
            let name = mounted.path(format!("new-{restart}"));
            let made = scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                let begin = Instant::now();
                File::create_new(name).unwrap();
                begin.elapsed()
            });
            if is_kill {
                remote.kill_and_serve();
            } else {
                remote.stop_and_serve();
            }
            longest = longest.max(made.join().unwrap());
        });
    }
    eprintln!("{restarts} restarts, a creation has waited {longest:?} at most");
    let mut read = vec![0; 8 * restarts as usize];
    file.read_exact_at(&mut read, 0).unwrap();
    let expected: Vec<u8> = (0..restarts).flat_map(u64::to_le_bytes).collect();
    assert_eq!(read, expected);
    for restart in 0..restarts {
        assert!(mounted.path(format!("new-{restart}")).exists(), "{restart}");
    }
    drop(file);
    mounted.unmount();
}

#[test]
fn a_mount_survives_a_few_restarts_of_its_server() {
    survives(FEW_RESTARTS);
}

/// Takes some minutes.
#[test]
#[ignore = "takes minutes: cargo test -p tests --test remote_clients -- --ignored hundred_restarts"]
fn a_mount_survives_a_hundred_restarts_of_its_server() {
    survives(RESTARTS);
}
