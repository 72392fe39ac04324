//! Partitions that come and go, while clients work in one of them and the power goes. What was
//! answered stays; what has no answer is one or the other.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use fileio::hash::partition_of;
use fileio::protocol::{
    ChangePartitions, Commit, Credentials, Error, GetPartitions, GetSpace, Handle, Name, Partition,
    PartitionChange, PartitionRefusal, PartitionState, PartitionTable, ROOT, Write, handle_of,
};
use runtime::seed::Rng;

use super::content::BLOCK;
use super::harness::{CallFailure, Harness, PowerCut, WorkResult};
use super::names::name;

/// The client that the operator is.
const CLIENT: u32 = 6;
/// Names of partitions besides that of the clients.
const NAMES: usize = 3;
/// Bytes that are written into a partition at once, at most.
const WRITE_MAX: u64 = 40_000;

/// What is known of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Absent,
    /// With this number, block size and limit.
    There(u16, u32, Option<u64>),
    /// It is being removed, and gone some time.
    Going,
    /// The power went at the wrong moment.
    Unknown,
}

/// What the operator has done.
#[derive(Debug)]
pub(super) struct PartitionOperator {
    known: RefCell<BTreeMap<String, Expected>>,
    /// Files of each partition that were answered as durable, unless it is removed with them.
    kept: RefCell<BTreeMap<String, Vec<Name>>>,
    numbers: Cell<u16>,
    files: Cell<u64>,
}

impl PartitionOperator {
    /// Makes the partition of the clients; returns its root.
    pub(super) async fn make_home(harness: &Harness, rng: &mut Rng) -> Handle {
        let change = PartitionChange::Create {
            name: name("home"),
            block_bytes: harness.cluster.block_bytes() as u32,
            limit_bytes: rng.chance(1, 4).then_some(1 << 40),
        };
        ask(harness, change).await.expect("a fresh volume has room for it");
        let home = harness.lookup(CLIENT, ROOT, name("home")).await;
        let home = handle_of(&home.expect("it was made"));
        assert_eq!(partition_of(home.ino), 1);
        home
    }

    pub(super) fn new() -> Self {
        let known = (0..NAMES).map(|number| (format!("part-{number}"), Expected::Absent)).collect();
        Self {
            known: RefCell::new(known),
            kept: RefCell::default(),
            numbers: Cell::new(1),
            files: Cell::default(),
        }
    }

    /// Changes partitions until the round is over.
    pub(super) async fn work(&self, harness: &Harness, mut rng: Rng) {
        while !harness.is_over() {
            harness.pass(Duration::from_millis(rng.below(200))).await;
            if let Err(PowerCut) = self.step(harness, &mut rng).await {
                return;
            }
        }
    }

    async fn step(&self, harness: &Harness, rng: &mut Rng) -> WorkResult {
        let at = rng.index(NAMES);
        let (text, known) = {
            let known = self.known.borrow();
            let (text, known) = known.iter().nth(at).expect("it is below");
            (text.clone(), *known)
        };
        match (known, rng.below(10)) {
            (Expected::Absent | Expected::Unknown, _) => self.create(harness, &text, rng).await,
            (Expected::Going, _) => self.see_whether_gone(harness, &text).await,
            (Expected::There(..), 0) => self.remove(harness, &text, true).await,
            (Expected::There(..), 1) => self.remove(harness, &text, false).await,
            (Expected::There(number, block, _), 2) => {
                let limit = rng.chance(1, 2).then(|| rng.below(1 << 20));
                self.limit(harness, &text, (number, block), limit).await
            }
            (Expected::There(number, ..), 3..5) => cross(harness, &text, number).await,
            (Expected::There(number, block, limit), _) => {
                self.write(harness, &text, (number, block, limit), rng).await
            }
        }
    }

    fn set(&self, text: &str, known: Expected) {
        self.known.borrow_mut().insert(text.to_owned(), known);
    }

