//! Directories and files have a redundancy of their own, which can be changed.

use std::fs;
use std::path::{Path, PathBuf};

use fileio::client::ask;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use tempfile::TempDir;
use volume::{DataLoss, DiskName, FormatOptions, RedundancyClass, RunningVolume};

use crate::data_files::*;
use crate::running::{check, run, wait_until};

const NONE: RedundancyClass = RedundancyClass::None {};
const TWICE: RedundancyClass = RedundancyClass::Copies { count: 2 };
const TWO_AND_ONE: RedundancyClass = RedundancyClass::Parity { data: 2, parity: 1 };
const FOUR_AND_ONE: RedundancyClass = RedundancyClass::Parity { data: 4, parity: 1 };

/// Five disks, of which none may be lost.
fn plain() -> FormatOptions {
    shape(5, 1, NONE)
}

/// A new volume of these, in its directory, in use.
fn plain_volume() -> (TempDir, PathBuf, RunningVolume) {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    volume::format(&volume, &plain()).unwrap();
    let running = run(&volume);
    (directory, volume, running)
}

fn allow(client: &ClientHandle, class: RedundancyClass) -> Result<(), Error> {
    let change = DiskChange::AllowClass { class: class.to_string() };
    block_on(ask(client, ChangeDisks { who: Credentials::root(), root: ROOT, change }))
}

fn set(client: &ClientHandle, file: Handle, class: RedundancyClass) -> Result<Attributes, Error> {
    set_as(client, Credentials::root(), file, class)
}

fn set_as(
    client: &ClientHandle,
    who: Credentials,
    file: Handle,
    class: RedundancyClass,
) -> Result<Attributes, Error> {
    let change = Change { redundancy: Some(class), ..Change::default() };
    let call = SetAttributes { who, file, change, only_if_ctime: None, durable: true };
    block_on(ask(client, call))
}

fn find(client: &ClientHandle, number: u64) -> Attributes {
    let call = Lookup { who: Credentials::root(), directory: ROOT, name: name(number) };
    block_on(ask(client, call)).unwrap()
}

fn remove(client: &ClientHandle, number: u64) {
    let call = Remove {
        who: Credentials::root(),
        call: CallId { client: 1, number: 1000 + number },
        directory: ROOT,
        name: name(number),
        durable: true,
    };
    block_on(ask(client, call)).unwrap();
}

fn wait_until_stored(client: &ClientHandle) {
    wait_until("all is stored as it shall be", || disks(client).waiting_pieces == 0);
}

/// Waits until all files take about `of_all` / `of_data` times their bytes.
fn wait_until_it_takes(client: &ClientHandle, empty: u64, (of_all, of_data): (u64, u64)) {
    let data: u64 = (0..FILES).map(|number| content(number).len() as u64).sum();
    // Small files have copies, and all have whole blocks.
    let (least, most) = (data * of_all / of_data, data * of_all / of_data + data / 5);
    wait_until("files take as much as they shall", || {
        let used = raw_used(client).saturating_sub(empty);
        (least..most).contains(&used) && disks(client).waiting_pieces == 0
    });
}

fn lost_without_one(volume: &Path) -> u64 {
    disks_of(&plain()).iter().map(|disk| lost_without_disks(volume, &[*disk], FILES)).sum()
}

#[test]
fn what_is_made_in_a_directory_has_its_redundancy() {
    for class in [TWICE, TWO_AND_ONE, FOUR_AND_ONE] {
        let (_directory, volume, running) = plain_volume();
        let client = running.client_handle();
        let root = block_on(ask(&client, GetAttributes { file: ROOT })).unwrap();
        assert_eq!(root.redundancy, None);
        assert_eq!(set(&client, ROOT, class), Err(Error::Invalid {}), "it is not allowed yet");
        allow(&client, class).unwrap();
        allow(&client, class).unwrap();
        assert_eq!(disks(&client).classes, [class.to_string()]);
        set(&client, ROOT, class).unwrap();
        for number in 0..FILES {
            put(&client, number).unwrap();
        }
        assert_eq!(find(&client, 1).redundancy, Some(class));
        wait_until_stored(&client);
        running.flush().unwrap();
        running.stop().unwrap();
        check(&volume);
        assert_eq!(lost_without_one(&volume), 0, "{class}");
    }
}

