//! Inodes, and who may do what with them.

use std::collections::BTreeMap;

use super::content::{PAGE, SparseContent};
use super::open_files::ModelOpenFiles;
use crate::protocol::{
    Attributes, Change, Credentials, Error, FILE_SIZE_MAX, Handle, Kind, Name, ROOT, SetTime,
    Space, Time, XattrName,
};
use meta::attributes::access;

/// `0o1000`: only owners remove entries of such a directory.
pub(super) const STICKY: u32 = 0o1000;
/// `0o2000`: on a directory, new entries get its group.
const SETGID: u32 = 0o2000;
const SETUID: u32 = 0o4000;
const GROUP_EXECUTE: u32 = 0o010;
const MODE_BITS: u32 = 0o7777;

#[derive(Debug)]
pub(super) struct ModelState {
    capacity_bytes: u64,
    /// Bytes of the pages of files.
    pub(super) page_bytes: u64,
    inodes: BTreeMap<u64, ModelInode>,
    /// Numbers to be used again, with their last generation.
    freed: BTreeMap<u64, u64>,
    ino_last: u64,
    pub(super) open_files: ModelOpenFiles,
}

#[derive(Debug)]
pub(super) struct ModelInode {
    /// All but the size and the space, which follow from the body.
    pub(super) fixed: Attributes,
    pub(super) body: InodeBody,
    pub(super) xattrs: BTreeMap<XattrName, Vec<u8>>,
    /// Of the exclusive creation.
    pub(super) verifier: Option<u64>,
    /// What was granted to a user through a client that has it open.
    pub(super) rights: BTreeMap<(u32, u64), u32>,
}

#[derive(Debug)]
pub(super) enum InodeBody {
    File(SparseContent),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Debug)]
pub(super) struct Directory {
    /// The inode above; the root's is itself.
    pub(super) parent: u64,
    pub(super) names: BTreeMap<Name, ModelEntry>,
    pub(super) cookies: BTreeMap<u64, Name>,
    pub(super) cookie_last: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ModelEntry {
    pub(super) cookie: u64,
    pub(super) ino: u64,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        // The first cookies are left to gateways, for `.` and `..`.
        Self { parent, names: BTreeMap::new(), cookies: BTreeMap::new(), cookie_last: 2 }
    }

    pub(super) fn insert(&mut self, name: Name, ino: u64) {
        self.cookie_last += 1;
        self.cookies.insert(self.cookie_last, name.clone());
        self.names.insert(name, ModelEntry { cookie: self.cookie_last, ino });
    }

    pub(super) fn remove(&mut self, name: &Name) {
        if let Some(entry) = self.names.remove(name) {
            self.cookies.remove(&entry.cookie);
        }
    }
}

