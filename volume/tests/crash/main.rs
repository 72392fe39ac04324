//! The power goes at every moment of an operation on several nodes: afterwards it was done, or not
//! begun, and nothing is left of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod small_volume;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use fileio::hash::name_node;
use fileio::protocol::*;
use futures::future::{Either, select};
use machine_emu::{World, WorldShape};

use small_volume::Volume;

const FS_NODES: u32 = 4;

/// Between two moments at which the power goes.
const STEP: Duration = Duration::from_micros(23);
/// Later moments: while intents are retired.
const LATER: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(1_500),
    Duration::from_millis(2_001),
    Duration::from_secs(5),
];

/// A path; the number behind each name is the node at which the name shall be.
type Path = &'static [(&'static str, u32)];

/// One request. What it is about must exist.
#[derive(Clone, Copy, Debug)]
enum Op {
    Create(Path),
    CreateLazily(Path),
    MakeDirectory(Path),
    Link(Path, Path),
    Remove(Path),
    RemoveLazily(Path),
    RemoveDirectory(Path),
    Rename(Path, Path),
}

impl Op {
    fn is_durable(self) -> bool {
        !matches!(self, Self::CreateLazily(_) | Self::RemoveLazily(_))
    }
}

/// All names with what they name and its links.
type Tree = BTreeMap<Vec<Name>, (Handle, u32)>;

fn who() -> Credentials {
    Credentials::root()
}

