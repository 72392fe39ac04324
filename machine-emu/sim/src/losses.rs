//! What is known of a file while single nodes restart: as an NFS client knows it, by write
//! verifiers.
//!
//! A node that restarts loses its uncommitted writes. The writer learns it from the next commit:
//! its verifier is another one than that of the write. What was written with the verifier that a
//! commit returns must be durable.

use std::collections::BTreeMap;
use std::time::Duration;

use super::content::{Block, ExpectedContent, Issued, whole_blocks};

/// No node commits a file of its own accord earlier than this after the first change.
const COMMIT_AGE: Duration = Duration::from_secs(2);

/// What a commit reported about the writes that were uncommitted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitVerdict {
    /// All are there, or there were none.
    Kept,
    /// None may be there.
    Lost,
    /// Something between.
    Both,
}

/// A file without uncommitted writes.
#[derive(Debug)]
struct CommittedState {
    size: u64,
    blocks: Vec<Block>,
    /// When the first write began since, and how many moves by plan were over then.
    first_write: Option<(Duration, u64)>,
}

/// What is known of one file.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Writes that no commit has answered for, in the order of their answers, with their verifiers.
    unstable: BTreeMap<u64, (Issued, u64)>,
    answered: u64,
    /// How many nodes had restarted when nothing uncommitted was left: since then nothing was lost
    /// unless there are more. None if a request was refused because of a loss.
    known_at: Option<u64>,
    /// The last committed state; `None` if more has happened since than writes that are not
    /// durable.
    last: Option<CommittedState>,
}

impl Losses {
    /// Of a fresh file, after `restarts` restarts of nodes.
    pub(super) fn new(content: &ExpectedContent, restarts: u64) -> Self {
        let mut losses = Self::default();
        losses.flushed(content, restarts);
        losses
    }

    /// The file is durably as `content` has it, and is not being changed.
    pub(super) fn flushed(&mut self, content: &ExpectedContent, restarts: u64) {
        self.unstable.clear();
        self.known_at = Some(restarts);
        self.rests(content);
    }

    /// A commit was answered while no other client used the file, and no node has restarted.
    pub(super) fn rests(&mut self, content: &ExpectedContent) {
        let (size, blocks) = content.at_rest();
        self.last = Some(CommittedState { size, blocks, first_write: None });
    }

    /// Nothing can have been lost since the file was known, if `restarts` nodes have restarted.
    pub(super) fn is_known(&self, restarts: u64) -> bool {
        self.known_at == Some(restarts)
    }

    /// A write begins, after `moves_ended` planned moves.
    pub(super) fn begin_write(&mut self, now: Duration, moves_ended: u64) {
        if let Some(last) = &mut self.last {
            last.first_write.get_or_insert((now, moves_ended));
        }
    }

    /// It was answered.
    pub(super) fn written(&mut self, issued: Issued, verifier: u64) {
        self.unstable.insert(self.answered, (issued, verifier));
        self.answered += 1;
    }

    /// A commit, or a request that commits, begins; returns the mark for
    /// [`committed`](Self::committed).
    pub(super) fn begin_commit(&mut self) -> u64 {
        self.last = None;
        self.answered
    }

    /// It was answered.
    pub(super) fn committed(
        &mut self,
        mark: u64,
        verifier: u64,
        content: &mut ExpectedContent,
    ) -> CommitVerdict {
        let later = self.unstable.split_off(&mark);
        let covered = std::mem::replace(&mut self.unstable, later);
        let mut kept = 0;
        for (issued, _) in covered.values().filter(|(_, written)| *written == verifier) {
            content.durable(issued);
            kept += 1;
        }
        match kept {
            _ if kept == covered.len() => CommitVerdict::Kept,
            0 => CommitVerdict::Lost,
            _ => CommitVerdict::Both,
        }
    }

    /// A request was refused because of a loss: its outcome is unknown.
    pub(super) fn refused(&mut self) {
        self.known_at = None;
        self.last = None;
    }

    /// A commit begins that determines what is left, while no other client uses the file.
    pub(super) fn begin_look(&mut self) -> (u64, LastCommitted) {
        let last = self.last.take();
        (self.begin_commit(), LastCommitted(last))
    }
}

/// The state to which a file returns if all its writes are lost, if that is known.
#[derive(Debug)]
pub(super) struct LastCommitted(Option<CommittedState>);

impl LastCommitted {
    /// All writes since are lost, as reported at `now`, after `moves` planned moves; then the file
    /// was `data`. What is wrong with that, if anything.
    pub(super) fn check(&self, now: Duration, moves: u64, data: &[u8]) -> Result<(), String> {
        let Some(CommittedState { size, blocks, first_write: Some(first_write) }) = &self.0 else {
            return Ok(());
        };
        let (written_at, moves_ended) = *first_write;
        // A node that hands over commits all that it has.
        if now >= written_at + COMMIT_AGE || moves > moves_ended {
            return Ok(());
        }
        if data.len() as u64 != *size {
            return Err(format!("it has {} bytes, {size} were committed", data.len()));
        }
        let found = whole_blocks(data, blocks.len());
        match found.zip(blocks).find(|((_, found), committed)| found != *committed) {
            Some(((block, _), _)) => Err(format!("block {block} is not as committed")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = super::super::content::BLOCK as usize;
    const NOW: Duration = Duration::from_secs(1);

    fn write(content: &mut ExpectedContent, number: u8) -> (Issued, Vec<u8>) {
        let data = vec![number; BLOCK];
        let issued = content.issue_write(0, &data);
        content.acknowledge(&issued);
        (issued, data)
    }

    #[test]
    fn a_commit_answers_for_the_writes_that_have_its_verifier() {
        let mut content = ExpectedContent::new(2);
        let mut losses = Losses::new(&content, 0);
        let (first, old) = write(&mut content, 1);
        losses.written(first, 7);
        let (second, new) = write(&mut content, 2);
        losses.written(second, 8);
        let mark = losses.begin_commit();
        assert_eq!(losses.committed(mark, 8, &mut content), CommitVerdict::Both);
        assert!(content.clone().settle_losses(&old).is_err(), "the second was kept");
        assert_eq!(content.settle_losses(&new), Ok(()));
        assert_eq!(
            losses.committed(mark, 9, &mut content),
            CommitVerdict::Kept,
            "nothing is left to report"
        );
    }

    #[test]
    fn a_file_that_has_lost_everything_is_as_committed_and_as_long() {
        let mut content = ExpectedContent::new(2);
        let mut losses = Losses::new(&content, 0);
        losses.begin_write(NOW, 3);
        let (issued, data) = write(&mut content, 1);
        losses.written(issued, 7);
        let (mark, last) = losses.begin_look();
        assert_eq!(losses.committed(mark, 9, &mut content), CommitVerdict::Lost);
        assert_eq!(last.check(NOW, 3, &[]), Ok(()));
        assert!(last.check(NOW, 3, &data).is_err() && last.check(NOW, 3, &[0; BLOCK]).is_err());
        assert_eq!(last.check(NOW + COMMIT_AGE, 3, &data), Ok(()), "it may have been committed");
        assert_eq!(
            last.check(NOW, 4, &data),
            Ok(()),
            "the node that handed it over has committed it"
        );
    }
}
