//! The file layer answers as its model does.
//!
//! Method: random requests of several users go to the real layer (metadata, blocks and all, on a
//! disk in memory) and to the model; every answer must be the same, and at the end the whole tree.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;

use bytes::Bytes;
use fileio::client::ask;
use fileio::model::Model;
use fileio::protocol::*;
use futures::executor::block_on;
use runtime::ClientHandle;
use runtime::seed::{Rng, with_seed};

const STEPS: usize = 3_000;
const FILE_BYTES_MAX: u64 = 300_000;

/// The same file on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    real: Handle,
    model: Handle,
}

struct World {
    client_handle: ClientHandle,
    model: Model,
    known: Vec<Pair>,
    calls: u64,
}

impl World {
    /// A logical block has `unit` blocks.
    fn new(client_handle: ClientHandle, unit: u32) -> Self {
        let known = vec![Pair { real: ROOT, model: ROOT }];
        let model = Model::default().with_pages(u64::from(unit) * 4096);
        Self { client_handle, model, known, calls: 0 }
    }

    fn any(&self, rng: &mut Rng) -> Pair {
        // Mostly the root and old ones, so that names meet.
        let reach = if rng.chance(1, 3) { 1 } else { self.known.len() };
        self.known[rng.index(reach)]
    }

    fn call_id(&mut self) -> CallId {
        self.calls += 1;
        CallId { client: 1, number: self.calls }
    }

    fn learn(&mut self, real: &Attributes, model: &Attributes) {
        let handle = |a: &Attributes| Handle { ino: a.ino, generation: a.generation };
        let pair = Pair { real: handle(real), model: handle(model) };
        if !self.known.contains(&pair) {
            self.known.push(pair);
        }
    }
}

/// What both sides must agree on.
fn visible(a: &Attributes) -> (Kind, u32, u32, u32, u32, u64, u64, (u32, u32)) {
    (a.kind, a.mode, a.links, a.uid, a.gid, a.size, a.used_bytes, (a.major, a.minor))
}

fn any_user(rng: &mut Rng) -> Credentials {
    let (uid, gid, groups) = match rng.below(8) {
        0..4 => (0, 0, vec![]),
        4..6 => (1000, 1000, vec![2000]),
        6 => (1001, 1000, vec![]),
        _ => (1002, 1002, vec![2000, 1000]),
    };
    Credentials { uid, gid, groups }
}

fn any_name(rng: &mut Rng) -> Name {
    Name::new(vec![b'a' + rng.below(6) as u8]).unwrap()
}

fn any_change(rng: &mut Rng) -> Change {
    const MODES: [u32; 8] = [0o755, 0o777, 0o700, 0o1777, 0o2775, 0o4755, 0o6711, 0];
    let one_in = |rng: &mut Rng, n: u64| rng.chance(1, n);
    Change {
        mode: one_in(rng, 2).then(|| MODES[rng.index(8)]),
        uid: one_in(rng, 8).then(|| 1000 + rng.below(3) as u32),
        gid: one_in(rng, 8).then(|| 1000 * (1 + rng.below(2) as u32)),
        size: one_in(rng, 4).then(|| rng.below(FILE_BYTES_MAX)),
        atime: one_in(rng, 8).then_some(SetTime::Now {}),
        mtime: one_in(rng, 8).then(|| SetTime::To {
            time: Time { seconds: rng.below(1 << 30).cast_signed(), nanos: 5 },
        }),
        redundancy: None,
    }
}

/// Asks both sides and compares errors and, by `$compare`, successes.
macro_rules! both {
    ($world:expr, $step:expr, |$pick:ident| $call:expr, $compare:expr) => {{
        let real = {
            let $pick = |pair: Pair| pair.real;
            block_on(ask(&$world.client_handle, $call))
        };
        let model = {
            let $pick = |pair: Pair| pair.model;
            $world.model.ask($call)
        };
        let told = format!("step {}: {:?}", $step, {
            let $pick = |pair: Pair| pair.real;
            $call
        });
        match (real, model) {
            (Ok(real), Ok(model)) => {
                let compare = $compare;
                compare(&real, &model, &told);
                Some((real, model))
            }
            (Err(real), Err(model)) => {
                assert_eq!(real, model, "{told}");
                None
            }
            (real, model) => panic!("{told}: the layer says {real:?}, the model {model:?}"),
        }
    }};
}