fn handle(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

/// A name that begins with `text` and belongs to `node`.
fn name_at(directory: Handle, text: &str, node: u32) -> Name {
    let name = |number: u32| Name::new(format!("{text}-{number}").into_bytes()).unwrap();
    (0..1000).map(name).find(|name| name_node(directory.ino, name, FS_NODES).0 == node).unwrap()
}

/// The directory of a path, and the name in it.
async fn place(volume: &Volume, path: Path) -> (Handle, Name) {
    let mut directory = ROOT;
    let ((last, node), above) = path.split_last().unwrap();
    for (text, node) in above {
        let name = name_at(directory, text, *node);
        let found = volume.ask(Lookup { who: who(), directory, name }).await.unwrap();
        directory = handle(&found);
    }
    (directory, name_at(directory, last, *node))
}

async fn perform(volume: &Volume, op: Op) -> Result<(), Error> {
    let (who, call, change) = (who(), volume.call_id(), Change::default());
    match op {
        Op::Create(path) | Op::CreateLazily(path) => {
            let (directory, name) = place(volume, path).await;
            let (existing, durable) = (Existing::Refuse {}, op.is_durable());
            let create = Create { who, call, directory, name, existing, change, durable };
            volume.ask(create).await.map(|_| ())
        }
        Op::MakeDirectory(path) => {
            let (directory, name) = place(volume, path).await;
            let node = NewNode::Directory {};
            volume
                .ask(MakeNode { who, call, directory, name, node, change, durable: true })
                .await
                .map(|_| ())
        }
        Op::Link(old, new) => {
            let (directory, name) = place(volume, old).await;
            let found = volume.ask(Lookup { who: who.clone(), directory, name }).await?;
            let (directory, name) = place(volume, new).await;
            let file = handle(&found);
            volume.ask(Link { who, call, file, directory, name, durable: true }).await.map(|_| ())
        }
        Op::Remove(path) | Op::RemoveLazily(path) => {
            let (directory, name) = place(volume, path).await;
            let durable = op.is_durable();
            volume.ask(Remove { who, call, directory, name, durable }).await
        }
        Op::RemoveDirectory(path) => {
            let (directory, name) = place(volume, path).await;
            volume.ask(RemoveDirectory { who, call, directory, name, durable: true }).await
        }
        Op::Rename(old, new) => {
            let (from_directory, from_name) = place(volume, old).await;
            let (to_directory, to_name) = place(volume, new).await;
            let rename = Rename {
                who,
                call,
                from_directory,
                from_name,
                to_directory,
                to_name,
                replace: true,
                durable: true,
            };
            volume.ask(rename).await
        }
    }
}

/// Walks the tree; links and the directories above must be right.
async fn walk(volume: &Volume) -> Tree {
    let mut tree = Tree::new();
    let mut unseen = vec![(Vec::new(), ROOT)];
    while let Some((path, directory)) = unseen.pop() {
        let call = ReadDirectory {
            who: who(),
            directory,
            after: 0,
            count_max: ENTRIES_MAX,
            attributes: true,
        };
        let page = volume.ask(call).await.unwrap();
        let mut directories = 0;
        for entry in page.entries {
            let attributes = entry.attributes.expect("a name of nothing");
            let below = [&path[..], &[entry.name]].concat();
            if entry.kind == (Kind::Directory {}) {
                directories += 1;
                let asked = Parent { who: who(), directory: entry.handle };
                assert_eq!(handle(&volume.ask(asked).await.unwrap()), directory, "{below:?}");
                unseen.push((below.clone(), entry.handle));
            }
            // The links of a directory are checked where it is listed.
            let is_directory = entry.kind == (Kind::Directory {});
            tree.insert(below, (entry.handle, if is_directory { 1 } else { attributes.links }));
        }
        assert_eq!(page.directory.links, 2 + directories, "links of {path:?}");
    }
    tree
}

/// The nodes hold what the tree needs and nothing else.
async fn check_audit(volume: &Volume, tree: &Tree, told: &str) {
    let mut files: BTreeMap<Handle, (u32, u32)> = BTreeMap::new();
    for &(file, links) in tree.values() {
        files.entry(file).or_insert((0, links)).0 += 1;
    }
    assert!(files.values().all(|(names, links)| names == links), "{told}: {tree:?}");
    let inodes = files.len() as u64 + 1;
    let audit = volume.audit().await;
    assert!(audit.flaws.is_empty(), "{told}: {:?}", audit.flaws);
    let held = [
        audit.inodes.len() as u64,
        audit.names.len() as u64,
        audit.blocks.values().sum(),
        audit.trims.len() as u64,
        audit.intents,
        audit.applied,
    ];
    let needed = [inodes, tree.len() as u64, 0, 0, 0, 0];
    assert_eq!(held, needed, "{told}: inodes, names, blocks, trims, promises, marks");
}

/// What was seen of a run until the power went.
#[derive(Default)]
struct Seen {
    /// The tree before all and after each request, in a run without a power cut.
    states: RefCell<Vec<Tree>>,
    /// Requests answered, and of these the last one whose answer promised durability.
    answered: Cell<usize>,
    durable: Cell<usize>,
}

async fn perform_all(volume: &Volume, ops: &[Op], seen: &Seen, looks: bool) {
    for (number, &op) in (1..).zip(ops) {
        let done = perform(volume, op).await;
        done.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        seen.answered.set(number);
        if op.is_durable() {
            seen.durable.set(number);
        }
        if looks {
            let tree = walk(volume).await;
            seen.states.borrow_mut().push(tree);
        }
    }
}

async fn prepared(world: &World, setup: &[Op]) -> Volume {
    let volume = Volume::format(world, FS_NODES).await;
    for &op in setup {
        perform(&volume, op).await.unwrap();
    }
    // The set-up is history: its intents are retired.
    volume.client().sleep(Duration::from_secs(7)).await;
    volume
}

fn world() -> World {
    World::new(7, WorldShape { fs_nodes: FS_NODES, disk_nodes: 1 })
}

/// The states that may be seen, and how long it takes.
fn without_a_cut(setup: &[Op], ops: &[Op]) -> (Vec<Tree>, Duration) {
    let looking = world();
    let states = looking.run(async {
        let volume = prepared(&looking, setup).await;
        let seen = Seen::default();
        let tree = walk(&volume).await;
        seen.states.borrow_mut().push(tree);
        perform_all(&volume, ops, &seen, true).await;
        seen.states.take()
    });
    let timing = world();
    let took = timing.run(async {
        let volume = prepared(&timing, setup).await;
        let (before, begun) = (timing.now(), timing.counters());
        perform_all(&volume, ops, &Seen::default(), false).await;
        let took = timing.now().saturating_sub(before);
        let ended = timing.counters();
        println!(
            "{ops:?}: {took:?}, {} messages, {} disk operations",
            ended.messages - begun.messages,
            ended.disk_operations - begun.disk_operations
        );
        took
    });
    (states, took)
}

fn cut_at(after: Duration, setup: &[Op], ops: &[Op], states: &[Tree]) {
    let world = world();
    world.run(async {
        let volume = prepared(&world, setup).await;
        let seen = Seen::default();
        {
            let working = pin!(async {
                perform_all(&volume, ops, &seen, false).await;
                std::future::pending::<()>().await;
            });
            let cut = pin!(volume.client().sleep(after));
            assert!(matches!(select(cut, working).await, Either::Left(_)));
        }
        world.crash_everything();
        volume.restart().await;
        let told = format!("cut {after:?} after the begin of {ops:?}");
        let tree = walk(&volume).await;
        check_audit(&volume, &tree, &told).await;
        let state = states[seen.durable.get()..].iter().position(|state| *state == tree);
        assert!(
            state.is_some(),
            "{told}, {} answered: {tree:?} of {states:?}",
            seen.answered.get()
        );
    });
}

/// Performs `setup`, then `ops`, which the power cuts off at each moment in turn.
fn whole_or_not_at_all(setup: &[Op], ops: &[Op]) {
    let (states, took) = without_a_cut(setup, ops);
    let moments = (1..).map(|number| STEP * number).take_while(|after| *after < took + 4 * STEP);
    for after in moments.chain(LATER.map(|later| took + later)) {
        cut_at(after, setup, ops, &states);
    }
}

#[test]
fn promises_and_marks_of_what_was_applied_are_no_flaws() {
    let world = world();
    world.run(async {
        let volume = prepared(&world, &[Op::Create(&[("a", 0)])]).await;
        perform(&volume, Op::Rename(&[("a", 0)], &[("b", 2)])).await.unwrap();
        let audit = volume.audit().await;
        assert!(audit.intents > 0 && audit.applied > 0, "{audit:?}");
        assert!(audit.flaws.is_empty(), "{:?}", audit.flaws);
    });
}

#[test]
fn a_file_is_made_whole_or_not_at_all() {
    whole_or_not_at_all(&[], &[Op::Create(&[("a", 0)])]);
}

#[test]
fn a_directory_is_made_whole_or_not_at_all() {
    // The root is at node 1.
    whole_or_not_at_all(&[], &[Op::MakeDirectory(&[("a", 2)])]);
    whole_or_not_at_all(&[], &[Op::MakeDirectory(&[("a", 1)])]);
}

#[test]
fn a_link_is_counted_and_named_or_neither() {
    whole_or_not_at_all(&[Op::Create(&[("a", 0)])], &[Op::Link(&[("a", 0)], &[("b", 2)])]);
}

#[test]
fn a_file_goes_with_its_last_name_wherever_that_is() {
    let setup = [Op::Create(&[("x", 0)]), Op::Rename(&[("x", 0)], &[("a", 2)])];
    whole_or_not_at_all(&setup, &[Op::Remove(&[("a", 2)])]);
    let linked = [Op::Create(&[("x", 0)]), Op::Link(&[("x", 0)], &[("a", 2)])];
    whole_or_not_at_all(&linked, &[Op::Remove(&[("a", 2)]), Op::Remove(&[("x", 0)])]);
}

#[test]
fn a_directory_goes_whole_or_not_at_all() {
    let setup = [Op::MakeDirectory(&[("x", 0)]), Op::Rename(&[("x", 0)], &[("a", 2)])];
    whole_or_not_at_all(&setup, &[Op::RemoveDirectory(&[("a", 2)])]);
}

#[test]
fn a_file_has_its_old_or_its_new_name() {
    whole_or_not_at_all(&[Op::Create(&[("a", 0)])], &[Op::Rename(&[("a", 0)], &[("b", 2)])]);
}

#[test]
fn what_a_rename_replaces_is_there_or_gone() {
    let setup =
        [Op::Create(&[("a", 0)]), Op::Create(&[("x", 3)]), Op::Rename(&[("x", 3)], &[("b", 2)])];
    whole_or_not_at_all(&setup, &[Op::Rename(&[("a", 0)], &[("b", 2)])]);
}

#[test]
fn a_directory_moves_over_another_whole_or_not_at_all() {
    let setup = [
        Op::MakeDirectory(&[("p", 3)]),
        Op::MakeDirectory(&[("x", 2)]),
        Op::Rename(&[("x", 2)], &[("a", 0)]),
        Op::MakeDirectory(&[("p", 3), ("y", 1)]),
        Op::Rename(&[("p", 3), ("y", 1)], &[("p", 3), ("b", 2)]),
    ];
    whole_or_not_at_all(&setup, &[Op::Rename(&[("a", 0)], &[("p", 3), ("b", 2)])]);
}

#[test]
fn operations_that_build_on_one_another_are_not_mixed_up() {
    let setup = [Op::Create(&[("a", 0)]), Op::Create(&[("b", 1)])];
    let ops = [Op::Rename(&[("a", 0)], &[("c", 3)]), Op::Rename(&[("b", 1)], &[("c", 3)])];
    whole_or_not_at_all(&setup, &ops);
    // The directory's inode is at a node that decides neither of its moves, of which a mount sends
    // the second one sooner.
    let setup = [
        Op::MakeDirectory(&[("q", 1)]),
        Op::MakeDirectory(&[("x", 3)]),
        Op::Rename(&[("x", 3)], &[("p", 2)]),
    ];
    let ops = [
        Op::Rename(&[("p", 2)], &[("q", 1), ("p", 0)]),
        Op::Rename(&[("q", 1), ("p", 0)], &[("p", 0)]),
    ];
    whole_or_not_at_all(&setup, &ops);
}

#[test]
fn what_is_not_durable_yet_does_not_come_back_into_what_is() {
    // A name that was free, but not durably so.
    let setup = [Op::Create(&[("a", 0)]), Op::Create(&[("b", 2)])];
    let ops = [Op::RemoveLazily(&[("b", 2)]), Op::Rename(&[("a", 0)], &[("b", 2)])];
    whole_or_not_at_all(&setup, &ops);
    // A directory that was empty, but not durably so.
    let setup = [Op::MakeDirectory(&[("p", 0)]), Op::Create(&[("p", 0), ("y", 2)])];
    let ops = [Op::RemoveLazily(&[("p", 0), ("y", 2)]), Op::RemoveDirectory(&[("p", 0)])];
    whole_or_not_at_all(&setup, &ops);
    // A file that was there, but not durably so.
    let ops = [Op::CreateLazily(&[("a", 0)]), Op::Link(&[("a", 0)], &[("b", 2)])];
    whole_or_not_at_all(&[], &ops);
}

#[test]
fn a_durable_change_of_an_extended_attribute_outlives_a_power_cut_that_follows_its_answer() {
    let world = world();
    world.run(async {
        let volume = prepared(&world, &[Op::Create(&[("a", 0)])]).await;
        let (directory, name) = place(&volume, &[("a", 0)]).await;
        let file = handle(&volume.ask(Lookup { who: who(), directory, name }).await.unwrap());
        let name = XattrName::new(&b"user.tag"[..]).unwrap();
        // Set, changed, and removed; again and again, since a disk may keep what it need not.
        for number in 0..24_u8 {
            let (who, call, name) = (who(), volume.call_id(), name.clone());
            let value = (number % 3 < 2).then(|| vec![number; 100]);
            let durable = true;
            let done = if let Some(value) = value.clone() {
                let (who, name, mode) = (who.clone(), name.clone(), XattrMode::Either {});
                volume.ask(SetXattr { who, call, file, name, value, mode, durable }).await
            } else {
                let (who, name) = (who.clone(), name.clone());
                volume.ask(RemoveXattr { who, call, file, name, durable }).await
            };
            done.unwrap();
            world.crash_everything();
            volume.restart().await;
            let found = volume.ask(GetXattr { who, file, name }).await;
            assert_eq!(found, value.ok_or(Error::NoXattr {}), "change {number}");
        }
    });
}