    /// Asks for a change, of which the outcome is unknown until it is answered.
    async fn change(
        &self,
        harness: &Harness,
        text: &str,
        change: PartitionChange,
    ) -> WorkResult<Result<(), PartitionRefusal>> {
        let before = self.known.borrow()[text];
        self.set(text, Expected::Unknown);
        match ask(harness, change).await {
            Ok(()) => Ok(Ok(())),
            Err(CallFailure::Refused(Error::Partitions { why })) => {
                self.set(text, before);
                Ok(Err(why))
            }
            Err(failure) => failure.power_cut(),
        }
    }

    async fn create(&self, harness: &Harness, text: &str, rng: &mut Rng) -> WorkResult {
        let block_bytes = any_block(harness, rng);
        let limit_bytes = rng.chance(1, 2).then(|| rng.below(1 << 20));
        let change = PartitionChange::Create { name: name(text), block_bytes, limit_bytes };
        let was_unknown = self.known.borrow()[text] == Expected::Unknown;
        match self.change(harness, text, change).await? {
            Ok(()) => {
                let number = listed(harness, text).await?.expect("it was made just now").number;
                assert!(was_unknown || number > self.numbers.get(), "a number comes again");
                self.numbers.set(number.max(self.numbers.get()));
                self.set(text, Expected::There(number, block_bytes, limit_bytes));
            }
            // As it was wanted before the power went, or as it is being removed since.
            Err(PartitionRefusal::Exists {} | PartitionRefusal::IsGoing {}) if was_unknown => {
                self.remove(harness, text, true).await?;
            }
            Err(why) => panic!("{text}: {why}"),
        }
        Ok(())
    }

    async fn remove(&self, harness: &Harness, text: &str, with_content: bool) -> WorkResult {
        let change = PartitionChange::Remove { name: name(text), with_content };
        if with_content {
            self.kept.borrow_mut().remove(text);
        }
        match self.change(harness, text, change).await? {
            Ok(()) => {
                let is_empty = !self.kept.borrow().contains_key(text);
                assert!(is_empty, "{text} is removed with files in it");
                self.set(text, Expected::Going);
            }
            Err(PartitionRefusal::NotEmpty {}) if !with_content => {
                self.see_what_is_kept(harness, text).await?;
            }
            // The request came again after its answer was lost.
            Err(PartitionRefusal::NotFound {}) => {
                assert!(!self.kept.borrow().contains_key(text), "{text} is gone with its files");
                self.set(text, Expected::Absent);
            }
            Err(why) => panic!("{text}: {why}"),
        }
        Ok(())
    }

    async fn limit(
        &self,
        harness: &Harness,
        text: &str,
        (number, block): (u16, u32),
        limit: Option<u64>,
    ) -> WorkResult {
        let change = PartitionChange::SetLimit { name: name(text), limit_bytes: limit };
        match self.change(harness, text, change).await? {
            Ok(()) => self.set(text, Expected::There(number, block, limit)),
            Err(why) => panic!("{text}: {why}"),
        }
        Ok(())
    }

