//! Names of endpoints in shared memory. Each stands for a file in `/dev/shm` that a killed process
//! leaves behind; a name tells whose it was, so that the next process removes it.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "mdfs-fabric-";
const FOLDER: &str = "/dev/shm";

/// A name that no other endpoint of this host has.
pub(crate) fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{number}", std::process::id())
}

/// Removes what dead processes left behind.
pub(crate) fn sweep() {
    sweep_in(Path::new(FOLDER));
}

fn sweep_in(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let dead = name.to_str().and_then(owner_of).is_some_and(|process| !is_alive(process));
        if dead && let Err(error) = std::fs::remove_file(file.path()) {
            tracing::debug!(?name, %error, "what a dead process left in shared memory stays");
        }
    }
}

fn owner_of(name: &str) -> Option<u32> {
    let process = name.split_once(PREFIX)?.1.split('-').next()?;
    process.parse().ok()
}

fn is_alive(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_processes_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let theirs = format!("{PREFIX}{}-0:0:1", dead.id());
        let names = [theirs.as_str(), &new_name(), "mdfs-fabric-x", "other"];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        sweep_in(folder.path());
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
