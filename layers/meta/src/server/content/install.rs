//! Changes of content that no record names yet ([`Install`], [`Seal`]).

use std::rc::Rc;

use super::chunk_map::ChunkMap;
use crate::attributes::{Time, WccAttr, WriteResult};
use crate::protocol::{AppendRecord, CommitMark, Error, Install, Seal};
use crate::server::base::NodeBase;
use crate::server::space::reclaim::Reclaim;
use crate::server::verifiers::WriteVerifiers;

/// Installs new chunks of the files of one node.
pub(crate) struct Installer {
    base: Rc<NodeBase>,
    chunks: Rc<ChunkMap>,
    reclaim: Rc<Reclaim>,
    verifiers: Rc<WriteVerifiers>,
}

impl Installer {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        chunks: Rc<ChunkMap>,
        reclaim: Rc<Reclaim>,
        verifiers: Rc<WriteVerifiers>,
    ) -> Self {
        Self { base: base.clone(), chunks, reclaim, verifiers }
    }

    pub(crate) async fn install(&self, request: Install) -> Result<WriteResult, Error> {
        let Install { ino, updates, size_min, time, drop_setid, mark, append } = request;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, 0).await?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        let mut released = Vec::new();
        for update in updates {
            let old = self.chunks.chunk(ino, update.index).await?;
            self.base.inodes.with(ino, |active| {
                released.extend(active.install(&old, update, blocks));
                Ok(())
            })?;
        }
        let verified = self.update_attributes(ino, (size_min, time, drop_setid), (mark, append))?;
        self.reclaim.discard_and_release(released).await?;
        Ok(verified)
    }

    /// Answers [`Install`], if all of it is known here and nothing has to be given back: as it is
    /// for most writes.
    pub(crate) fn try_install_now(&self, request: &Install) -> Option<WriteResult> {
        let &Install { ino, ref updates, size_min, time, drop_setid, ref mark, append } = request;
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        let installed = self.base.inodes.with(ino, |active| {
            active.used.set(true);
            Ok(active.install_known(updates, blocks))
        });
        installed.ok()??;
        self.base.share.note_use();
        self.update_attributes(ino, (size_min, time, drop_setid), (mark.clone(), append)).ok()
    }

    /// The size and times of a file to which something was written, and the number of the change.
    fn update_attributes(
        &self,
        ino: u64,
        (size_min, time, drop_setid): (u64, Time, bool),
        (mark, append): (CommitMark, Option<AppendRecord>),
    ) -> Result<WriteResult, Error> {
        let sequence = mark.sequence;
        let (before, attributes, committed) = self.base.inodes.with_dirty(ino, |active| {
            let attributes = &mut active.inode.attributes;
            let before = WccAttr::of(attributes);
            attributes.size = attributes.size.max(size_min);
            // By its times a client knows whether the content is as it was.
            let time = time.other_than(before.ctime);
            attributes.mtime = time;
            attributes.ctime = time;
            if drop_setid {
                attributes.mode &= !drop_setid_bits(attributes.mode);
            }
            let attributes = *attributes;
            active.note_installed(mark, append);
            (before, attributes, active.durable_sequence)
        })?;
        let write_verifier = self.verifiers.get(ino);
        let before = Some(before);
        Ok(WriteResult { attributes, write_verifier, before, sequence, committed })
    }

    pub(crate) async fn seal(&self, request: &Seal) -> Result<(), Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        // One that is clean may have left memory since.
        self.base.inodes.load(request.ino, 0).await?;
        let dropped = self.base.inodes.with(request.ino, |active| Ok(active.seal(blocks)))?;
        self.reclaim.discard_and_release(dropped).await
    }
}

/// An executable file loses setuid and setgid (the latter only if the group may execute it).
fn drop_setid_bits(mode: u32) -> u32 {
    if mode & 0o010 != 0 { 0o6000 } else { 0o4000 }
}
