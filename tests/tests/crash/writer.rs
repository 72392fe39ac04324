//! A client that works on names of its own and remembers what it was told.

use std::collections::BTreeMap;

use client::blocking::{BlockingFile, Volume};
use client::{Change, Credentials, Error, Kind, OpenOptions};
use fileio::protocol::{
    CallId, Create, Created, Existing, Handle, MakeNode, Name, NewNode, Remove, RemoveDirectory,
    Rename,
};
use futures::executor::block_on;
use runtime::seed::Rng;

use super::model::{BLOCKS, FileModel, Known};

/// Names of a writer that are in use at a time.
const SLOTS: usize = 6;

type Told<T> = Result<T, fileio::protocol::Error>;

/// One client, across the crashes of its server.
#[derive(Debug)]
pub(crate) struct Writer {
    number: u64,
    rng: Rng,
    /// What each name was when the writer was last told.
    names: BTreeMap<String, Known>,
    /// What a name may be as well: an operation on it was never answered.
    unanswered: Option<(String, Known)>,
    /// For names, births and versions that were never used before.
    count: u64,
    acknowledged: u64,
}

impl Writer {
    pub(crate) fn new(number: u64, seed: u64) -> Self {
        let rng = Rng::new(seed);
        let names = BTreeMap::new();
        Self { number, rng, names, unanswered: None, count: 0, acknowledged: 0 }
    }

    /// Operations that were answered.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Works until the server is gone.
    pub(crate) fn work(&mut self, volume: &Volume) {
        let Ok(root) = volume.metadata("/") else { return };
        let root = Handle { ino: root.ino, generation: root.generation };
        while self.step(volume, root).is_some() {
            self.acknowledged += 1;
        }
    }

    /// One operation; nothing if it was not answered.
    fn step(&mut self, volume: &Volume, root: Handle) -> Option<()> {
        let new = self.names.len() < SLOTS;
        let chosen = self.rng.index(self.names.len().max(1));
        let chosen =
            self.names.iter().nth(chosen).map(|(name, known)| (name.clone(), known.clone()));
        match (self.rng.below(10), chosen) {
            (0..2, _) if new => self.create(volume, root),
            (2, _) if new => self.mkdir(volume, root),
            (3, Some((name, known))) => self.remove(volume, root, &name, &known),
            (4, Some((name, known))) => self.rename(volume, root, &name, known),
            (_, Some((name, Known::File(_)))) => self.write(volume, &name),
            (_, _) => self.create(volume, root),
        }
    }

    fn new_name(&mut self) -> String {
        self.count += 1;
        format!("writer {} name {}", self.number, self.count)
    }

    /// The server admits the numbers of this client only.
    fn call(volume: &Volume) -> CallId {
        let calls = volume.file_system().machine().call_numbers();
        calls.expect("a server has numbered the client").next()
    }

    /// The name has become `new`; or perhaps, if there is no answer.
    fn note<T>(&mut self, name: String, new: Known, told: Told<T>) -> Option<()> {
        if told.as_ref().is_err_and(|error| is_no_answer(*error)) {
            self.unanswered = Some((name, new));
            return None;
        }
        let _ = told.unwrap_or_else(|error| panic!("{name}: {error}"));
        self.names.insert(name, new);
        Some(())
    }

    fn create(&mut self, volume: &Volume, directory: Handle) -> Option<()> {
        let (name, call) = (self.new_name(), Self::call(volume));
        let (change, existing) = (mode(0o644), Existing::Refuse {});
        let wire = wire(&name);
        let (who, durable) = (Credentials::root(), true);
        let create = Create { who, call, directory, name: wire, existing, change, durable };
        let told: Told<Created> = ask(volume, create);
        let birth = self.count << 8 | self.number;
        self.note(name, Known::File(FileModel::new(birth)), told)
    }

    fn mkdir(&mut self, volume: &Volume, directory: Handle) -> Option<()> {
        let (name, call, who) = (self.new_name(), Self::call(volume), Credentials::root());
        let (node, change, wire) = (NewNode::Directory {}, mode(0o755), wire(&name));
        let told =
            ask(volume, MakeNode { who, call, directory, name: wire, node, change, durable: true });
        self.note(name, Known::Directory, told)
    }

    fn remove(
        &mut self,
        volume: &Volume,
        directory: Handle,
        name: &str,
        known: &Known,
    ) -> Option<()> {
        let (call, who, wire) = (Self::call(volume), Credentials::root(), wire(name));
        let told = if let Known::Directory = known {
            ask(volume, RemoveDirectory { who, call, directory, name: wire, durable: true })
        } else {
            ask(volume, Remove { who, call, directory, name: wire, durable: true })
        };
        self.note(name.to_owned(), Known::Absent, told)?;
        self.forget_absent();
        Some(())
    }

