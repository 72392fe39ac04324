//! Requests that name an entry of a directory.

use meta::attributes::access;

use super::content::SparseContent;
use super::state::{Directory, InodeBody, ModelState, permit};
use crate::protocol::{
    Attributes, Change, Create, Created, Credentials, Error, Existing, Handle, Kind, LINKS_MAX,
    Link, Lookup, MakeNode, Name, NewNode, Parent, Remove, RemoveDirectory, Rename, TARGET_MAX,
    Time,
};

impl ModelState {
    pub(super) fn lookup(&self, r: &Lookup) -> Result<Attributes, Error> {
        let ino = self.find(&r.who, &r.directory, &r.name)?.ok_or(Error::NotFound {})?;
        Ok(self.attributes_of_ino(ino))
    }

    pub(super) fn parent(&self, r: &Parent) -> Result<Attributes, Error> {
        let parent = self.searched(&r.who, &r.directory)?.parent;
        Ok(self.attributes_of_ino(parent))
    }

    pub(super) fn create(&mut self, r: &Create, now: Time) -> Result<Created, Error> {
        if let Some(ino) = self.find(&r.who, &r.directory, &r.name)? {
            return self.create_existing(r, ino, now);
        }
        let file = (Kind::File {}, InodeBody::File(SparseContent::new(self.page_bytes)));
        let inode = self.make(&r.who, (&r.directory, &r.name), file, &r.change, now)?;
        if let Existing::UseIfSame { verifier } = r.existing {
            inode.verifier = Some(verifier);
        }
        Ok(Created { attributes: inode.attributes(), new: true })
    }

    fn create_existing(&mut self, r: &Create, ino: u64, now: Time) -> Result<Created, Error> {
        let inode = self.named(ino);
        match r.existing {
            Existing::Refuse {} => return Err(Error::Exists {}),
            Existing::UseIfSame { verifier } => {
                if inode.verifier != Some(verifier) {
                    return Err(Error::Exists {});
                }
            }
            Existing::Use {} => {
                match inode.fixed.kind {
                    Kind::File {} => {}
                    Kind::Directory {} => return Err(Error::IsDirectory {}),
                    _ => return Err(Error::Exists {}),
                }
                let cut = Change { size: r.change.size, ..Change::default() };
                inode.check_change(&r.who, &cut)?;
                inode.apply(&r.who, &cut, now);
            }
        }
        Ok(Created { attributes: inode.attributes(), new: false })
    }

    pub(super) fn make_node(&mut self, r: &MakeNode, now: Time) -> Result<Attributes, Error> {
        if self.find(&r.who, &r.directory, &r.name)?.is_some() {
            return Err(Error::Exists {});
        }
        self.check_add(&r.who, &r.directory)?;
        let device = match r.node {
            NewNode::BlockDevice { major, minor } | NewNode::CharDevice { major, minor } => {
                if r.who.uid != 0 {
                    return Err(Error::NotPermitted {});
                }
                (major, minor)
            }
            _ => (0, 0),
        };
        let what = new_node(r)?;
        let change = Change { size: None, ..r.change.clone() };
        let inode = self.make(&r.who, (&r.directory, &r.name), what, &change, now)?;
        (inode.fixed.major, inode.fixed.minor) = device;
        Ok(inode.attributes())
    }

    pub(super) fn remove(&mut self, r: &Remove, now: Time) -> Result<(), Error> {
        let ino = self.find(&r.who, &r.directory, &r.name)?.ok_or(Error::NotFound {})?;
        self.check_take(&r.who, &r.directory, ino)?;
        if self.named(ino).is_directory() {
            return Err(Error::IsDirectory {});
        }
        self.take_entry(&r.directory, &r.name, now)?;
        self.unlink(ino, now);
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, r: &RemoveDirectory, now: Time) -> Result<(), Error> {
        let ino = self.find(&r.who, &r.directory, &r.name)?.ok_or(Error::NotFound {})?;
        self.check_take(&r.who, &r.directory, ino)?;
        self.check_empty(ino)?;
        self.take_entry(&r.directory, &r.name, now)?;
        self.inode_mut(&r.directory)?.fixed.links -= 1;
        self.unlink(ino, now);
        Ok(())
    }

