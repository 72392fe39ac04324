//! Extended attributes: names with values, in pieces that the store can hold, beside the inode.

use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;
use runtime::sync::KeyedLock;

use super::base::NodeBase;
use crate::attributes::{Attributes, XATTR_VALUE_MAX, XATTRS_BYTES_MAX};
use crate::keys;
use crate::protocol::{
    CallOutcome, ChangeXattr, Error, GetXattr, ListXattrs, XattrMode, XattrName,
};
use crate::store::{Batch, VALUE_BYTES_MAX};

/// Pieces that one record deletes when an inode goes, at most: on a full volume it must fit the
/// reserve.
const GONE_MAX: usize = 16;

/// One piece of a value, as the store has it.
struct XattrPiece {
    name: XattrName,
    number: u8,
    value: Bytes,
}

/// The extended attributes of the inodes of one node.
pub(super) struct Xattrs {
    base: Rc<NodeBase>,
    /// Shared to read the extended attributes of an inode, exclusive to change them.
    locks: KeyedLock<u64>,
}

impl Xattrs {
    pub(super) fn new(base: &Rc<NodeBase>) -> Self {
        Self { base: base.clone(), locks: KeyedLock::default() }
    }

    pub(super) async fn get_xattr(&self, request: GetXattr) -> Result<Vec<u8>, Error> {
        let GetXattr { ino, generation, name } = request;
        let _unchanged = self.locks.shared(ino).await;
        self.base.inodes.load(ino, generation).await?;
        let pieces = self.pieces(keys::xattr_pieces(ino, &name)).await?;
        if pieces.is_empty() {
            // Perhaps with the inode.
            self.base.inodes.load(ino, generation).await?;
            return Err(Error::NoXattr {});
        }
        Ok(pieces.iter().flat_map(|piece| &piece.value).copied().collect())
    }

    pub(super) async fn list_xattrs(&self, request: ListXattrs) -> Result<Vec<XattrName>, Error> {
        let ListXattrs { ino, generation } = request;
        let _unchanged = self.locks.shared(ino).await;
        self.base.inodes.load(ino, generation).await?;
        let pieces = self.pieces(keys::xattrs(ino)).await?;
        self.base.inodes.load(ino, generation).await?;
        let first = pieces.into_iter().filter(|piece| piece.number == 0);
        Ok(first.map(|piece| piece.name).collect())
    }

    async fn pieces(&self, (from, to): (Vec<u8>, Vec<u8>)) -> Result<Vec<XattrPiece>, Error> {
        let found = self.base.store.scan(Bound::Included(&from), &to, usize::MAX).await?;
        let pieces = found.into_iter().map(|(key, value)| {
            let (name, number) = keys::xattr_parts(&key)?;
            let name = XattrName::new(name.to_vec()).ok()?;
            Some(XattrPiece { name, number, value })
        });
        pieces.collect::<Option<_>>().ok_or(Error::Damaged {})
    }

    pub(super) async fn change_xattr(&self, request: ChangeXattr) -> Result<Attributes, Error> {
        let ChangeXattr { ino, generation, name, value, mode, time, durable, call } = request;
        if value.as_ref().is_some_and(|value| value.len() > XATTR_VALUE_MAX) {
            return Err(Error::TooLarge {});
        }
        let _alone = self.locks.exclusive(ino).await;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, generation).await?;
        let (old, others): (Vec<XattrPiece>, Vec<XattrPiece>) =
            self.pieces(keys::xattrs(ino)).await?.into_iter().partition(|piece| piece.name == name);
        match (mode, old.is_empty()) {
            (XattrMode::CreateNew {}, false) => return Err(Error::Exists {}),
            (XattrMode::Replace {}, true) => return Err(Error::NoXattr {}),
            _ => {}
        }
        if let Some(value) = &value
            && bytes_of(&others) + name.as_bytes().len() + value.len() > XATTRS_BYTES_MAX
        {
            return Err(Error::TooLarge {});
        }
        let keys = old.iter().map(|piece| keys::xattr(ino, &piece.name, piece.number));
        let old: Vec<Vec<u8>> = keys.collect();
        // Removed meanwhile, perhaps.
        self.base.inodes.load(ino, generation).await?;
        let (reply, now) = ((call, CallOutcome::Done {}), self.base.context.now());
        let make = || {
            self.base.inodes.with(ino, |active| {
                let (mut after, mut stored) = (active.inode.clone(), active.stored.clone());
                after.attributes.ctime = time;
                stored.attributes.ctime = time;
                let mut batch = Batch::new();
                put_value(&mut batch, (ino, &name), value.as_deref(), &old);
                batch.put(keys::inode(ino), stored.to_stored());
                self.base.replies.put(reply, now, &mut batch);
                Ok((batch, (after, stored)))
            })
        };
        let (position, (after, stored)) = self.base.records.record(make).await?;
        self.base.replies.stored(reply, now, position, None);
        let attributes = self.base.inodes.with(ino, |active| {
            active.inode = after;
            active.stored = stored;
            Ok(active.inode.attributes)
        })?;
        self.base.records.ensure_durable(position, durable).await?;
        Ok(attributes)
    }

    /// Deletes what an inode had that is gone.
    pub(super) async fn trim_xattrs(&self, ino: u64) -> Result<(), Error> {
        let (from, to) = keys::xattrs(ino);
        loop {
            let found = self.base.store.scan(Bound::Included(&from), &to, GONE_MAX).await?;
            if found.is_empty() {
                return Ok(());
            }
            let gone: Vec<Vec<u8>> = found.into_iter().map(|(key, _)| key.to_vec()).collect();
            self.base.records.delete_all(&gone).await?;
        }
    }
}

/// Puts a value in the place of what the keys `old` have.
fn put_value(
    batch: &mut Batch,
    (ino, name): (u64, &XattrName),
    value: Option<&[u8]>,
    old: &[Vec<u8>],
) {
    let mut pieces = 0;
    match value {
        None => batch.take_from_reserve(),
        Some([]) => {
            batch.put(keys::xattr(ino, name, 0), Bytes::new());
            pieces = 1;
        }
        Some(value) => {
            for (number, piece) in (0..).zip(value.chunks(VALUE_BYTES_MAX)) {
                batch.put(keys::xattr(ino, name, number), Bytes::copy_from_slice(piece));
                pieces += 1;
            }
        }
    }
    for key in old.iter().skip(pieces) {
        batch.delete(key.clone());
    }
}

/// Bytes of names and values.
fn bytes_of(pieces: &[XattrPiece]) -> usize {
    let name_bytes =
        |piece: &XattrPiece| if piece.number == 0 { piece.name.as_bytes().len() } else { 0 };
    pieces.iter().map(|piece| name_bytes(piece) + piece.value.len()).sum()
}