fn same_verified(real: &WriteResult, model: &WriteResult, told: &str) {
    same_attributes(&real.attributes, &model.attributes, told);
    if let (Some(real), Some(model)) = (real.before, model.before) {
        assert_eq!(real.size, model.size, "before: {told}");
    }
}

fn same_attributes(real: &Attributes, model: &Attributes, told: &str) {
    assert_eq!(visible(real), visible(model), "{told}");
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "one form for all comparisons")]
fn same_nothing(_: &(), _: &(), _: &str) {}

#[allow(clippy::too_many_lines, reason = "a table: one arm for each request")]
fn step(world: &mut World, step: usize, rng: &mut Rng) {
    let (who, name, call) = (any_user(rng), any_name(rng), world.call_id());
    let (one, other) = (world.any(rng), world.any(rng));
    let durable = step.is_multiple_of(4);
    match rng.below(37) {
        0..3 => {
            let change = Change { size: None, ..any_change(rng) };
            let existing = match rng.below(4) {
                0 => Existing::Refuse {},
                1 => Existing::UseIfSame { verifier: rng.below(2) },
                _ => Existing::Use {},
            };
            let made = both!(
                world,
                step,
                |pick| Create {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    existing,
                    change: change.clone(),
                    durable
                },
                |real: &Created, model: &Created, told: &str| {
                    assert_eq!(real.new, model.new, "{told}");
                    same_attributes(&real.attributes, &model.attributes, told);
                }
            );
            if let Some((real, model)) = made {
                world.learn(&real.attributes, &model.attributes);
            }
        }
        3..6 => {
            let node = match rng.below(6) {
                0..4 => NewNode::Directory {},
                4 => NewNode::Symlink { target: b"../somewhere".to_vec() },
                _ => NewNode::CharDevice { major: 1, minor: 3 },
            };
            let change = any_change(rng);
            let made = both!(
                world,
                step,
                |pick| MakeNode {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    node: node.clone(),
                    change: change.clone(),
                    durable
                },
                same_attributes
            );
            if let Some((real, model)) = made {
                world.learn(&real, &model);
            }
        }
        6 => {
            both!(
                world,
                step,
                |pick| Lookup { who: who.clone(), directory: pick(one), name: name.clone() },
                same_attributes
            );
        }
        7 => {
            both!(
                world,
                step,
                |pick| Remove {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    durable: false
                },
                same_nothing
            );
        }
        8 => {
            both!(
                world,
                step,
                |pick| RemoveDirectory {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    durable
                },
                same_nothing
            );
        }
        9..11 => {
            let (to_name, replace) = (any_name(rng), rng.below(2) == 0);
            both!(
                world,
                step,
                |pick| Rename {
                    who: who.clone(),
                    call,
                    from_directory: pick(one),
                    from_name: name.clone(),
                    to_directory: pick(other),
                    to_name: to_name.clone(),
                    replace,
                    durable
                },
                same_nothing
            );
        }
        11 => {
            both!(
                world,
                step,
                |pick| Link {
                    who: who.clone(),
                    call,
                    file: pick(other),
                    directory: pick(one),
                    name: name.clone(),
                    durable
                },
                same_attributes
            );
        }
        12 => {
            let change = any_change(rng);
            both!(
                world,
                step,
                |pick| SetAttributes {
                    who: who.clone(),
                    file: pick(one),
                    change: change.clone(),
                    only_if_ctime: None,
                    durable: false
                },
                same_attributes
            );
        }
        13..16 => {
            let length = if rng.chance(1, 4) { rng.below(150_000) } else { rng.below(5_000) };
            let mut data = vec![0; length as usize];
            rng.fill(&mut data);
            let cut = rng.index(data.len() + 1);
            let data =
                vec![Bytes::copy_from_slice(&data[..cut]), Bytes::copy_from_slice(&data[cut..])];
            let offset = rng.below(FILE_BYTES_MAX);
            let durable = rng.chance(1, 8);
            both!(
                world,
                step,
                |pick| Write {
                    who: who.clone(),
                    file: pick(one),
                    offset,
                    data: data.clone(),
                    durable
                },
                same_verified
            );
        }
        16 => {
            both!(world, step, |pick| Commit { file: pick(one) }, same_verified);
        }
        17 => {
            both!(
                world,
                step,
                |pick| ReadLink { file: pick(one) },
                |real: &Vec<u8>, model: &Vec<u8>, told: &str| assert_eq!(real, model, "{told}")
            );
        }
        18 => {
            both!(
                world,
                step,
                |pick| Parent { who: who.clone(), directory: pick(one) },
                same_attributes
            );
        }
        34 | 35 => lists(world, step, one, &who, rng),
        36 => {
            let mut data = vec![0; rng.below(9_000) as usize];
            rng.fill(&mut data);
            let data = vec![Bytes::from(data)];
            both!(
                world,
                step,
                |pick| Append {
                    who: who.clone(),
                    call,
                    again: false,
                    acknowledged: 0,
                    only_if_verifier: None,
                    file: pick(one),
                    data: data.clone()
                },
                |real: &Appended, model: &Appended, told: &str| {
                    assert_eq!(real.offset, model.offset, "{told}");
                    same_verified(&real.written, &model.written, told);
                }
            );
        }
        19..23 => space(world, step, one, &who, rng),
        23..28 => xattrs(world, step, (one, call), &who, rng),
        28 => {
            // Two clients, so that the last one matters.
            let call = CallId { client: rng.below(2), ..call };
            let access = rng.below(8) as u32;
            both!(
                world,
                step,
                |pick| OpenHandle { who: who.clone(), call, file: pick(one), access },
                |real: &OpenedFile, model: &OpenedFile, told: &str| {
                    same_attributes(&real.attributes, &model.attributes, told);
                    assert_eq!(real.lease == 0, model.lease == 0, "{told}");
                }
            );
        }
        29 => {
            let call = CallId { client: rng.below(2), ..call };
            both!(world, step, |pick| CloseHandle { call, file: pick(one) }, same_nothing);
        }
        30 => {
            let held = both!(
                world,
                step,
                |pick| OpenNew {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    existing: Existing::Use {},
                    change: Change::default(),
                    durable: false
                },
                |real: &OpenedNewFile, model: &OpenedNewFile, told: &str| {
                    assert_eq!(real.created.new, model.created.new, "{told}");
                    same_attributes(&real.created.attributes, &model.created.attributes, told);
                }
            );
            if let Some((real, model)) = held {
                world.learn(&real.created.attributes, &model.created.attributes);
            }
        }
        31 => {
            both!(
                world,
                step,
                |pick| Open { who: who.clone(), call, directory: pick(one), name: name.clone() },
                |real: &OpenedFile, model: &OpenedFile, told: &str| {
                    same_attributes(&real.attributes, &model.attributes, told);
                }
            );
        }
        _ => read(world, step, one, rng.below(FILE_BYTES_MAX), rng.below(200_000) as u32, &who),
    }
}