    pub(super) fn rename(&mut self, r: &Rename, now: Time) -> Result<(), Error> {
        self.directory(&r.from_directory)?;
        self.searched(&r.who, &r.to_directory)?;
        let ino = self.find(&r.who, &r.from_directory, &r.from_name)?.ok_or(Error::NotFound {})?;
        let replaced = self.find(&r.who, &r.to_directory, &r.to_name)?;
        if replaced.is_some() && !r.replace {
            return Err(Error::Exists {});
        }
        if replaced == Some(ino) {
            return Ok(());
        }
        let moves_directory = self.named(ino).is_directory();
        if moves_directory && self.is_below(r.to_directory.ino, ino) {
            return Err(Error::Invalid {});
        }
        self.check_take(&r.who, &r.from_directory, ino)?;
        match replaced {
            Some(replaced) => {
                self.check_take(&r.who, &r.to_directory, replaced)?;
                self.check_replace(moves_directory, replaced)?;
            }
            None => self.check_add(&r.who, &r.to_directory)?,
        }
        let moves_up = moves_directory && r.from_directory != r.to_directory;
        if moves_up {
            // Its entry `..` changes.
            permit(self.named(ino).fixed.permits(&r.who, access::WRITE))?;
        }
        if let Some(replaced) = replaced.filter(|_| moves_directory) {
            self.check_empty(replaced)?;
        }

        if let Some(replaced) = replaced {
            self.take_entry(&r.to_directory, &r.to_name, now)?;
            if self.named(replaced).is_directory() {
                self.inode_mut(&r.to_directory)?.fixed.links -= 1;
            }
            self.unlink(replaced, now);
        }
        self.take_entry(&r.from_directory, &r.from_name, now)?;
        self.directory_mut(&r.to_directory)?.insert(r.to_name.clone(), ino);
        self.inode_mut(&r.to_directory)?.modified(now);
        self.named(ino).fixed.ctime = now;
        if moves_up {
            self.inode_mut(&r.from_directory)?.fixed.links -= 1;
            self.inode_mut(&r.to_directory)?.fixed.links += 1;
            if let InodeBody::Directory(moved) = &mut self.named(ino).body {
                moved.parent = r.to_directory.ino;
            }
        }
        Ok(())
    }

    pub(super) fn link(&mut self, r: &Link, now: Time) -> Result<Attributes, Error> {
        let kind = self.inode(&r.file)?.fixed.kind;
        if self.find(&r.who, &r.directory, &r.name)?.is_some() {
            return Err(Error::Exists {});
        }
        self.check_add(&r.who, &r.directory)?;
        if kind == (Kind::Directory {}) {
            return Err(Error::NotPermitted {});
        }
        let inode = self.inode_mut(&r.file)?;
        if inode.fixed.links == 0 {
            return Err(Error::NotFound {});
        }
        if inode.fixed.links >= LINKS_MAX {
            return Err(Error::TooManyLinks {});
        }
        inode.fixed.links += 1;
        inode.fixed.ctime = now;
        let attributes = inode.attributes();
        self.directory_mut(&r.directory)?.insert(r.name.clone(), r.file.ino);
        self.inode_mut(&r.directory)?.modified(now);
        Ok(attributes)
    }

    /// What `name` names, if `who` may search the directory.
    fn find(
        &self,
        who: &Credentials,
        directory: &Handle,
        name: &Name,
    ) -> Result<Option<u64>, Error> {
        let directory = self.searched(who, directory)?;
        Ok(directory.names.get(name).map(|entry| entry.ino))
    }

    fn take_entry(&mut self, directory: &Handle, name: &Name, now: Time) -> Result<(), Error> {
        self.directory_mut(directory)?.remove(name);
        self.inode_mut(directory)?.modified(now);
        Ok(())
    }

    fn check_empty(&mut self, ino: u64) -> Result<(), Error> {
        match &self.named(ino).body {
            InodeBody::Directory(directory) if directory.names.is_empty() => Ok(()),
            InodeBody::Directory(_) => Err(Error::NotEmpty {}),
            _ => Err(Error::NotDirectory {}),
        }
    }

    /// A directory replaces a directory only, anything else no directory.
    fn check_replace(&mut self, moves_directory: bool, replaced: u64) -> Result<(), Error> {
        match (moves_directory, self.named(replaced).is_directory()) {
            (true, false) => Err(Error::NotDirectory {}),
            (false, true) => Err(Error::IsDirectory {}),
            _ => Ok(()),
        }
    }

    /// Is the directory `ino` the directory `above`, or in it at any depth?
    fn is_below(&mut self, mut ino: u64, above: u64) -> bool {
        loop {
            if ino == above {
                return true;
            }
            match &self.named(ino).body {
                InodeBody::Directory(directory) if directory.parent != ino => {
                    ino = directory.parent;
                }
                _ => return false,
            }
        }
    }
}

fn new_node(r: &MakeNode) -> Result<(Kind, InodeBody), Error> {
    Ok(match &r.node {
        NewNode::Directory {} => {
            (Kind::Directory {}, InodeBody::Directory(Directory::new(r.directory.ino)))
        }
        NewNode::Symlink { target } => {
            if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
                return Err(Error::Invalid {});
            }
            (Kind::Symlink {}, InodeBody::Symlink(target.clone()))
        }
        NewNode::BlockDevice { .. } => (Kind::BlockDevice {}, InodeBody::Special),
        NewNode::CharDevice { .. } => (Kind::CharDevice {}, InodeBody::Special),
        NewNode::Fifo {} => (Kind::Fifo {}, InodeBody::Special),
        NewNode::Socket {} => (Kind::Socket {}, InodeBody::Special),
        NewNode::PartitionRoot { .. } => return Err(Error::NotPermitted {}),
    })
}