impl ModelInode {
    pub(super) fn attributes(&self) -> Attributes {
        let (size, used_bytes) = match &self.body {
            InodeBody::File(content) => (content.size(), content.used_bytes()),
            InodeBody::Directory(_) => (PAGE, 0),
            InodeBody::Symlink(target) => (target.len() as u64, 0),
            InodeBody::Special => (0, 0),
        };
        Attributes { size, used_bytes, ..self.fixed }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, InodeBody::Directory(_))
    }

    /// Content and attributes changed.
    pub(super) fn modified(&mut self, now: Time) {
        self.fixed.mtime = now;
        self.fixed.ctime = now;
    }

    /// The content was read: as `relatime`, noted if not noted since the last change, or once a
    /// day.
    pub(super) fn accessed(&mut self, now: Time) {
        const DAY_SECONDS: i64 = 24 * 60 * 60;
        let Attributes { atime, mtime, ctime, .. } = self.fixed;
        if atime <= mtime || atime <= ctime || now.seconds - atime.seconds >= DAY_SECONDS {
            self.fixed.atime = now;
        }
    }

    /// The bits that let others act as the owner do not survive a change by others than root.
    pub(super) fn drop_setid(&mut self, who: &Credentials) {
        if who.uid != 0 {
            self.drop_setid_of_owner();
        }
    }

    /// Nor do they survive a new owner or group, not even one that root gives.
    fn drop_setid_of_owner(&mut self) {
        if self.fixed.kind == (Kind::File {}) {
            self.fixed.mode &= !SETUID;
            if self.fixed.mode & GROUP_EXECUTE != 0 {
                self.fixed.mode &= !SETGID;
            }
        }
    }

    /// The content, of what has one.
    pub(super) fn content(&mut self) -> Result<&mut SparseContent, Error> {
        match &mut self.body {
            InodeBody::File(content) => Ok(content),
            InodeBody::Directory(_) => Err(Error::IsDirectory {}),
            InodeBody::Symlink(_) | InodeBody::Special => Err(Error::Invalid {}),
        }
    }

    pub(super) fn owned_by(&self, who: &Credentials) -> bool {
        who.uid == 0 || who.uid == self.fixed.uid
    }

    /// May `who` read or write the content? See the module's rules.
    pub(super) fn check_transfer(&self, who: &Credentials, wanted: u32) -> Result<(), Error> {
        let permits = |wanted| self.fixed.permits(who, wanted);
        let runs = wanted == access::READ && permits(access::EXECUTE);
        permit(self.owned_by(who) || permits(wanted) || runs || self.is_open_for(who, wanted))
    }

    /// Has the user opened it for that?
    pub(super) fn is_open_for(&self, who: &Credentials, wanted: u32) -> bool {
        let mut rights = self.rights.range((who.uid, 0)..=(who.uid, u64::MAX));
        rights.any(|(_, granted)| {
            let runs = wanted == access::READ && granted & access::EXECUTE != 0;
            granted & wanted == wanted || runs
        })
    }

    /// May `who` change the attributes as `change` says? Nothing is changed.
    pub(super) fn check_change(&self, who: &Credentials, change: &Change) -> Result<(), Error> {
        let owner = self.owned_by(who);
        let set_by_owner = [change.atime, change.mtime]
            .iter()
            .any(|time| matches!(time, Some(SetTime::To { .. })));
        if !owner && (change.mode.is_some() || set_by_owner) {
            return Err(Error::NotPermitted {});
        }
        self.check_new_owner(who, change)?;
        let touched = change.atime.is_some() || change.mtime.is_some();
        if touched && !owner {
            permit(self.fixed.permits(who, access::WRITE))?;
        }
        if let Some(size) = change.size {
            match self.body {
                InodeBody::File(_) => self.check_transfer(who, access::WRITE)?,
                InodeBody::Directory(_) => return Err(Error::IsDirectory {}),
                InodeBody::Symlink(_) | InodeBody::Special => return Err(Error::Invalid {}),
            }
            check_size(size)?;
        }
        Ok(())
    }

    /// Only root gives files away; an owner may choose among the own groups.
    pub(super) fn check_new_owner(&self, who: &Credentials, change: &Change) -> Result<(), Error> {
        let owner = self.owned_by(who);
        let uid = change.uid.is_none_or(|uid| owner && uid == self.fixed.uid);
        let gid =
            change.gid.is_none_or(|gid| owner && (gid == self.fixed.gid || who.in_group(gid)));
        if who.uid == 0 || (uid && gid) { Ok(()) } else { Err(Error::NotPermitted {}) }
    }

    /// Changes what was checked before.
    pub(super) fn apply(&mut self, who: &Credentials, change: &Change, now: Time) {
        if *change == Change::default() {
            return;
        }
        let to = |time: SetTime| match time {
            SetTime::Now {} => now,
            SetTime::To { time } => time,
        };
        self.fixed.ctime = now;
        if change.uid.is_some() || change.gid.is_some() {
            self.fixed.uid = change.uid.unwrap_or(self.fixed.uid);
            self.fixed.gid = change.gid.unwrap_or(self.fixed.gid);
            self.drop_setid_of_owner();
        }
        if let (Some(size), InodeBody::File(content)) = (change.size, &mut self.body) {
            content.set_size(size);
            self.fixed.mtime = now;
            self.drop_setid(who);
        }
        if let Some(mode) = change.mode
            && self.fixed.kind != (Kind::Symlink {})
        {
            self.fixed.mode = mode & MODE_BITS;
            if who.uid != 0 && !who.in_group(self.fixed.gid) {
                self.fixed.mode &= !SETGID;
            }
        }
        self.fixed.atime = change.atime.map_or(self.fixed.atime, to);
        self.fixed.mtime = change.mtime.map_or(self.fixed.mtime, to);
    }
}

