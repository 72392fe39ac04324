//! A volume to throw away, on the disk that also holds the build.

use std::path::{Path, PathBuf};

use client::Credentials;
use client::blocking::Volume;
use tempfile::TempDir;
use volume::{self, CheckOptions, CheckResult, FormatOptions, RunOptions, RunningVolume};

/// Disk nodes of each volume that is measured, and disks of each: as in the demo.
const DISK_NODES: u32 = 2;
const DISKS_PER_NODE: u32 = 2;

/// How large a volume is, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct BenchVolumeShape {
    /// Bytes of each of the disk files, which are sparse at first.
    pub disk_bytes: u64,
    /// Bytes of cached stripes.
    pub cache_bytes: usize,
    /// Threads that host nodes; 0 for one per core.
    pub threads: usize,
    /// Whether the memory of the cache is found before anything is measured.
    pub prefault: bool,
}

/// A directory with a volume in it. Both are removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    options: RunOptions,
    /// None after a crash. Ends before its directory goes.
    running: Option<RunningVolume>,
    directory: TempDir,
}

impl Scratch {
    /// Makes and opens a volume under `parent`, which should be on a real disk.
    pub fn new(parent: impl AsRef<Path>, shape: BenchVolumeShape) -> Self {
        let directory = tempfile::tempdir_in(parent).expect("the target directory takes files");
        let format = FormatOptions {
            disk_nodes: DISK_NODES,
            disks_per_node: DISKS_PER_NODE,
            disk_bytes: shape.disk_bytes,
            ..FormatOptions::default()
        };
        volume::format(&directory.path().join("volume"), &format).expect("the shape is possible");
        let BenchVolumeShape { threads, cache_bytes, prefault, .. } = shape;
        let options = RunOptions { threads, cache_bytes, prefault, ..RunOptions::default() };
        let mut scratch = Self { options, running: None, directory };
        scratch.reopen();
        scratch
    }

    /// Ends the volume in good order and opens it again: nothing is cached then.
    pub fn reopen(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop().expect("everything can be made durable");
        }
        self.open();
    }

    /// Ends the volume as a kill of its process does.
    pub fn crash(&mut self) {
        drop(self.running.take());
    }

    /// Opens the volume after a [`crash`](Self::crash).
    pub fn open(&mut self) {
        let opened = volume::open(&self.volume_directory(), &self.options);
        self.running = Some(opened.expect("the volume was just made"));
    }

    /// Checks the volume after a [`crash`](Self::crash).
    pub fn check(&self, options: &CheckOptions) -> CheckResult {
        volume::check(&self.volume_directory(), options).expect("a volume that is not served")
    }

    /// The volume's machine.
    pub fn running(&self) -> &RunningVolume {
        self.running.as_ref().expect("it was opened again after a crash")
    }

    /// The volume, for ordinary threads.
    pub fn volume(&self) -> Volume {
        Volume::new(self.running().client_handle(), Credentials::root())
    }

    /// A directory of the host beside the volume.
    pub fn host_directory(&self) -> PathBuf {
        let host = self.directory.path().join("host");
        std::fs::create_dir_all(&host).expect("the target directory takes files");
        host
    }

    /// The volume's disk files.
    pub fn disk_files(&self) -> Vec<PathBuf> {
        let disks = self.volume_directory().join("disks");
        let entries = std::fs::read_dir(disks).expect("a volume has disks");
        entries.map(|entry| entry.expect("it can be listed").path()).collect()
    }

    fn volume_directory(&self) -> PathBuf {
        self.directory.path().join("volume")
    }
}
