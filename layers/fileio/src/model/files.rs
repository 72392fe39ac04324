//! Requests by handle.

use std::ops::Range;

use bytes::Bytes;
use meta::attributes::access;

use super::state::{InodeBody, ModelInode, ModelState, permit};
use crate::protocol::{
    Allocate, Append, Appended, Attributes, Commit, DirectoryEntry, DirectoryPage, ENTRIES_MAX,
    Error, FILE_SIZE_MAX, GetAttributes, Handle, Kind, ListData, PunchHole, Read, ReadData,
    ReadDirectory, ReadList, Regions, Seek, SeekTarget, SetAttributes, SyncDirectory, TRANSFER_MAX,
    Time, WccAttr, Write, WriteList, WriteResult,
};
use crate::regions::REGIONS_MAX;

/// The write verifier of all files.
const WRITE_VERIFIER: u64 = 0x7E57;

impl ModelInode {
    pub(super) fn set_attributes(
        &mut self,
        r: &SetAttributes,
        now: Time,
    ) -> Result<Attributes, Error> {
        if r.only_if_ctime.is_some_and(|ctime| ctime != self.fixed.ctime) {
            return Err(Error::Changed {});
        }
        self.check_change(&r.who, &r.change)?;
        self.apply(&r.who, &r.change, now);
        Ok(self.attributes())
    }

    pub(super) fn read_link(&mut self, now: Time) -> Result<Vec<u8>, Error> {
        let InodeBody::Symlink(target) = &self.body else {
            return Err(Error::Invalid {});
        };
        let target = target.clone();
        self.accessed(now);
        Ok(target)
    }

    pub(super) fn read(&mut self, r: &Read, now: Time) -> Result<ReadData, Error> {
        self.content()?;
        self.check_transfer(&r.who, access::READ)?;
        if r.length > TRANSFER_MAX {
            return Err(Error::Invalid {});
        }
        let content = self.content()?;
        let bytes = content.read(r.offset, u64::from(r.length));
        let end = r.offset.saturating_add(bytes.len() as u64) >= content.size();
        if !bytes.is_empty() {
            self.accessed(now);
        }
        let data = if bytes.is_empty() { Vec::new() } else { vec![Bytes::from(bytes)] };
        Ok(ReadData { data, end, attributes: self.attributes(), write_verifier: WRITE_VERIFIER })
    }