/// Any list whose regions lie in a small file: in order or not, near or far, overlapping or not.
fn any_regions(rng: &mut Rng) -> Regions {
    let list = match rng.below(4) {
        0 => {
            let (block, count) = (rng.below(9_000) + 1, rng.below(20) + 1);
            let stride = rng.below(14_000) / (1 + 3 * rng.below(2));
            Regions::strided(rng.below(10_000), block, count, stride)
        }
        1 => {
            let rows = rng.below(40) + 1;
            let loops = [(rng.below(4) + 1, 64 << 10), (rows, rng.below(4_096)), (3, 200)];
            Regions::nested(rng.below(5_000), rng.below(100) + 1, &loops)
        }
        2 => {
            let array = [30, 20, 100];
            let part = array.map(|size| rng.below(size) + 1);
            let first = [0, 1, 2].map(|i| rng.below(array[i] - part[i] + 1));
            Regions::subarray(rng.below(8_192), 4, &array, &part, &first)
        }
        _ => {
            let count = rng.below(30);
            let unit = if rng.chance(1, 2) { 4096 } else { 1 };
            let range =
                |rng: &mut Rng| (rng.below(200_000) / unit * unit, rng.below(12_000) / unit * unit);
            Regions::indexed((0..count).map(|_| range(rng)))
        }
    };
    list.unwrap()
}