    async fn see_whether_gone(&self, harness: &Harness, text: &str) -> WorkResult {
        match listed(harness, text).await? {
            None => self.set(text, Expected::Absent),
            Some(partition) => {
                assert!(partition.is_going(), "{text} is removed no more");
                // Nothing is made in it.
                if let Some(root) = root_of(harness, text).await? {
                    let create = harness.create_request(root, name("late"), false);
                    match harness.ask(CLIENT, create).await {
                        Ok(_) => panic!("something was made in {text}, which is being removed"),
                        Err(CallFailure::Refused(_)) => {}
                        Err(failure) => return failure.power_cut(),
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a new file into a partition: it gets the space that it needs, or the limit does not
    /// let it have it.
    async fn write(
        &self,
        harness: &Harness,
        text: &str,
        (number, block, limit): (u16, u32, Option<u64>),
        rng: &mut Rng,
    ) -> WorkResult {
        let Some(root) = root_of(harness, text).await? else { panic!("{text} has no root") };
        self.files.set(self.files.get() + 1);
        let file_name = format!("file-{}", self.files.get());
        let made = harness.ask(CLIENT, harness.create_request(root, name(&file_name), true)).await;
        let file = handle_of(&made.or_else(CallFailure::power_cut)?.attributes);
        assert_eq!(partition_of(file.ino), number);
        self.kept.borrow_mut().entry(text.to_owned()).or_default().push(name(&file_name));
        let space = GetSpace { partition: number };
        let restarts = harness.restarts();
        let before = harness.ask(CLIENT, space.clone()).await.or_else(CallFailure::power_cut)?;
        let used = before.total_bytes - before.free_bytes;
        let length = 1 + rng.below(WRITE_MAX);
        let needed = length.next_multiple_of(u64::from(block));
        let unit = u64::from(block) / BLOCK;
        let (who, offset, durable) = (Credentials::root(), 0, false);
        let data = vec![vec![7; length as usize].into()];
        let write = Write { who, file, offset, data, durable };
        let fits = limit.is_none_or(|limit| used + needed <= limit);
        match harness.ask(CLIENT, write).await {
            Ok(_) => {
                assert!(fits, "{used} + {needed} bytes are above {limit:?} in {text}");
                let after = harness.ask(CLIENT, space).await.or_else(CallFailure::power_cut)?;
                let after = after.total_bytes - after.free_bytes;
                let is_right = after == used + needed || harness.restarts() > restarts;
                assert!(is_right, "{after} bytes are used in {text}, not {used} + {needed}");
            }
            // The volume itself may be full.
            Err(CallFailure::Refused(Error::NoSpace {})) => {
                let volume = harness.ask(CLIENT, GetSpace { partition: 0 }).await;
                let volume = volume.or_else(CallFailure::power_cut)?;
                let is_full = volume.available_bytes < 4 * WRITE_MAX * unit;
                assert!(!fits || is_full, "{used} + {needed} bytes are within {limit:?} in {text}");
            }
            Err(failure) => return failure.power_cut(),
        }
        if rng.chance(1, 2) {
            let committed = harness.ask(CLIENT, Commit { file }).await;
            committed.or_else(CallFailure::power_cut)?;
        }
        Ok(())
    }

    /// After a power cut: what was answered is as it was.
    pub(super) async fn check(&self, harness: &Harness) {
        let Ok(table) = table(harness).await else { panic!("no crash was asked for") };
        let known = self.known.borrow().clone();
        for (text, known) in known {
            let found = table.named(&name(&text));
            match known {
                Expected::Absent => assert_eq!(found, None, "{text} is back"),
                Expected::There(number, block_bytes, limit) => {
                    let found = found.unwrap_or_else(|| panic!("{text} is lost"));
                    let (name, state) = (found.name.clone(), PartitionState::Online {});
                    let limit_bytes = limit;
                    let expected = Partition { number, name, block_bytes, limit_bytes, state };
                    assert_eq!(*found, expected);
                }
                Expected::Going => {
                    assert!(found.is_none_or(Partition::is_going), "{text} stays");
                }
                Expected::Unknown => {}
            }
        }
        self.see_all_that_is_kept(harness).await;
    }

    async fn see_all_that_is_kept(&self, harness: &Harness) {
        let texts: Vec<String> = self.kept.borrow().keys().cloned().collect();
        for text in texts {
            let seen = self.see_what_is_kept(harness, &text).await;
            assert!(seen.is_ok(), "no crash was asked for");
        }
    }

    /// Nothing has gone with the partition, which was not empty.
    async fn see_what_is_kept(&self, harness: &Harness, text: &str) -> WorkResult {
        let kept = self.kept.borrow().get(text).cloned().unwrap_or_default();
        if kept.is_empty() {
            return Ok(());
        }
        let Some(root) = root_of(harness, text).await? else { panic!("{text} has no root") };
        for file in kept {
            let found = harness.lookup(CLIENT, root, file.clone()).await;
            if let Err(failure) = found {
                if let CallFailure::Refused(error) = &failure {
                    panic!("{file} of {text} is lost: {error}");
                }
                return failure.power_cut();
            }
        }
        Ok(())
    }

    /// Once nothing goes wrong any more: what is to go is gone in bounded time.
    pub(super) async fn finish(&self, harness: &Harness) {
        loop {
            let Ok(table) = table(harness).await else { panic!("no crash was asked for") };
            if !table.partitions.iter().any(Partition::is_going) {
                break;
            }
            harness.pass(Duration::from_millis(500)).await;
        }
        self.see_all_that_is_kept(harness).await;
    }
}

/// A block size that the volume can have.
fn any_block(harness: &Harness, rng: &mut Rng) -> u32 {
    let stripe = harness.cluster.geometry().stripe_size;
    let powers = (stripe / BLOCK as u32).trailing_zeros() + 1;
    (BLOCK as u32) << rng.below(u64::from(powers))
}

async fn ask(harness: &Harness, change: PartitionChange) -> Result<(), CallFailure> {
    let (who, root) = (Credentials::root(), ROOT);
    let call = ChangePartitions { who, root, change };
    loop {
        match harness.ask(CLIENT, call.clone()).await {
            Err(CallFailure::Refused(Error::Partitions { why: PartitionRefusal::NotReady {} })) => {
                harness.pass(Duration::from_millis(10)).await;
            }
            answer => return answer,
        }
    }
}

async fn table(harness: &Harness) -> WorkResult<PartitionTable> {
    harness.ask(CLIENT, GetPartitions { root: ROOT }).await.or_else(CallFailure::power_cut)
}

async fn listed(harness: &Harness, text: &str) -> WorkResult<Option<Partition>> {
    Ok(table(harness).await?.named(&name(text)).cloned())
}

async fn root_of(harness: &Harness, text: &str) -> WorkResult<Option<Handle>> {
    match harness.lookup(CLIENT, ROOT, name(text)).await {
        Ok(found) => Ok(Some(handle_of(&found))),
        Err(CallFailure::Refused(Error::NotFound {})) => Ok(None),
        Err(failure) => failure.power_cut(),
    }
}

/// Nothing gets out of a partition, and its root stays where it is.
async fn cross(harness: &Harness, text: &str, number: u16) -> WorkResult {
    let Some(root) = root_of(harness, text).await? else { panic!("{text} has no root") };
    assert_eq!(partition_of(root.ino), number);
    let is_refused = |answer: Result<(), CallFailure>, expected: PartitionRefusal| match answer {
        Err(CallFailure::Refused(Error::Partitions { why })) if why == expected => Ok(()),
        Err(CallFailure::PowerCut) => Err(PowerCut),
        other => panic!("{other:?}, not {expected:?}"),
    };
    let made = harness.ask(CLIENT, harness.create_request(root, name("inside"), false)).await;
    match made {
        Ok(_) | Err(CallFailure::Refused(Error::Exists {})) => {}
        Err(failure) => return failure.power_cut(),
    }
    let (inside, outside): (Name, Name) = (name("inside"), name("outside"));
    let rename = harness.rename_request((root, inside.clone()), (ROOT, outside.clone()), false);
    is_refused(harness.ask(CLIENT, rename).await, PartitionRefusal::Crossing {})?;
    let found = harness.lookup(CLIENT, root, inside).await;
    let file = handle_of(&found.or_else(CallFailure::power_cut)?);
    let link = harness.link_request(file, (ROOT, outside.clone()), false);
    let linked = harness.ask(CLIENT, link).await.map(|_| ());
    is_refused(linked, PartitionRefusal::Crossing {})?;
    let rename = harness.rename_request((ROOT, name(text)), (ROOT, outside), false);
    is_refused(harness.ask(CLIENT, rename).await, PartitionRefusal::IsRoot {})?;
    let remove = harness.rmdir_request(ROOT, name(text), false);
    is_refused(harness.ask(CLIENT, remove).await, PartitionRefusal::IsRoot {})
}
