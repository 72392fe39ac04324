//! Changes of content that were lost and are sent again ([`ReplayWrite`], [`ReplayPunch`], ADR 73).

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use meta::attributes::access;
use runtime::protocol::Undelivered;

use super::base::MetadataAccess;
use super::commit::{ContentComponents, FileCommits};
use super::content::ContentAccess;
use super::replays::{ReplayNumbers, ReplayVerdict};
use super::space::FileSpace;
use super::write::{ChangeNote, FileWriter, WritePurpose};
use crate::pieces::ByteRope;
use crate::protocol::{
    Attributes, Credentials, Error, Handle, PunchHole, ReplayPunch, ReplayWrite, TRANSFER_MAX,
    WriteResult,
};
use crate::rules;

/// Answers replays.
pub(super) struct Replayer {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    writer: Rc<FileWriter>,
    space: Rc<FileSpace>,
}

/// What was answered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayKind {
    Write,
    Append,
    Punch,
}

impl Replayer {
    pub(super) fn new(
        (base, content, commits): ContentComponents,
        writer: Rc<FileWriter>,
        space: Rc<FileSpace>,
    ) -> Self {
        Self { base, content, commits, writer, space }
    }

    pub(super) async fn replay_write(&self, request: ReplayWrite) -> Result<WriteResult, Error> {
        let ReplayWrite { who, file, offset, data, order, sequence, is_append } = request;
        let length: usize = data.iter().map(Bytes::len).sum();
        if length > TRANSFER_MAX as usize {
            return Err(Error::Invalid {});
        }
        rules::check_range(offset, length as u64)?;
        let data = &ByteRope::new(data);
        let write = async |before: &Attributes, part: Range<u64>| {
            let place = ((part.start - offset) as usize, (part.end - offset) as usize);
            let bytes = data.slice(place.0, place.1).into_vec();
            let note = ChangeNote { order: Some(order), is_append, ..ChangeNote::of(part.clone()) };
            let place = (part.start, bytes);
            self.writer.write_locked(&who, before, place, WritePurpose::Data, note).await
        };
        let range = offset..offset + length as u64;
        let kind = if is_append { ReplayKind::Append } else { ReplayKind::Write };
        let numbers = ReplayNumbers { order, sequence };
        self.replay(&who, file, (numbers, range, kind), write).await
    }

    pub(super) async fn replay_punch(&self, request: ReplayPunch) -> Result<WriteResult, Error> {
        let ReplayPunch { who, file, offset, length, order, sequence } = request;
        let end = offset.checked_add(length).filter(|_| length > 0).ok_or(Error::Invalid {})?;
        let punch = async |_: &Attributes, part: Range<u64>| {
            let (offset, length) = (part.start, part.end - part.start);
            let hole = PunchHole { who: who.clone(), file, offset, length, durable: false };
            self.space.punch_alone(&hole, Some(order)).await
        };
        let numbers = ReplayNumbers { order, sequence };
        self.replay(&who, file, (numbers, offset..end, ReplayKind::Punch), punch).await
    }

    /// Changes those bytes of `range` that no later change has touched.
    async fn replay(
        &self,
        who: &Credentials,
        file: Handle,
        (numbers, range, kind): (ReplayNumbers, Range<u64>, ReplayKind),
        change: impl AsyncFn(&Attributes, Range<u64>) -> Result<WriteResult, Error>,
    ) -> Result<WriteResult, Error> {
        let once = async || self.replay_once(who, file, (numbers, &range, kind), &change).await;
        match once().await {
            Err(Error::Damaged {}) => {
                self.commits.recover_lost_writes(file).await;
                once().await
            }
            replayed => replayed,
        }
    }

    async fn replay_once(
        &self,
        who: &Credentials,
        file: Handle,
        (numbers, range, kind): (ReplayNumbers, &Range<u64>, ReplayKind),
        change: &impl AsyncFn(&Attributes, Range<u64>) -> Result<WriteResult, Error>,
    ) -> Result<WriteResult, Error> {
        let _alone = self.content.files.exclusive(file.ino).await;
        let installed = self.base.installed(file).await?;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        let verdict = self.base.replays.judge(file.ino, numbers, range.clone(), &installed);
        tracing::debug!(ino = file.ino, ?numbers, ?range, ?verdict, "a lost write comes again");
        let unchanged = self.writer.unchanged(before).await?;
        let parts = match verdict {
            ReplayVerdict::Present => {
                return Ok(WriteResult { sequence: numbers.sequence, ..unchanged });
            }
            ReplayVerdict::Apply(parts) if !range.is_empty() => parts,
            ReplayVerdict::Apply(_) | ReplayVerdict::Unknown => return Err(Error::LostWrites {}),
        };
        if parts.by_append && kind == ReplayKind::Append {
            return Err(Error::Changed {});
        }
        let mut result = unchanged;
        for part in parts.ranges {
            let now = self.base.attributes(file).await?;
            // Lost once more: it comes again.
            let changed = change(&now, part).await.map_err(|error| match error {
                Error::LostWrites {} => Undelivered::Busy.into(),
                error => error,
            })?;
            if changed.write_verifier != unchanged.write_verifier {
                // Lost once more: it comes again.
                return Err(Undelivered::Busy.into());
            }
            result = changed;
        }
        if kind != ReplayKind::Punch && result.attributes.size < parts.end {
            // What covers its end is a hole, which does not lengthen a file.
            self.space.lengthen_locked(file, parts.end, numbers.order).await?;
            result.sequence = self.base.installed(file).await?.sequence;
        }
        // What covers the rest may be lost before it is durable. Then this is lost, too.
        Ok(WriteResult { sequence: result.sequence.max(parts.covered_by), ..result })
    }
}
