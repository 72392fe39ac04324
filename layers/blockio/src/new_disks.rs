//! Disks that come to a disk node while it is served.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::Context;
use runtime::disk::{Disk, GOING_DOWN};
use runtime::sync::{KeyGuard, KeyedLock};

use crate::disk_set::DiskName;
use crate::format::format_as;
use crate::open::{DiskError, ExpectedDisk, UnprovenCopy, check_disk, identify, update_disk};
use crate::protocol::Error;
use crate::superblock::{Decided, VERSION};
use crate::volume_map::VolumeMap;

/// Where a disk is.
type PathOf = Box<dyn Fn(DiskName) -> String>;

/// What a disk node does with new disks, and with the superblocks of all.
pub(crate) struct NewDisks {
    context: Context,
    path_of: RefCell<Option<PathOf>>,
    /// One record at a time is followed.
    following: KeyedLock<()>,
    /// Superblocks of disks that may not be as they are read.
    unproven: RefCell<BTreeMap<DiskName, Rc<UnprovenCopy>>>,
}

impl NewDisks {
    pub(crate) fn new(context: Context) -> Self {
        let (path_of, following) = (RefCell::default(), KeyedLock::default());
        Self { context, path_of, following, unproven: RefCell::default() }
    }

    pub(crate) fn find_by(&self, path_of: impl Fn(DiskName) -> String + 'static) {
        *self.path_of.borrow_mut() = Some(Box::new(path_of));
    }

    pub(crate) async fn following(&self) -> KeyGuard<()> {
        self.following.exclusive(()).await
    }

    async fn device(&self, name: DiskName) -> Result<Rc<dyn Disk>, Error> {
        let path = self.path_of.borrow().as_ref().map(|path_of| path_of(name));
        let path = path.ok_or_else(|| not_ready(name))?;
        let opened = self.context.open_disk(&path).await;
        opened.map_err(|error| refused(name, &DiskError::Io(error)))
    }

    /// Formats a new disk of `map`.
    pub(crate) async fn prepare(&self, map: &VolumeMap, name: DiskName) -> Result<(), Error> {
        let device = self.device(name).await?;
        if let Ok(found) = identify(&*device).await
            && found.volume() == map.volume()
            && found.decided.is_decided
        {
            tracing::error!(
                %name,
                "the disk is {} of this volume; if it is retired, clear its first and last \
                 MiB before it is added again",
                found.disk
            );
            return Err(not_ready(name));
        }
        let id = u128::from(self.context.random()) << 64 | u128::from(self.context.random());
        let decided = Decided { is_decided: false, ..map.decided() };
        let formatted =
            format_as(&*device, (map, decided), name, id, self.context.unix_time()).await;
        formatted.map(drop).map_err(|error| refused(name, &error))
    }

    /// Opens a disk that was [prepared](Self::prepare) for this record, or for one before.
    pub(crate) async fn open(
        &self,
        map: &VolumeMap,
        disk: DiskName,
    ) -> Result<Rc<dyn Disk>, Error> {
        let device = self.device(disk).await?;
        let (map, epoch) = (map.clone(), self.context.epoch());
        let expected = ExpectedDisk { map, disk, epoch, served: runtime::Epoch(0) };
        let taken = match check_disk(&*device, &expected).await {
            Ok(found) => found.take_over(&*device, &expected.map, epoch).await,
            Err(error) => Err(error),
        };
        taken.map_err(|error| refused(disk, &error))?;
        Ok(device)
    }

    /// Makes durable on a disk what `map` has decided.
    pub(crate) async fn update(
        &self,
        device: &dyn Disk,
        map: &VolumeMap,
        name: DiskName,
    ) -> Result<(), Error> {
        let unproven = self.unproven.borrow_mut().entry(name).or_default().clone();
        let updated = update_disk(device, map, &unproven).await;
        updated.map(drop).map_err(|error| refused(name, &error))
    }

    /// Can the disk know what is decided about others?
    pub(crate) async fn check_version(
        &self,
        device: &dyn Disk,
        name: DiskName,
    ) -> Result<(), Error> {
        match identify(device).await {
            Ok(superblock) if superblock.version < VERSION => {
                tracing::error!(
                    %name,
                    "the disk has an old format, which knows only of disks that were there from \
                     the beginning: stop the server and run `mdfs upgrade`"
                );
                Err(not_ready(name))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(refused(name, &error)),
        }
    }
}

fn not_ready(name: DiskName) -> Error {
    Error::NotReady { disk_node: name.disk_node, disk: name.disk }
}

fn refused(name: DiskName, why: &DiskError) -> Error {
    if matches!(why, DiskError::Io(error) if error.kind() == GOING_DOWN) {
        tracing::debug!(%name, %why, "the disk is not made ready any more");
    } else {
        tracing::error!(%name, %why, "the disk cannot be made ready");
    }
    not_ready(name)
}