/// Lists of regions.
fn lists(world: &World, step: usize, one: Pair, who: &Credentials, rng: &mut Rng) {
    let regions = any_regions(rng);
    let all = regions.bytes();
    let skip = if rng.chance(1, 2) { 0 } else { rng.below(all + 1) };
    let length = if rng.chance(1, 2) { all - skip } else { rng.below(all - skip + 1) };
    if rng.chance(1, 2) {
        let mut data = vec![0; length as usize];
        rng.fill(&mut data);
        let (data, durable) = (Bytes::from(data), rng.chance(1, 8));
        both!(
            world,
            step,
            |pick| WriteList {
                who: who.clone(),
                file: pick(one),
                regions: regions.clone(),
                skip,
                data: data.clone(),
                durable
            },
            same_verified
        );
        return;
    }
    both!(
        world,
        step,
        |pick| ReadList {
            who: who.clone(),
            file: pick(one),
            regions: regions.clone(),
            skip,
            length: length as u32
        },
        |real: &ListData, model: &ListData, told: &str| {
            assert_eq!(real.data.concat(), model.data.concat(), "{told}");
            same_attributes(&real.attributes, &model.attributes, told);
        }
    );
}

/// Holes, and telling them from data.
fn space(world: &World, step: usize, one: Pair, who: &Credentials, rng: &mut Rng) {
    let mut offset = rng.below(FILE_BYTES_MAX);
    let most = if rng.chance(1, 2) { 100_000 } else { 6_000 };
    let mut length = rng.below(most);
    if rng.chance(1, 3) {
        (offset, length) = (offset / 4096 * 4096, length / 4096 * 4096);
    }
    let durable = rng.chance(1, 8);
    match rng.below(4) {
        0 | 1 => {
            both!(
                world,
                step,
                |pick| PunchHole { who: who.clone(), file: pick(one), offset, length, durable },
                same_verified
            );
        }
        2 => {
            let keep_size = rng.chance(1, 2);
            both!(
                world,
                step,
                |pick| Allocate {
                    who: who.clone(),
                    file: pick(one),
                    offset,
                    length,
                    keep_size,
                    durable
                },
                same_attributes
            );
        }
        _ => seek_all(world, step, one, who),
    }
}

/// All data and holes of a file.
fn seek_all(world: &World, step: usize, file: Pair, who: &Credentials) {
    let (mut offset, mut target) = (0, SeekTarget::Data {});
    loop {
        let found = both!(
            world,
            step,
            |pick| Seek { who: who.clone(), file: pick(file), offset, target },
            |real: &Option<u64>, model: &Option<u64>, told: &str| assert_eq!(real, model, "{told}")
        );
        let Some((Some(found), _)) = found else { return };
        offset = found;
        target = match target {
            SeekTarget::Data {} => SeekTarget::Hole {},
            SeekTarget::Hole {} => SeekTarget::Data {},
        };
    }
}

fn any_xattr_name(rng: &mut Rng) -> XattrName {
    const NAMES: [&str; 8] =
        ["user.a", "user.a", "user.ab", "user.b", "trusted.a", "user.", "security.a", "user"];
    XattrName::new(NAMES[rng.index(8)].as_bytes()).unwrap()
}