impl ModelState {
    pub(super) fn new(capacity_bytes: u64, now: Time) -> Self {
        let fixed = Attributes {
            links: 2,
            mode: 0o755,
            ..attributes_of(ROOT, Kind::Directory {}, &Credentials::root(), now)
        };
        let body = InodeBody::Directory(Directory::new(ROOT.ino));
        let root = ModelInode {
            fixed,
            body,
            xattrs: BTreeMap::new(),
            verifier: None,
            rights: BTreeMap::new(),
        };
        Self {
            capacity_bytes,
            page_bytes: PAGE,
            inodes: BTreeMap::from([(ROOT.ino, root)]),
            freed: BTreeMap::new(),
            ino_last: ROOT.ino,
            open_files: ModelOpenFiles::default(),
        }
    }

    pub(super) fn space(&self) -> Space {
        Space {
            total_bytes: self.capacity_bytes,
            free_bytes: self.free_bytes(),
            available_bytes: self.free_bytes(),
            inodes: self.inodes.len() as u64,
            raw_total_bytes: self.capacity_bytes,
            raw_free_bytes: self.free_bytes(),
        }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let used: u64 = self.inodes.values().map(|inode| inode.attributes().used_bytes).sum();
        self.capacity_bytes.saturating_sub(used)
    }

    /// The inode of a handle.
    pub(super) fn inode(&self, handle: &Handle) -> Result<&ModelInode, Error> {
        let inode = self.inodes.get(&handle.ino);
        inode.filter(|inode| inode.fixed.generation == handle.generation).ok_or(Error::Stale {})
    }

    /// The same, to be changed.
    pub(super) fn inode_mut(&mut self, handle: &Handle) -> Result<&mut ModelInode, Error> {
        self.inode(handle)?;
        self.inodes.get_mut(&handle.ino).ok_or(Error::Stale {})
    }

    /// The inode that an entry names: it exists as long as the entry does.
    pub(super) fn named(&mut self, ino: u64) -> &mut ModelInode {
        self.inodes.get_mut(&ino).expect("an entry names an inode")
    }

    pub(super) fn attributes(&self, handle: &Handle) -> Result<Attributes, Error> {
        self.inode(handle).map(ModelInode::attributes)
    }

    pub(super) fn attributes_of_ino(&self, ino: u64) -> Attributes {
        self.inodes.get(&ino).expect("an entry names an inode").attributes()
    }

