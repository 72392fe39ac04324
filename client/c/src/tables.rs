//! What is open in this process: mounts, streams and descriptors.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use parking_lot::lock_api::RawMutex as _;

use crate::failure::CApiFailure;
use crate::fork;

/// Descriptors in one process, at most.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 20;

/// What C has a pointer or number of.
pub(crate) trait OpenObject: Any + Send + Sync {
    /// The generation of the process that opened it.
    fn generation(&self) -> u64;

    /// Called when the process ends: for all streams, then for all mounts.
    fn at_exit(&self, stage: ExitStage);
}

/// What happens at the end of the process, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitStage {
    FlushStreams,
    FinishVolumes,
}

struct HandleTables {
    /// By the address that C knows.
    objects: BTreeMap<usize, Arc<dyn OpenObject>>,
    /// By number; the lowest free one is the next, as POSIX has it.
    descriptors: Vec<Option<Arc<dyn OpenObject>>>,
}

static TABLES: Mutex<HandleTables> =
    Mutex::new(HandleTables { objects: BTreeMap::new(), descriptors: Vec::new() });

/// Adds an object; the pointer is C's until [`remove`].
pub(crate) fn add<T: OpenObject>(object: T) -> *mut T {
    let object = Arc::new(object);
    let pointer = Arc::as_ptr(&object).cast_mut();
    TABLES.lock().objects.insert(pointer.addr(), object);
    pointer
}

/// The object at this address, of this or of an earlier generation.
pub(crate) fn get<T: OpenObject>(pointer: *const T) -> Option<Arc<T>> {
    let found = TABLES.lock().objects.get(&pointer.addr()).cloned();
    found.and_then(downcast)
}

/// Removes an object.
pub(crate) fn remove<T: OpenObject>(pointer: *const T) -> Option<Arc<T>> {
    let object = get(pointer)?;
    TABLES.lock().objects.remove(&pointer.addr());
    Some(object)
}

/// Removes an object that only the table and the caller refer to; false if there are others.
pub(crate) fn remove_unused<T: OpenObject>(object: &Arc<T>) -> bool {
    let mut tables = TABLES.lock();
    let unused = Arc::strong_count(object) <= 2;
    if unused {
        tables.objects.remove(&Arc::as_ptr(object).addr());
    }
    unused
}

/// All objects of type `T` that this process itself has opened.
pub(crate) fn all<T: OpenObject>() -> Vec<Arc<T>> {
    own_objects().into_iter().filter_map(downcast).collect()
}

fn own_objects() -> Vec<Arc<dyn OpenObject>> {
    let tables = TABLES.lock();
    let own = tables.objects.values().filter(|object| fork::check(object.generation()).is_ok());
    own.cloned().collect()
}

fn downcast<T: OpenObject>(object: Arc<dyn OpenObject>) -> Option<Arc<T>> {
    let object: Arc<dyn Any + Send + Sync> = object;
    object.downcast().ok()
}

/// Adds a descriptor under the lowest free number.
pub(crate) fn add_descriptor(descriptor: Arc<dyn OpenObject>) -> Result<c_int, CApiFailure> {
    let table = &mut TABLES.lock().descriptors;
    let free = table.iter().position(Option::is_none).unwrap_or(table.len());
    if free == DESCRIPTORS_MAX {
        let text = format!("{DESCRIPTORS_MAX} descriptors are open; close some");
        return Err(CApiFailure::new(libc::EMFILE, text));
    }
    if free == table.len() {
        table.push(None);
    }
    table[free] = Some(descriptor);
    c_int::try_from(free).map_err(|_| no_descriptor(c_int::MAX))
}

fn slot(
    table: &mut [Option<Arc<dyn OpenObject>>],
    number: c_int,
) -> Option<&mut Option<Arc<dyn OpenObject>>> {
    table.get_mut(usize::try_from(number).ok()?)
}

fn no_descriptor(number: c_int) -> CApiFailure {
    CApiFailure::new(libc::EBADF, format!("{number} is no open descriptor; get one with mdfs_open"))
}

/// The descriptor with this number.
pub(crate) fn descriptor<T: OpenObject>(number: c_int) -> Result<Arc<T>, CApiFailure> {
    let found = slot(&mut TABLES.lock().descriptors, number).and_then(|slot| slot.clone());
    let descriptor: Arc<T> = found.and_then(downcast).ok_or_else(|| no_descriptor(number))?;
    fork::check(descriptor.generation())?;
    Ok(descriptor)
}

/// Removes a descriptor.
pub(crate) fn remove_descriptor<T: OpenObject>(number: c_int) -> Result<Arc<T>, CApiFailure> {
    let found = slot(&mut TABLES.lock().descriptors, number).and_then(Option::take);
    found.and_then(downcast).ok_or_else(|| no_descriptor(number))
}

/// Locks the tables until [`unlock`] by the same thread.
pub(crate) fn lock() {
    // SAFETY: `unlock` releases the lock.
    unsafe { TABLES.raw() }.lock();
}

/// See [`lock`].
pub(crate) fn unlock() {
    // SAFETY: called only after `lock`, in the parent by its thread, in the child by its copy.
    unsafe { TABLES.force_unlock() };
}

/// Flushes all streams and makes volumes that live in this process durable: it is about to end.
pub(crate) fn finish_all() {
    for stage in [ExitStage::FlushStreams, ExitStage::FinishVolumes] {
        for object in own_objects() {
            object.at_exit(stage);
        }
    }
}
