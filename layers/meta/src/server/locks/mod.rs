//! Locks that one node holds at another (ADR 57): of names, of directories (shared to change names
//! in them, exclusive to remove them), and of renames of directories.

pub(super) mod directories;
pub(super) mod lock_name;
pub(super) mod names;
pub(super) mod orphans;
pub(super) mod owner;
pub(super) mod renames;

use std::rc::Rc;

use self::directories::DirectoryLocks;
use self::lock_name::NameLocking;
use self::names::NameLocks;
use self::orphans::OrphanedLocks;
use self::owner::LockValidity;
use self::renames::RenameLock;
use crate::server::base::NodeBase;

/// The locks of one node.
pub(super) struct LockManager {
    pub(super) names: Rc<NameLocks>,
    pub(super) name_requests: NameLocking,
    pub(super) directories: Rc<DirectoryLocks>,
    pub(super) renames: Rc<RenameLock>,
    pub(super) orphans: Rc<OrphanedLocks>,
}

impl LockManager {
    pub(crate) fn new(base: &Rc<NodeBase>) -> Self {
        let validity = Rc::<LockValidity>::default();
        let names = Rc::new(NameLocks::new(validity.clone()));
        let directories = Rc::new(DirectoryLocks::new(base, validity.clone()));
        let renames = Rc::new(RenameLock::new(validity.clone()));
        let orphans =
            OrphanedLocks::new(base, validity, names.clone(), directories.clone(), renames.clone());
        let name_requests = NameLocking::new(base, names.clone());
        Self { names, name_requests, directories, renames, orphans: Rc::new(orphans) }
    }
}