    /// The directory of a handle, if it is one.
    pub(super) fn directory(&self, handle: &Handle) -> Result<&Directory, Error> {
        match &self.inode(handle)?.body {
            InodeBody::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory {}),
        }
    }

    /// The same, to be changed.
    pub(super) fn directory_mut(&mut self, handle: &Handle) -> Result<&mut Directory, Error> {
        match &mut self.inode_mut(handle)?.body {
            InodeBody::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory {}),
        }
    }

    /// The directory of a handle, if `who` may search it.
    pub(super) fn searched(&self, who: &Credentials, handle: &Handle) -> Result<&Directory, Error> {
        let directory = self.directory(handle)?;
        permit(self.inode(handle)?.fixed.permits(who, access::EXECUTE))?;
        Ok(directory)
    }

    /// May `who` add entries to the directory?
    pub(super) fn check_add(&self, who: &Credentials, directory: &Handle) -> Result<(), Error> {
        permit(self.inode(directory)?.fixed.permits(who, access::WRITE | access::EXECUTE))
    }

    /// May `who` take the entry of `ino` out of the directory?
    pub(super) fn check_take(
        &self,
        who: &Credentials,
        directory: &Handle,
        ino: u64,
    ) -> Result<(), Error> {
        self.check_add(who, directory)?;
        let directory = self.inode(directory)?;
        let owns = who.uid == self.attributes_of_ino(ino).uid || directory.owned_by(who);
        if directory.fixed.mode & STICKY == 0 || owns {
            Ok(())
        } else {
            Err(Error::NotPermitted {})
        }
    }

    /// Makes an inode with the attributes of `change`, and enters it as `name`. The name is free.
    pub(super) fn make(
        &mut self,
        who: &Credentials,
        (directory, name): (&Handle, &Name),
        (kind, body): (Kind, InodeBody),
        change: &Change,
        now: Time,
    ) -> Result<&mut ModelInode, Error> {
        self.check_add(who, directory)?;
        let handle = self.next_handle();
        let fixed = attributes_of(handle, kind, who, now);
        let mut inode = ModelInode {
            fixed,
            body,
            xattrs: BTreeMap::new(),
            verifier: None,
            rights: BTreeMap::new(),
        };
        let above = self.inode(directory)?.fixed;
        let mut inherited = 0;
        if above.mode & SETGID != 0 {
            inode.fixed.gid = above.gid;
            inherited = if inode.is_directory() { SETGID } else { 0 };
        }
        inode.check_new_owner(who, change)?;
        check_size(change.size.unwrap_or(0))?;
        inode.apply(who, change, now);
        inode.fixed.mode |= inherited;

        self.directory_mut(directory)?.insert(name.clone(), handle.ino);
        let above = self.inode_mut(directory)?;
        above.modified(now);
        above.fixed.links += u32::from(kind == Kind::Directory {});
        self.freed.remove(&handle.ino);
        self.ino_last = self.ino_last.max(handle.ino);
        Ok(self.inodes.entry(handle.ino).or_insert(inode))
    }

    /// One name less; the last one takes the file with it, unless a client holds it.
    pub(super) fn unlink(&mut self, ino: u64, now: Time) {
        let is_open = self.open_files.is_open(ino);
        let inode = self.named(ino);
        inode.fixed.links -= 1;
        inode.fixed.ctime = now;
        if inode.is_directory() || (inode.fixed.links == 0 && !is_open) {
            self.end(ino);
        }
    }

    /// An inode is gone.
    pub(super) fn end(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.remove(&ino) {
            self.open_files.forget(ino);
            self.freed.insert(ino, inode.fixed.generation);
        }
    }

    fn next_handle(&self) -> Handle {
        match self.freed.first_key_value() {
            Some((&ino, &last)) => Handle { ino, generation: last + 1 },
            None => Handle { ino: self.ino_last + 1, generation: 1 },
        }
    }
}

fn attributes_of(handle: Handle, kind: Kind, who: &Credentials, now: Time) -> Attributes {
    let (mode, links) = match kind {
        Kind::Directory {} => (0o755, 2),
        Kind::Symlink {} => (0o777, 1),
        _ => (0o644, 1),
    };
    let blank = Attributes::blank(handle.ino, handle.generation, kind, now);
    Attributes { mode, links, uid: who.uid, gid: who.gid, ..blank }
}

pub(super) fn permit(permitted: bool) -> Result<(), Error> {
    if permitted { Ok(()) } else { Err(Error::AccessDenied {}) }
}

fn check_size(size: u64) -> Result<(), Error> {
    if size <= FILE_SIZE_MAX { Ok(()) } else { Err(Error::FileTooLarge {}) }
}
