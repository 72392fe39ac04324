//! Appending: the file's node knows where the file ends and runs one append at a time.
//!
//! An append is executed once. The results of the last ones are kept in memory, and the record that
//! makes an append durable has its outcome (ADR 9, 73). A copy that comes after a crash finds that,
//! or the append was lost with all that was not recorded, and is done now.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use meta::attributes::access;
use meta::protocol::{AppendRecord, CallOutcome, FindReply};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::base::MetadataAccess;
use super::commit::{ContentComponents, FileCommits};
use super::content::ContentAccess;
use super::write::{ChangeNote, FileWriter, WritePurpose};
use crate::protocol::{Append, Appended, CallId, Error, Handle, TRANSFER_MAX};
use crate::rules;

/// Results of appends that one node keeps, at most.
const REMEMBERED_MAX: usize = 4096;

/// Appends to one file that no record names yet, at most; then it is committed.
const UNRECORDED_MAX: usize = 32;

/// Clients whose dropped results are noted, at most; past it any call may have been dropped.
const CLIENTS_MAX: usize = 4096;

/// Answers [`Append`].
pub(super) struct Appends {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    writer: Rc<FileWriter>,
    /// Running appends: a second copy of one waits for the first.
    running: KeyedLock<CallId>,
    done: RefCell<AppendResults>,
}

/// Results, oldest first.
#[derive(Debug, Default)]
struct AppendResults {
    answers: BTreeMap<CallId, Result<Appended, Error>>,
    order: VecDeque<CallId>,
    /// The latest call of each client whose result was dropped.
    forgotten: BTreeMap<u64, u64>,
    /// There were too many clients.
    has_lost_count: bool,
}

impl AppendResults {
    fn keep(&mut self, call: CallId, answer: Result<Appended, Error>) {
        if self.answers.insert(call, answer).is_none() {
            self.order.push_back(call);
        }
        if self.order.len() <= REMEMBERED_MAX {
            return;
        }
        let Some(oldest) = self.order.pop_front() else { return };
        self.answers.remove(&oldest);
        let latest = self.forgotten.entry(oldest.client).or_default();
        *latest = oldest.number.max(*latest);
        if self.forgotten.len() > CLIENTS_MAX {
            self.forgotten.clear();
            self.has_lost_count = true;
        }
    }

    /// May the call have been executed and its result dropped?
    fn may_have_forgotten(&self, call: CallId) -> bool {
        let latest = self.forgotten.get(&call.client);
        self.has_lost_count || latest.is_some_and(|&latest| call.number <= latest)
    }
}

impl Appends {
    pub(super) fn new((base, content, commits): ContentComponents, writer: Rc<FileWriter>) -> Self {
        let (running, done) = (KeyedLock::default(), RefCell::default());
        Self { base, content, commits, writer, running, done }
    }

    pub(super) async fn append(&self, request: Append) -> Result<Appended, Error> {
        let call = request.call;
        let _alone = self.running.exclusive(call).await;
        if let Some(answer) = self.done.borrow().answers.get(&call) {
            return *answer;
        }
        if request.again {
            if let Some(known) = Box::pin(self.find_recorded(call, request.file)).await? {
                return Ok(known);
            }
            if self.done.borrow().may_have_forgotten(call) {
                return Err(Undelivered::Lost.into());
            }
        }
        let Handle { ino, generation } = request.file;
        let unrecorded = self.base.information.look(ino, generation, |file| Some(file.appends()));
        if unrecorded.is_some_and(|appends| appends >= UNRECORDED_MAX) {
            Box::pin(self.commits.commit(&request.file)).await?;
        }
        let mut appended = self.append_once(&request).await;
        if appended == Err(Error::Damaged {}) {
            Box::pin(self.commits.recover_lost_writes(request.file)).await;
            appended = Box::pin(self.append_once(&request)).await;
        }
        if appended.is_ok() {
            self.done.borrow_mut().keep(call, appended);
        }
        appended
    }

    /// An append that a record of this node names, perhaps of an earlier life.
    async fn find_recorded(&self, call: CallId, file: Handle) -> Result<Option<Appended>, Error> {
        // Durable, so that the client need not keep it.
        match self.base.meta_here(FindReply { call, durable: true }).await? {
            Some(CallOutcome::Appended { offset }) => {
                let attributes = self.base.attributes(file).await?;
                Ok(Some(Appended { offset, written: self.writer.unchanged(attributes).await? }))
            }
            // The id may be that of another call.
            Some(_) => Err(Error::Invalid {}),
            None => Ok(None),
        }
    }

    async fn append_once(&self, request: &Append) -> Result<Appended, Error> {
        let Append { who, file, data, call, acknowledged, only_if_verifier, .. } = request;
        let length: usize = data.iter().map(Bytes::len).sum();
        if length > TRANSFER_MAX as usize {
            return Err(Error::Invalid {});
        }
        // No other request may lengthen the file meanwhile or see a part of this append.
        let _alone = self.content.files.exclusive(file.ino).await;
        let before = self.base.attributes(*file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        if only_if_verifier
            .is_some_and(|wanted| self.base.information.write_verifier(file.ino) != wanted)
        {
            return Err(Error::LostWrites {});
        }
        let offset = before.size;
        rules::check_range(offset, length as u64)?;
        if length == 0 {
            return Ok(Appended { offset, written: self.writer.unchanged(before).await? });
        }
        let append = AppendRecord { call: *call, offset, acknowledged: *acknowledged };
        let note = ChangeNote {
            append: Some(append),
            is_append: true,
            ..ChangeNote::of(offset..offset + length as u64)
        };
        let place = (offset, data.clone());
        let written =
            self.writer.write_locked(who, &before, place, WritePurpose::Data, note).await?;
        Ok(Appended { offset, written })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_known_to_be_forgotten() {
        let mut done = AppendResults::default();
        let call = |number| CallId { client: number % 2, number };
        for number in 0..REMEMBERED_MAX as u64 + 10 {
            done.keep(call(number), Err(Error::NoSpace {}));
        }
        assert_eq!(done.answers.len(), REMEMBERED_MAX);
        assert!(done.may_have_forgotten(call(9)) && !done.answers.contains_key(&call(9)));
        assert!(!done.may_have_forgotten(call(10)) && done.answers.contains_key(&call(10)));
        for client in 100..100 + 2 * (CLIENTS_MAX + REMEMBERED_MAX) as u64 {
            done.keep(CallId { client, number: 1 }, Err(Error::NoSpace {}));
        }
        assert!(done.forgotten.len() <= CLIENTS_MAX);
        assert!(done.may_have_forgotten(CallId { client: 100, number: 1 }));
    }
}