/// Any request about extended attributes.
fn xattrs(
    world: &World,
    step: usize,
    (one, call): (Pair, CallId),
    who: &Credentials,
    rng: &mut Rng,
) {
    let (name, durable) = (any_xattr_name(rng), rng.chance(1, 8));
    match rng.below(6) {
        0..3 => {
            let length = [0, 1, 100, 8_192, 8_193, 20_000, 32_768, 32_769][rng.index(8)];
            let mut value = vec![0; length];
            rng.fill(&mut value);
            let modes = [XattrMode::Either {}, XattrMode::CreateNew {}, XattrMode::Replace {}];
            let mode = modes[rng.index(3)];
            both!(
                world,
                step,
                |pick| SetXattr {
                    who: who.clone(),
                    call,
                    file: pick(one),
                    name: name.clone(),
                    value: value.clone(),
                    mode,
                    durable
                },
                same_attributes
            );
        }
        3 => {
            both!(
                world,
                step,
                |pick| RemoveXattr {
                    who: who.clone(),
                    call,
                    file: pick(one),
                    name: name.clone(),
                    durable
                },
                same_attributes
            );
        }
        4 => {
            both!(
                world,
                step,
                |pick| GetXattr { who: who.clone(), file: pick(one), name: name.clone() },
                |real: &Vec<u8>, model: &Vec<u8>, told: &str| assert!(real == model, "{told}")
            );
        }
        _ => all_xattrs(world, step, one, who),
    }
}

/// All names and values of a file.
fn all_xattrs(world: &World, step: usize, file: Pair, who: &Credentials) {
    let listed = both!(
        world,
        step,
        |pick| ListXattrs { who: who.clone(), file: pick(file) },
        |real: &Vec<XattrName>, model: &Vec<XattrName>, told: &str| assert_eq!(
            real, model,
            "{told}"
        )
    );
    for name in listed.map(|(names, _)| names).unwrap_or_default() {
        both!(
            world,
            step,
            |pick| GetXattr { who: who.clone(), file: pick(file), name: name.clone() },
            |real: &Vec<u8>, model: &Vec<u8>, told: &str| assert!(real == model, "{told}")
        );
    }
}

fn read(world: &World, step: usize, file: Pair, offset: u64, length: u32, who: &Credentials) {
    both!(
        world,
        step,
        |pick| Read { who: who.clone(), file: pick(file), offset, length },
        |real: &ReadData, model: &ReadData, told: &str| {
            assert!(real.data.concat() == model.data.concat(), "{told}: other bytes");
            assert_eq!(real.end, model.end, "{told}");
        }
    );
}

fn names(world: &World, directory: Pair, count_max: u32) -> Option<[BTreeMap<Name, Kind>; 2]> {
    let who = Credentials::root();
    let mut found = [BTreeMap::new(), BTreeMap::new()];
    for (side, found) in found.iter_mut().enumerate() {
        let mut after = 0;
        loop {
            let handle = if side == 0 { directory.real } else { directory.model };
            let call = ReadDirectory {
                who: who.clone(),
                directory: handle,
                after,
                count_max,
                attributes: true,
            };
            let page = if side == 0 {
                block_on(ask(&world.client_handle, call))
            } else {
                world.model.ask(call)
            };
            let Ok(page) = page else { return None };
            for entry in page.entries {
                assert!(entry.cookie >= after, "cookies grow");
                after = entry.cookie;
                assert_eq!(entry.attributes.unwrap().kind, entry.kind);
                assert!(found.insert(entry.name, entry.kind).is_none(), "a name twice");
            }
            if page.end {
                break;
            }
        }
    }
    Some(found)
}

#[test]
fn every_answer_is_the_models() {
    ask_both(1);
}

#[test]
fn with_larger_blocks_every_answer_is_the_models() {
    ask_both(4);
    // A whole stripe.
    ask_both(16);
}

fn ask_both(unit: u32) {
    with_seed(|rng| {
        for nodes in [1, 4] {
            let machine = support::machine_of_units(nodes, 4096, unit);
            let mut world = World::new(machine.client_handle(), unit);
            for number in 0..STEPS {
                step(&mut world, number, rng);
            }
            for pair in world.known.clone() {
                let root = Credentials::root();
                read(&world, STEPS, pair, 0, FILE_BYTES_MAX as u32 + 200_000, &root);
                both!(world, STEPS, |pick| GetAttributes { file: pick(pair) }, same_attributes);
                seek_all(&world, STEPS, pair, &root);
                all_xattrs(&world, STEPS, pair, &root);
                if let Some([real, model]) = names(&world, pair, 1 + rng.below(5) as u32) {
                    assert_eq!(real, model);
                }
            }
        }
    });
}