    pub(super) fn write(
        &mut self,
        r: &Write,
        free_bytes: u64,
        now: Time,
    ) -> Result<WriteResult, Error> {
        self.content()?;
        self.check_transfer(&r.who, access::WRITE)?;
        let length: u64 = r.data.iter().map(|part| part.len() as u64).sum();
        if length > u64::from(TRANSFER_MAX) {
            return Err(Error::Invalid {});
        }
        let before = Some(WccAttr::of(&self.attributes()));
        if length == 0 {
            return Ok(WriteResult { before, ..verified(self.attributes()) });
        }
        if r.offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Error::FileTooLarge {});
        }
        let content = self.content()?;
        if content.growth_bytes(r.offset, length) > free_bytes {
            return Err(Error::NoSpace {});
        }
        content.write(r.offset, &r.data.concat());
        self.modified(now);
        self.drop_setid(&r.who);
        Ok(WriteResult { before, ..verified(self.attributes()) })
    }

    pub(super) fn append(
        &mut self,
        r: &Append,
        free_bytes: u64,
        now: Time,
    ) -> Result<Appended, Error> {
        let offset = self.attributes().size;
        let (who, data) = (r.who.clone(), r.data.clone());
        let write = Write { who, file: r.file, offset, data, durable: false };
        Ok(Appended { offset, written: self.write(&write, free_bytes, now)? })
    }

    /// Region by region.
    pub(super) fn read_list(&mut self, r: &ReadList, now: Time) -> Result<ListData, Error> {
        let window = window_of(&r.regions, r.skip, u64::from(r.length))?;
        self.content()?;
        self.check_transfer(&r.who, access::READ)?;
        let content = self.content()?;
        let (mut packed, mut length) = (Vec::new(), 0);
        for region in r.regions.walk(window) {
            let bytes = content.read(region.offset, region.length);
            if !bytes.is_empty() {
                length = packed.len() + bytes.len();
            }
            packed.resize(packed.len() + region.length as usize, 0);
            let start = packed.len() - region.length as usize;
            packed[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        packed.truncate(length);
        if !packed.is_empty() {
            self.accessed(now);
        }
        let data = if packed.is_empty() { Vec::new() } else { vec![Bytes::from(packed)] };
        Ok(ListData { data, attributes: self.attributes(), write_verifier: WRITE_VERIFIER })
    }

    /// Region by region.
    pub(super) fn write_list(
        &mut self,
        r: &WriteList,
        free_bytes: u64,
        now: Time,
    ) -> Result<WriteResult, Error> {
        let window = window_of(&r.regions, r.skip, r.data.len() as u64)?;
        let limit = self.attributes().used_bytes + free_bytes;
        let write = |inode: &mut Self, offset: u64, data: Vec<Bytes>| {
            let (who, free_bytes) =
                (r.who.clone(), limit.saturating_sub(inode.attributes().used_bytes));
            let write = Write { who, file: r.file, offset, data, durable: r.durable };
            inode.write(&write, free_bytes, now)
        };
        // Of no bytes, in case there are none.
        let mut written = write(self, 0, Vec::new())?;
        for region in r.regions.walk(window) {
            let start = (region.position - r.skip) as usize;
            let data = r.data.slice(start..start + region.length as usize);
            written = write(self, region.offset, vec![data])?;
        }
        Ok(WriteResult { before: None, ..written })
    }

    pub(super) fn punch_hole(&mut self, r: &PunchHole, now: Time) -> Result<WriteResult, Error> {
        self.content()?;
        self.check_transfer(&r.who, access::WRITE)?;
        let end = end_of_range(r.offset, r.length)?;
        let content = self.content()?;
        if r.offset < content.size() {
            content.punch(r.offset, end);
            self.modified(now);
            self.drop_setid(&r.who);
        }
        Ok(verified(self.attributes()))
    }

    pub(super) fn allocate(
        &mut self,
        r: &Allocate,
        free_bytes: u64,
        now: Time,
    ) -> Result<Attributes, Error> {
        self.content()?;
        self.check_transfer(&r.who, access::WRITE)?;
        let end = end_of_range(r.offset, r.length)?;
        let content = self.content()?;
        if content.growth_bytes(r.offset, r.length) > free_bytes {
            return Err(Error::NoSpace {});
        }
        if !r.keep_size && end > content.size() {
            content.set_size(end);
            self.modified(now);
            self.drop_setid(&r.who);
        }
        Ok(self.attributes())
    }

    pub(super) fn seek(&mut self, r: &Seek) -> Result<Option<u64>, Error> {
        self.content()?;
        self.check_transfer(&r.who, access::READ)?;
        let in_page = r.target == SeekTarget::Data {};
        Ok(self.content()?.seek(r.offset, in_page))
    }
}

impl ModelState {
    pub(super) fn get_attributes(&self, r: &GetAttributes) -> Result<Attributes, Error> {
        self.attributes(&r.file)
    }

    pub(super) fn read_directory(
        &mut self,
        r: &ReadDirectory,
        now: Time,
    ) -> Result<DirectoryPage, Error> {
        let directory = self.directory(&r.directory)?;
        let inode = self.inode(&r.directory)?;
        let is_open = inode.is_open_for(&r.who, access::READ);
        permit(inode.fixed.permits(&r.who, access::READ) || is_open)?;
        if r.count_max == 0 {
            return Err(Error::Invalid {});
        }
        if r.after > directory.cookie_last {
            return Err(Error::BadCookie {});
        }
        let count_max = r.count_max.min(ENTRIES_MAX) as usize;
        let rest = directory.cookies.range(r.after + 1..);
        let entries: Vec<DirectoryEntry> = rest
            .clone()
            .take(count_max)
            .map(|(&cookie, name)| {
                let found = self.attributes_of_ino(directory.names[name].ino);
                DirectoryEntry {
                    cookie,
                    name: name.clone(),
                    handle: Handle { ino: found.ino, generation: found.generation },
                    kind: found.kind,
                    attributes: r.attributes.then(|| Box::new(found)),
                }
            })
            .collect();
        let end = rest.count() == entries.len();
        let inode = self.inode_mut(&r.directory)?;
        inode.accessed(now);
        Ok(DirectoryPage { entries, end, directory: inode.attributes() })
    }

    pub(super) fn commit(&self, r: &Commit) -> Result<WriteResult, Error> {
        let known = verified(self.attributes(&r.file)?);
        Ok(WriteResult { sequence: 0, committed: 1, ..known })
    }

    /// Nothing is ever lost here.
    pub(super) fn replayed(&self, file: &Handle, sequence: u64) -> Result<WriteResult, Error> {
        let known = verified(self.attributes(file)?);
        Ok(WriteResult { sequence, committed: sequence, ..known })
    }

    pub(super) fn sync_directory(&self, r: &SyncDirectory) -> Result<(), Error> {
        match self.attributes(&r.directory)?.kind {
            Kind::Directory {} => Ok(()),
            _ => Err(Error::NotDirectory {}),
        }
    }
}

/// The end of a range of at least one byte that a file can have.
fn end_of_range(offset: u64, length: u64) -> Result<u64, Error> {
    if length == 0 {
        return Err(Error::Invalid {});
    }
    let end = offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX);
    end.ok_or(Error::FileTooLarge {})
}

/// The model never loses anything. Only a single write returns the attributes from before it.
fn verified(attributes: Attributes) -> WriteResult {
    let write_verifier = WRITE_VERIFIER;
    WriteResult { attributes, write_verifier, before: None, sequence: 1, committed: 0 }
}

/// The window that a request means, if it may.
fn window_of(regions: &Regions, skip: u64, length: u64) -> Result<Range<u64>, Error> {
    let end = skip.checked_add(length).filter(|&end| end <= regions.bytes());
    let window = skip..end.ok_or(Error::Invalid {})?;
    let is_short = length <= u64::from(TRANSFER_MAX) && regions.count_in(&window) <= REGIONS_MAX;
    if is_short { Ok(window) } else { Err(Error::Invalid {}) }
}