    fn rename(
        &mut self,
        volume: &Volume,
        directory: Handle,
        from: &str,
        known: Known,
    ) -> Option<()> {
        let (to, call, who) = (self.new_name(), Self::call(volume), Credentials::root());
        let (from_name, to_name) = (wire(from), wire(&to));
        let (from_directory, to_directory) = (directory, directory);
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
        // Half done, perhaps: whatever the names are then, it is not this test's affair.
        self.names.remove(from);
        let told: Told<()> = ask(volume, rename);
        if told.as_ref().is_err_and(|error| is_no_answer(*error)) {
            return None;
        }
        told.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        self.names.insert(to, known);
        Some(())
    }

    /// Some blocks, and sometimes a commit.
    fn write(&mut self, volume: &Volume, name: &str) -> Option<()> {
        let file = answered(open(volume, name, OpenOptions::new().write(true)), name)?;
        for _ in 0..=self.rng.below(4) {
            let block = self.rng.below(BLOCKS);
            self.write_block(&file, name, block)?;
        }
        if self.rng.chance(2, 3) {
            answered(file.sync(), name)?;
            self.file(name).commit();
        }
        Some(())
    }

    fn write_block(&mut self, file: &BlockingFile, name: &str, block: u64) -> Option<()> {
        self.count += 1;
        let version = self.count;
        let model = self.file(name);
        let bytes = model.bytes(block, version);
        model.write(block, version);
        let offset = block * bytes.len() as u64;
        answered(file.write_at(offset, bytes), name)
    }

    fn file(&mut self, name: &str) -> &mut FileModel {
        match self.names.get_mut(name) {
            Some(Known::File(model)) => model,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn forget_absent(&mut self) {
        self.names.retain(|_, known| !matches!(known, Known::Absent));
    }

    /// After `round` crashes all names are what they were acknowledged to be.
    pub(crate) fn check(&mut self, volume: &Volume, round: usize) {
        if let Some((name, possible)) = self.unanswered.take() {
            let known = self.names.get(&name).cloned().unwrap_or(Known::Absent);
            let (as_before, done) = (flaw(volume, &name, &known), flaw(volume, &name, &possible));
            match (as_before, done) {
                (_, None) => self.names.insert(name, possible),
                (None, _) => self.names.insert(name, known),
                (Some(before), Some(done)) => {
                    panic!("after crash {round}, {name}: {before}, and {done}")
                }
            };
            self.forget_absent();
        }
        for (name, known) in &mut self.names {
            if let Some(flaw) = flaw(volume, name, known) {
                panic!("after crash {round}, {name}: {flaw}");
            }
            if let Known::File(model) = known {
                model.crashed(&read(volume, name).unwrap());
            }
        }
    }
}

/// How what has this name is not as it is known.
fn flaw(volume: &Volume, name: &str, known: &Known) -> Option<String> {
    let found = match volume.symlink_metadata(path(name)) {
        Ok(attributes) => attributes,
        Err(error) if error.cause.is_not_found() => {
            return (!matches!(known, Known::Absent)).then(|| "it is gone".into());
        }
        Err(error) => return Some(error.to_string()),
    };
    match known {
        Known::Absent => Some("it is there again".into()),
        Known::Directory => {
            (found.kind != Kind::Directory {}).then(|| format!("it is {:?}", found.kind))
        }
        Known::File(_) if found.kind != (Kind::File {}) => Some(format!("it is {:?}", found.kind)),
        Known::File(model) => match read(volume, name) {
            Ok(bytes) => model.flaw(&bytes),
            Err(error) => Some(error.to_string()),
        },
    }
}

fn read(volume: &Volume, name: &str) -> Result<Vec<u8>, Error> {
    let file = open(volume, name, OpenOptions::new().read(true))?;
    let length = file.metadata()?.size as usize;
    Ok(file.read_bytes_at(0, length)?.concat())
}

fn open(volume: &Volume, name: &str, options: OpenOptions) -> Result<BlockingFile, Error> {
    volume.open(path(name), options)
}

fn path(name: &str) -> String {
    format!("/{name}")
}

fn wire(name: &str) -> Name {
    Name::new(name.as_bytes().to_vec()).unwrap()
}

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

fn ask<C>(volume: &Volume, call: C) -> Told<C::Reply>
where
    C: runtime::Call<Protocol = fileio::protocol::FileIo> + Clone,
{
    block_on(fileio::client::ask(volume.file_system().machine(), call))
}

fn answered<T>(told: Result<T, Error>, name: &str) -> Option<T> {
    match told {
        Ok(value) => Some(value),
        Err(error) => match error.cause {
            client::Cause::FileIo(cause) if is_no_answer(cause) => None,
            _ => panic!("{name}: {error}"),
        },
    }
}

/// The server has gone: what was asked may have been done or not.
fn is_no_answer(error: fileio::protocol::Error) -> bool {
    use runtime::Undelivered::{Gone, Lost, TimedOut, Unreachable};
    let fileio::protocol::Error::Undelivered { why } = error else { return false };
    matches!(why, Gone | Lost | TimedOut | Unreachable)
}
