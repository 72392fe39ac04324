//! Opening and closing files, and the leases that keep them open.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use meta::attributes::access;
use meta::protocol::{self as metadata, EndGrace, GraceBelow};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::base::MetadataAccess;
use super::commit::FileCommits;
use super::errors::warn_of_retry;
use super::hand_over::FilesHandover;
use super::leases::LeaseTable;
use crate::protocol::{CallId, CloseHandle, Error, Handle, Kind, OpenHandle, OpenedFile, Renew};

/// The interval at which expired leases are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// The files of one node that clients have open.
pub(super) struct OpenFiles {
    pub(super) base: MetadataAccess,
    commits: Rc<FileCommits>,
    pub(super) leases: LeaseTable,
    /// A file is opened or closed by one request at a time.
    opening: KeyedLock<u64>,
    /// The task that expires leases is running.
    is_expiring: Cell<bool>,
}

impl OpenFiles {
    pub(super) fn new(base: MetadataAccess, commits: Rc<FileCommits>) -> Self {
        let (opening, is_expiring) = (KeyedLock::default(), Cell::new(false));
        Self { base, commits, leases: LeaseTable::default(), opening, is_expiring }
    }

    pub(super) async fn open_handle(
        self: &Rc<Self>,
        request: OpenHandle,
    ) -> Result<OpenedFile, Error> {
        let OpenHandle { who, call, file, access } = request;
        let lease = self.lease_of(call.client)?;
        let _alone = self.opening.exclusive(file.ino).await;
        if self.leases.has_too_many_files() {
            return Err(Undelivered::Busy.into());
        }
        let Handle { ino, generation } = file;
        let inode = self.base.meta_here(metadata::OpenHandle { ino, generation }).await?;
        let attributes = inode.attributes;
        // To list it: who may search a directory may not.
        let lists = attributes.kind == (Kind::Directory {}) && access == access::READ;
        if attributes.kind != (Kind::File {}) && !lists {
            return Ok(OpenedFile { attributes, lease: 0 });
        }
        // Before the open is noted: it may be a second one of this client.
        let has_room = access == 0 || self.base.rights.has_room(file, &who, call.client);
        let noted = if !attributes.permits(&who, access) {
            Err(Error::AccessDenied {})
        } else if !has_room || !self.leases.note(call, lease, ino) {
            Err(Undelivered::Busy.into())
        } else {
            if access != 0 {
                self.base.rights.grant(file, &who, call.client, access);
            }
            Ok(OpenedFile { attributes, lease })
        };
        if noted.is_err() {
            self.close_unless_open(ino).await?;
        }
        noted
    }

    /// The lease of a client, which is added if it is new.
    fn lease_of(self: &Rc<Self>, client: u64) -> Result<u64, Error> {
        if let Some(lease) = self.leases.renewed(client, self.base.context.now()) {
            return Ok(lease);
        }
        if !self.leases.has_room() {
            return Err(Undelivered::Busy.into());
        }
        let lease = self.base.context.random() | 1;
        self.leases.add(client, lease, self.base.context.now());
        self.expire_leases_later();
        Ok(lease)
    }

    pub(super) async fn close_handle(&self, request: CloseHandle) -> Result<(), Error> {
        let CloseHandle { call, file } = request;
        let _alone = self.opening.exclusive(file.ino).await;
        if self.close_for(call, file.ino) {
            self.close_unless_open(file.ino).await?;
        }
        Ok(())
    }

    /// Closes a file for the client of `call`, unless it has opened it again since.
    fn close_for(&self, call: CallId, ino: u64) -> bool {
        let is_closed = self.leases.take(call, ino);
        if is_closed {
            self.leases.leave(ino);
            self.base.rights.end(ino, call.client);
        }
        is_closed
    }

    /// The caller keeps others from opening the file.
    async fn close_unless_open(&self, ino: u64) -> Result<(), Error> {
        if !self.leases.is_held(ino) && self.base.meta_here(metadata::CloseHandle { ino }).await? {
            self.commits.trim_later(ino);
        }
        Ok(())
    }

    /// Does the client still have this lease?
    pub(super) fn knows_lease(&self, client: u64, lease: u64) -> bool {
        self.leases.knows(client, lease)
    }

    pub(super) fn renew(&self, request: &Renew) -> bool {
        let &Renew { client, lease } = request;
        let is_known = self.knows_lease(client, lease);
        if is_known {
            self.leases.renewed(client, self.base.context.now());
        }
        is_known
    }

    /// Expires leases in the background, as long as there are any.
    fn expire_leases_later(self: &Rc<Self>) {
        if self.is_expiring.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            while !me.leases.is_empty() {
                me.base.context.sleep(EXPIRY_INTERVAL).await;
                let now = me.base.context.now();
                for client in me.leases.over(now) {
                    me.forget(client).await;
                }
            }
            me.is_expiring.set(false);
        });
    }

    /// Forgets a client and closes its files, unless it has renewed its lease.
    async fn forget(&self, client: u64) {
        let gone = self.leases.remove_over(client, self.base.context.now());
        let files: Vec<u64> = gone.into_iter().flat_map(|gone| gone.files.into_keys()).collect();
        for &ino in &files {
            // At once: the client may return and lock again while its files are closed.
            self.leases.release_locks(ino, client);
        }
        for ino in files {
            let _alone = self.opening.exclusive(ino).await;
            self.leases.leave(ino);
            if !self.leases.has_open(client, ino) {
                self.base.rights.end(ino, client);
            }
            if let Err(error) = self.close_unless_open(ino).await {
                // It is marked in the store and retried now and then.
                warn_of_retry(error, "an unreferenced file could not be removed");
            }
        }
    }

    /// What the successor of this node needs.
    pub(super) fn hand_over(&self) -> FilesHandover {
        let (rights, delegations) = (self.base.rights.handed(), self.base.delegations.handed());
        let now = self.base.context.now();
        let delay_left_ms = self.base.restart_delay.left(now).as_millis() as u64;
        FilesHandover { rights, delegations, delay_left_ms, ..self.leases.handed(now) }
    }

    /// Continues with what the predecessor of this node had.
    pub(super) fn resume(self: &Rc<Self>, mut predecessor: FilesHandover) {
        let delegations = std::mem::take(&mut predecessor.delegations);
        let now = self.base.context.now();
        self.base.delegations.resume(delegations, now);
        let delay_left = Duration::from_millis(predecessor.delay_left_ms);
        self.base.restart_delay.resume(delay_left, now);
        for right in &predecessor.rights {
            self.base.rights.resume(right);
        }
        self.leases.resume(predecessor, now);
        self.expire_leases_later();
    }

    /// After a start: waits until clients have reopened their files. Until then every file that
    /// existed before outlives its last name.
    pub(super) async fn wait_for_grace_end(&self) {
        // If the metadata does not answer, the grace period applies to all files.
        let young_from = self.base.meta_here(GraceBelow {}).await.unwrap_or(u64::MAX);
        let grace = self.leases.begin_grace(young_from, self.base.context.now());
        if young_from > 0 {
            self.base.context.sleep(grace).await;
        }
        self.leases.end_grace();
        self.remove_unreferenced().await;
    }

    /// Removes files without a name that no client has open, once the grace period is over: mostly
    /// those that could not be removed at the last close.
    pub(super) async fn remove_unreferenced(&self) {
        if self.leases.is_in_grace() {
            return;
        }
        match self.base.meta_here(EndGrace {}).await {
            Ok(gone) => gone.into_iter().for_each(|ino| self.commits.trim_later(ino)),
            Err(error) => warn_of_retry(error, "unreferenced files could not be removed"),
        }
    }
}
