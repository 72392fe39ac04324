//! What is open in this process: mounts, streams and descriptors.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use parking_lot::lock_api::RawMutex as _;

use crate::descriptor::Descriptor;
use crate::failure::Failure;
use crate::fork;
use crate::mount::Mount;
use crate::stream::FileStream;

/// Descriptors in one process, at most.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 20;

struct Tables {
    /// By the address that C knows.
    mounts: BTreeMap<usize, Arc<Mount>>,
    /// By the address that C knows.
    streams: BTreeMap<usize, Arc<FileStream>>,
    /// By number; the lowest free one is the next, as POSIX has it.
    descriptors: Vec<Option<Arc<Descriptor>>>,
}

static TABLES: Mutex<Tables> = Mutex::new(Tables {
    mounts: BTreeMap::new(),
    streams: BTreeMap::new(),
    descriptors: Vec::new(),
});

/// What C holds: the address of what an entry shares.
fn address_of<T>(entry: &Arc<T>) -> usize {
    Arc::as_ptr(entry).addr()
}

/// Enters a mount; the pointer is C's until [`remove_mount`].
pub(crate) fn add_mount(mount: Mount) -> *mut Mount {
    let mount = Arc::new(mount);
    let pointer = Arc::as_ptr(&mount).cast_mut();
    TABLES.lock().mounts.insert(address_of(&mount), mount);
    pointer
}

/// The mount at this address.
pub(crate) fn mount(pointer: *const Mount) -> Result<Arc<Mount>, Failure> {
    let found = TABLES.lock().mounts.get(&pointer.addr()).cloned();
    let mount = found.ok_or_else(|| {
        Failure::new(libc::EBADF, "this is no mounted volume; mount it with mdfs_mount")
    })?;
    fork::check(mount.generation)?;
    Ok(mount)
}

/// Takes a mount out, if nothing on it is open any more.
pub(crate) fn remove_mount(pointer: *const Mount) -> Result<Arc<Mount>, Failure> {
    let mount = mount(pointer)?;
    let mut tables = TABLES.lock();
    // The table's, and the one here.
    if Arc::strong_count(&mount) > 2 {
        return Err(Failure::new(
            libc::EBUSY,
            "cannot unmount the volume: files or directories on it are open; close them first",
        ));
    }
    tables.mounts.remove(&pointer.addr());
    Ok(mount)
}

/// Enters a stream; the pointer is C's until [`remove_stream`].
pub(crate) fn add_stream(stream: FileStream) -> *mut FileStream {
    let stream = Arc::new(stream);
    let pointer = Arc::as_ptr(&stream).cast_mut();
    TABLES.lock().streams.insert(address_of(&stream), stream);
    pointer
}

/// Takes a stream out.
pub(crate) fn remove_stream(pointer: *const FileStream) -> Option<Arc<FileStream>> {
    TABLES.lock().streams.remove(&pointer.addr())
}

/// All streams of this process itself.
pub(crate) fn streams() -> Vec<Arc<FileStream>> {
    let tables = TABLES.lock();
    tables
        .streams
        .values()
        .filter(|stream| fork::check(stream.generation()).is_ok())
        .cloned()
        .collect()
}

/// Enters a descriptor under the lowest free number.
pub(crate) fn add_descriptor(descriptor: Arc<Descriptor>) -> Result<c_int, Failure> {
    let table = &mut TABLES.lock().descriptors;
    let free = table.iter().position(Option::is_none).unwrap_or(table.len());
    if free == DESCRIPTORS_MAX {
        let text = format!("{DESCRIPTORS_MAX} descriptors are open; close some");
        return Err(Failure::new(libc::EMFILE, text));
    }
    if free == table.len() {
        table.push(None);
    }
    table[free] = Some(descriptor);
    c_int::try_from(free).map_err(|_| no_descriptor(c_int::MAX))
}

fn slot(
    table: &mut [Option<Arc<Descriptor>>],
    number: c_int,
) -> Option<&mut Option<Arc<Descriptor>>> {
    table.get_mut(usize::try_from(number).ok()?)
}

fn no_descriptor(number: c_int) -> Failure {
    Failure::new(libc::EBADF, format!("{number} is no open descriptor; get one with mdfs_open"))
}

/// The descriptor with this number.
pub(crate) fn descriptor(number: c_int) -> Result<Arc<Descriptor>, Failure> {
    let found = slot(&mut TABLES.lock().descriptors, number).and_then(|slot| slot.clone());
    let descriptor = found.ok_or_else(|| no_descriptor(number))?;
    fork::check(descriptor.mount().generation)?;
    Ok(descriptor)
}

/// Takes a descriptor out.
pub(crate) fn remove_descriptor(number: c_int) -> Result<Arc<Descriptor>, Failure> {
    let found = slot(&mut TABLES.lock().descriptors, number).and_then(Option::take);
    found.ok_or_else(|| no_descriptor(number))
}

/// Keeps all others out of the tables, until [`let_go`] by the same thread.
pub(crate) fn hold() {
    // SAFETY: the lock is given back by `let_go`.
    unsafe { TABLES.raw() }.lock();
}

/// See [`hold`].
pub(crate) fn let_go() {
    // SAFETY: called only after `hold`, in the parent by its thread, in the child by its copy.
    unsafe { TABLES.force_unlock() };
}

/// Flushes all streams and makes volumes that live in this process durable: it is about to end.
pub(crate) fn leave() {
    for stream in streams() {
        if let Err(failure) = stream.flush() {
            eprintln!("libmdfs: the last bytes of a stream are lost: {}", failure.text);
        }
    }
    let mounts: Vec<Arc<Mount>> = TABLES.lock().mounts.values().cloned().collect();
    for mount in mounts.iter().filter(|mount| fork::check(mount.generation).is_ok()) {
        if let Err(error) = mount.volume.finish() {
            eprintln!("libmdfs: the last data of a volume are lost: {error}");
        }
    }
}
