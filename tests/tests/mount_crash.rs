//! The process that has mounted a volume is killed under load, again and again: what programs had
//! synced is there afterwards.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

#[allow(dead_code, reason = "names of other kinds are tested without a mount")]
#[path = "crash/model.rs"]
mod model;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use model::{BLOCK_BYTES, BLOCKS, FileModel};
use runtime::seed::{Rng, with_seed};
use tests::Site;
use tests::mounted::{Mounted, may_mount};

const WRITERS: u64 = 4;
const KILLS: usize = 10;
/// Time from the start of the writers to the kill of the process, at most; in milliseconds.
const KILL_AFTER_MS: u64 = 700;
/// Names of a writer that are in use at a time.
const NAMES: usize = 6;

#[test]
fn what_programs_have_synced_survives_ten_kills() {
    if !may_mount() {
        return;
    }
    with_seed(|rng| {
        let site = Site::formatted(1024, 16);
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        for round in 0..KILLS {
            let mounted = Mounted::start(&site, &[]);
            check(&mut writers, &mounted, round);
            let pause = Duration::from_millis(10 + rng.below(KILL_AFTER_MS));
            let root = mounted.path("");
            thread::scope(|scope| {
                for writer in &mut writers {
                    let root = root.clone();
                    scope.spawn(move || writer.work(&root));
                }
                thread::sleep(pause);
                mounted.kill();
            });
        }
        let mounted = Mounted::start(&site, &[]);
        check(&mut writers, &mounted, KILLS);
        mounted.unmount();
        let synced: u64 = writers.iter().map(|writer| writer.synced).sum();
        assert!(synced > 50, "{synced} operations that were made durable show little");
    });
}

fn check(writers: &mut [Writer], mounted: &Mounted, crashes: usize) {
    for writer in writers {
        writer.check(mounted, crashes);
    }
}

/// A program that works on files of its own and remembers what was made durable.
#[derive(Debug)]
struct Writer {
    number: u64,
    rng: Rng,
    /// Files whose names are durable. One whose name was about to be changed is not among them.
    files: BTreeMap<String, FileModel>,
    /// For names, births and versions that were never used before.
    count: u64,
    synced: u64,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Self {
        Self { number, rng: Rng::new(seed), files: BTreeMap::new(), count: 0, synced: 0 }
    }

    /// Works until the mount is dead.
    fn work(&mut self, root: &Path) {
        loop {
            match self.step(root) {
                Ok(()) => {}
                Err(error) if is_dead(&error) => return,
                Err(error) => panic!("writer {}: {error}", self.number),
            }
        }
    }

    fn step(&mut self, root: &Path) -> io::Result<()> {
        let chosen = self.rng.index(self.files.len().max(1));
        let chosen = self.files.keys().nth(chosen).cloned();
        match (self.rng.below(10), chosen) {
            (0..2, _) if self.files.len() < NAMES => self.create(root),
            (2, Some(name)) => self.rename(root, &name),
            (3, Some(name)) => self.replace(root, &name),
            (_, Some(name)) => self.write(root, &name),
            (_, None) => self.create(root),
        }
    }

    fn new_name(&mut self) -> String {
        self.count += 1;
        format!("writer {} name {}", self.number, self.count)
    }

    /// A file is made, and its sync makes the name durable.
    fn create(&mut self, root: &Path) -> io::Result<()> {
        let name = self.new_name();
        let birth = self.count << 8 | self.number;
        File::create_new(root.join(&name))?.sync_all()?;
        self.files.insert(name, FileModel::new(birth));
        self.synced += 1;
        Ok(())
    }

    /// A rename is durable once its directory was synced.
    fn rename(&mut self, root: &Path, name: &str) -> io::Result<()> {
        let new = self.new_name();
        // Done or not, perhaps, until the directory was synced.
        let Some(model) = self.files.remove(name) else { return Ok(()) };
        fs::rename(root.join(name), root.join(&new))?;
        File::open(root)?.sync_all()?;
        self.files.insert(new, model);
        self.synced += 1;
        Ok(())
    }

    /// As editors do: a new file, synced, takes the place of the old one.
    fn replace(&mut self, root: &Path, name: &str) -> io::Result<()> {
        let new = self.new_name();
        let mut model = FileModel::new(self.count << 8 | self.number);
        let bytes = model.bytes(0, self.count);
        model.write(0, self.count);
        let file = File::create_new(root.join(&new))?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        model.commit();
        let old = self.files.remove(name);
        fs::rename(root.join(&new), root.join(name))?;
        File::open(root)?.sync_all()?;
        self.files.insert(name.to_owned(), model);
        self.synced += u64::from(old.is_some());
        Ok(())
    }

    /// Some blocks, and mostly a sync.
    fn write(&mut self, root: &Path, name: &str) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(root.join(name))?;
        for _ in 0..=self.rng.below(4) {
            self.count += 1;
            let (block, version) = (self.rng.below(BLOCKS), self.count);
            let Some(model) = self.files.get_mut(name) else { return Ok(()) };
            let bytes = model.bytes(block, version);
            model.write(block, version);
            file.write_all_at(&bytes, block * BLOCK_BYTES as u64)?;
        }
        if self.rng.chance(2, 3) {
            file.sync_data()?;
            if let Some(model) = self.files.get_mut(name) {
                model.commit();
            }
            self.synced += 1;
        }
        Ok(())
    }

    /// After each of these crashes all files hold what was synced.
    fn check(&mut self, mounted: &Mounted, crashes: usize) {
        for (name, model) in &mut self.files {
            let bytes = fs::read(mounted.path(name))
                .unwrap_or_else(|error| panic!("after crash {crashes}, {name}: {error}"));
            if let Some(flaw) = model.flaw(&bytes) {
                panic!("after crash {crashes}, {name}: {flaw}");
            }
            model.crashed(&bytes);
        }
    }
}

/// The process that has mounted the volume is gone.
fn is_dead(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    const ENODEV: i32 = 19;
    use io::ErrorKind::{ConnectionAborted, NotConnected};
    matches!(error.kind(), ConnectionAborted | NotConnected)
        || matches!(error.raw_os_error(), Some(EIO | ENODEV))
}