#[test]
fn files_are_stored_anew_when_their_redundancy_changes() {
    let (_directory, volume, running) = plain_volume();
    let client = running.client_handle();
    let empty = raw_used(&client);
    for number in 0..FILES {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    running.stop().unwrap();
    assert!(lost_without_one(&volume) > FILES / 2);
    let steps = [
        (TWICE, (2, 1)),
        (TWO_AND_ONE, (3, 2)),
        (FOUR_AND_ONE, (5, 4)),
        (TWO_AND_ONE, (3, 2)),
        (TWICE, (2, 1)),
        (FOUR_AND_ONE, (5, 4)),
        (NONE, (1, 1)),
    ];
    for (class, takes) in steps {
        let running = run(&volume);
        let client = running.client_handle();
        allow(&client, class).unwrap();
        for number in 0..FILES {
            set(&client, handle_of(&find(&client, number)), class).unwrap();
        }
        // What is left goes on after a restart.
        running.stop().unwrap();
        let running = run(&volume);
        let client = running.client_handle();
        wait_until_it_takes(&client, empty, takes);
        read_all(&client, FILES);
        assert!(scrub(&client, false).is_empty(), "{class}");
        running.stop().unwrap();
        check(&volume);
        if class != NONE {
            assert_eq!(lost_without_one(&volume), 0, "{class}");
        }
    }
}

#[test]
fn a_file_that_is_written_while_its_redundancy_changes_keeps_every_byte() {
    let (_directory, volume, running) = plain_volume();
    let client = running.client_handle();
    let classes = [TWICE, FOUR_AND_ONE, NONE, TWO_AND_ONE];
    for class in classes {
        allow(&client, class).unwrap();
    }
    for number in 0..FILES {
        put(&client, number).unwrap();
    }
    for round in 0..12_usize {
        for number in 0..FILES {
            let file = handle_of(&find(&client, number));
            set(&client, file, classes[(round + number as usize) % classes.len()]).unwrap();
            // The same bytes, in new blocks.
            fill_file(&client, file, number).unwrap();
        }
    }
    wait_until_stored(&client);
    read_all(&client, FILES);
    running.stop().unwrap();
    check(&volume);
}

#[test]
fn who_may_choose_a_redundancy_and_which() {
    let (directory, _, running) = plain_volume();
    let client = running.client_handle();
    let refusal = |class: &str| {
        let change = DiskChange::AllowClass { class: class.to_owned() };
        let call = ChangeDisks { who: Credentials::root(), root: ROOT, change };
        match block_on(ask(&client, call)) {
            Err(Error::DisksUnchanged { why }) => why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal("4x"), DiskRefusal::NoClass {});
    assert_eq!(refusal("3x"), DiskRefusal::FewerMetadataCopies { copies: 2 });
    assert_eq!(refusal("5+1"), DiskRefusal::TooFewDisks { needed: 6 });
    for data in 2..=4 {
        allow(&client, RedundancyClass::Parity { data, parity: 1 }).unwrap();
    }
    allow(&client, TWICE).unwrap();
    put(&client, 1).unwrap();
    let file = handle_of(&find(&client, 1));
    let other = Credentials { uid: 7, gid: 7, ..Credentials::root() };
    assert_eq!(set_as(&client, other, file, TWICE), Err(Error::NotPermitted {}));
    let never_allowed = RedundancyClass::Parity { data: 2, parity: 2 };
    assert_eq!(set(&client, file, never_allowed), Err(Error::Invalid {}));
    running.stop().unwrap();

    // A volume goes on without disks by its own class: none is weaker.
    let twice = directory.path().join("twice");
    volume::format(&twice, &shape(4, 1, TWICE)).unwrap();
    let running = run(&twice);
    let client = running.client_handle();
    let unchanged = |why| Err(Error::DisksUnchanged { why });
    assert_eq!(allow(&client, NONE), unchanged(DiskRefusal::Weaker {}));
    allow(&client, RedundancyClass::Parity { data: 3, parity: 1 }).unwrap();
    running.stop().unwrap();
}

#[test]
fn a_copy_that_is_bad_is_not_the_one_that_stays() {
    let (_directory, volume, running) = plain_volume();
    let client = running.client_handle();
    allow(&client, TWICE).unwrap();
    set(&client, ROOT, TWICE).unwrap();
    for number in 0..FILES {
        put(&client, number).unwrap();
    }
    running.flush().unwrap();
    wait_until_stored(&client);
    running.stop().unwrap();
    damage_data(&volume.join("disks/n1d0"));
    damage_data(&volume.join("disks/n3d0"));

    let running = run(&volume);
    let client = running.client_handle();
    let is_read = |number: &u64| read(&client, *number).is_ok();
    let whole: Vec<u64> = (0..FILES).filter(is_read).collect();
    assert!(whole.len() > FILES as usize / 2, "{whole:?}");
    for number in &whole {
        set(&client, handle_of(&find(&client, *number)), NONE).unwrap();
    }
    // What has no good copy stays as it is; the rest has one.
    let is_done = |number: &u64| {
        assert!(read(&client, *number).unwrap() == content(*number), "file {number}");
        true
    };
    wait_until("what can have one copy has one", || {
        let list = disks(&client);
        whole.iter().all(is_done) && list.waiting_pieces == 0
    });
    running.stop().unwrap();
    let running = run(&volume);
    let client = running.client_handle();
    for number in whole {
        assert!(read(&client, number).unwrap() == content(number), "file {number}");
    }
    running.stop().unwrap();
}

#[test]
fn a_volume_without_redundancy_goes_on_with_what_was_not_on_a_lost_disk() {
    let (_directory, volume, running) = plain_volume();
    let client = running.client_handle();
    allow(&client, TWICE).unwrap();
    let is_safe = |number: u64| number % 10 == 4;
    for number in 0..FILES {
        let file = create(&client, number);
        if is_safe(number) {
            set(&client, file, TWICE).unwrap();
        }
        fill_file(&client, file, number).unwrap();
    }
    running.flush().unwrap();
    wait_until_stored(&client);
    running.stop().unwrap();
    let lost = DiskName { disk_node: 2, disk: 0 };
    fs::remove_file(volume.join("disks/n2d0")).unwrap();
    let refused = volume::give_up_disk(&volume, lost, DataLoss::Refused).unwrap_err().to_string();
    assert!(refused.contains("nowhere else") && !refused.contains("accept"), "{refused}");
    volume::give_up_disk(&volume, lost, DataLoss::Accepted).unwrap();

    for _ in 0..2 {
        let running = run(&volume);
        let client = running.client_handle();
        let mut gone = 0;
        for number in 0..FILES {
            match read(&client, number) {
                Ok(bytes) => assert!(bytes == content(number), "file {number} has other bytes"),
                Err(error) => {
                    assert_eq!(error, Error::Unreadable { disk_node: 2, disk: 0 });
                    assert!(!is_safe(number), "file {number}");
                    gone += 1;
                }
            }
        }
        assert!((1..FILES / 2).contains(&gone), "{gone} files are lost");
        running.stop().unwrap();
    }
    let running = run(&volume);
    let client = running.client_handle();
    put(&client, FILES).unwrap();
    wait_until("the trouble is told", || disks(&client).trouble.contains("cannot be read"));
    for number in (0..FILES).filter(|number| read(&client, *number).is_err()) {
        remove(&client, number);
    }
    wait_until_retired(&client, lost);
    running.stop().unwrap();
    check(&volume);
}
