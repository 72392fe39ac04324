//! Fig. 4.5 of the MDFS thesis: eight files of 64 KiB, written in pieces of 2 KiB by 1, 2 and 4
//! clients. There the time was the same for all (2.42 to 2.58 s), since the free list and the
//! blocks of directories were exclusive. On the emulated machine, in virtual time, each step of a
//! processor costs something.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "crash/small_volume.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod small_volume;

use std::time::Duration;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::{CallId, Change, Create, Credentials, Existing, Handle, Name, ROOT, Write};
use futures::future::join_all;
use machine_emu::{World, WorldShape};
use runtime::{Context, NodeId};

use small_volume::Volume;

const FILES: u32 = 8;
const FILE_BYTES: usize = 64 << 10;
const PIECE: usize = 2 << 10;
/// File-system nodes: few files fall on one of them then.
const NODES: u32 = 16;
/// One step of a processor: about 250 instructions of the J-Machine's 12.5 MHz.
const STEP: Duration = Duration::from_micros(20);

/// Makes a file and writes it.
async fn write_file(client: &Context, number: u32) {
    let who = Credentials::root();
    let name = Name::new(format!("file-{number}").into_bytes()).unwrap();
    let create = Create {
        who: who.clone(),
        call: CallId { client: 1 + u64::from(number), number: 1 },
        directory: ROOT,
        name,
        existing: Existing::Refuse {},
        change: Change::default(),
        durable: false,
    };
    let made = ask(client, create).await.unwrap().attributes;
    let file = Handle { ino: made.ino, generation: made.generation };
    for offset in (0..FILE_BYTES).step_by(PIECE) {
        let data = vec![Bytes::from(vec![number as u8; PIECE])];
        let (who, offset) = (who.clone(), offset as u64);
        ask(client, Write { who, file, offset, data, durable: false }).await.unwrap();
    }
}

/// How long `clients` clients take to write all files together, on `nodes` nodes.
fn time_of(clients: u32, fs_nodes: u32) -> Duration {
    let world = World::new(45, WorldShape { fs_nodes, disk_nodes: 1 });
    let machine = world.clone();
    world.run(async move {
        Volume::format(&machine, fs_nodes).await;
        let applications = (0..clients).map(NodeId::application);
        for node in (0..fs_nodes).map(NodeId::fs).chain(applications) {
            machine.node(node).slow(1, STEP);
        }
        let start = machine.now();
        let work = (0..clients).map(|client| {
            machine.on(NodeId::application(client), move |context| async move {
                for number in (client..FILES).step_by(clients as usize) {
                    write_file(&context, number).await;
                }
            })
        });
        join_all(work).await.into_iter().for_each(Option::unwrap);
        machine.now().saturating_sub(start)
    })
}

#[test]
fn eight_files_are_written_faster_by_more_clients() {
    let [one, two, four] = [1, 2, 4].map(|clients| time_of(clients, NODES));
    println!("on {NODES} nodes: {one:?}, {two:?}, {four:?}");
    assert!(two < one && four < two, "{one:?}, {two:?}, {four:?}");
    let growth = one.as_secs_f64() / four.as_secs_f64();
    assert!(growth >= 1.8, "four clients are {growth:.2} times as fast as one: {one:?}, {four:?}");
}

#[test]
fn one_node_is_no_faster_for_more_clients() {
    // So what the other test sees is the work of nodes beside each other, not only that of clients.
    let [one, four] = [1, 4].map(|clients| time_of(clients, 1));
    let growth = one.as_secs_f64() / four.as_secs_f64();
    assert!(growth < 1.2, "four clients are {growth:.2} times as fast as one: {one:?}, {four:?}");
}
