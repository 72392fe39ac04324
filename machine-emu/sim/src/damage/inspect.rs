//! Comparing a volume with the model: names, lists and blocks of files.

use fileio::protocol::{Credentials, Error, Handle, Lookup, Read, handle_of};

use super::{DamageWorkload, PIECE, ReadRule, StampedFile, is_damage, version_of};
use crate::content::BLOCK;
use crate::harness::CallFailure;
use crate::names::{NameKey, list};

impl DamageWorkload<'_> {
    /// The blocks of a file that can be read.
    pub(super) async fn read(
        &self,
        client: u32,
        file: &StampedFile,
    ) -> Result<FoundBlocks, CallFailure> {
        let handle = file.handle.expect("its creation was answered");
        let mut found = FoundBlocks { bytes: 0, blocks: Vec::new(), damaged: false };
        while found.blocks.len() < file.blocks.len() {
            let first = found.blocks.len();
            let count = PIECE.min(file.blocks.len() - first);
            match self.read_piece(client, handle, first, count).await {
                Ok(data) => found.add(first, count, &data),
                Err(failure) if is_damage(failure) => {
                    for block in first..first + count {
                        match self.read_piece(client, handle, block, 1).await {
                            Ok(data) => found.add(block, 1, &data),
                            Err(failure) if is_damage(failure) => found.add_damage(),
                            Err(failure) => return Err(failure),
                        }
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(found)
    }

    async fn read_piece(
        &self,
        client: u32,
        file: Handle,
        first: usize,
        count: usize,
    ) -> Result<Vec<u8>, CallFailure> {
        let (offset, length) = (first as u64 * BLOCK, (count as u64 * BLOCK) as u32);
        let call = Read { who: Credentials::root(), file, offset, length };
        Ok(self.harness.ask(client, call).await?.data.concat())
    }

    pub(super) async fn check_all(&self, rule: ReadRule) {
        self.inspect_names(rule).await;
        self.inspect_files(rule).await;
    }

    async fn inspect_names(&self, rule: ReadRule) {
        let keys: Vec<NameKey> = self.model.borrow().keys().cloned().collect();
        for key in keys {
            let found = self.harness.within_limit("a look-up", self.look_up(&key, rule)).await;
            let Some(found) = found else { continue };
            let entry = self.model.borrow()[&key].clone();
            let possible = entry.named.after_crash();
            let right = possible.contains(&found) || rule == ReadRule::Older;
            assert!(right, "{key:?} names {found:?}, possible were {possible:?}");
            if rule == ReadRule::Well {
                self.change(&key, |entry| {
                    entry.named.flush(found);
                    entry.shunned = false;
                });
            }
        }
        for index in 0..self.directories.len() {
            self.harness.within_limit("a list", self.inspect_list(index, rule)).await;
        }
    }

    /// The file that `key` names, if that can be determined.
    async fn look_up(&self, key: &NameKey, rule: ReadRule) -> Option<Option<usize>> {
        let (directory, name) = (self.directories[key.0], key.1.clone());
        let lookup = Lookup { who: Credentials::root(), directory, name };
        match self.harness.ask(0, lookup).await {
            Ok(attributes) => Some(Some(self.identify(key, handle_of(&attributes)))),
            Err(CallFailure::Refused(Error::NotFound {})) => Some(None),
            Err(CallFailure::Refused(Error::Damaged {})) if rule.allows_damaged_names() => None,
            // A directory that is not there yet.
            Err(CallFailure::Refused(Error::Stale {})) if rule == ReadRule::Older => None,
            Err(failure) => panic!("{key:?} cannot be looked up: {failure:?}"),
        }
    }

    /// The file of this handle: one of those that had this name. A handle that is not known yet is
    /// that of a creation without an answer, of one that this name may show if there are several.
    fn identify(&self, key: &NameKey, handle: Handle) -> usize {
        self.change(key, |entry| {
            let known = entry.files.iter().position(|file| file.handle == Some(handle));
            let possible = entry.named.after_crash();
            let mut unanswered: Vec<usize> = (0..entry.files.len())
                .filter(|&place| entry.files[place].handle.is_none())
                .collect();
            unanswered.sort_by_key(|&place| !possible.contains(&Some(place)));
            let place = known.or_else(|| unanswered.first().copied());
            let place = place.unwrap_or_else(|| panic!("{key:?} names the unknown {handle:?}"));
            entry.files[place].handle = Some(handle);
            place
        })
    }

    async fn inspect_list(&self, index: usize, rule: ReadRule) {
        let listed = match list(self.harness, 0, self.directories[index], 50).await {
            Ok(listed) => listed,
            Err(Error::Damaged {}) if rule.allows_damaged_names() => return,
            Err(Error::Stale {}) if rule == ReadRule::Older => return,
            Err(error) => panic!("directory {index} cannot be listed: {error}"),
        };
        for (name, _, handle) in listed {
            if index == 0 && self.directories.contains(&handle) {
                continue;
            }
            let key = (index, name);
            assert!(
                self.model.borrow().contains_key(&key),
                "{key:?} is listed and was never created"
            );
            let place = self.identify(&key, handle);
            let entry = self.model.borrow()[&key].clone();
            let right = rule == ReadRule::Older || entry.named.after_crash().contains(&Some(place));
            assert!(right, "{key:?} is listed as {place}");
        }
    }

    pub(super) async fn inspect_files(&self, rule: ReadRule) {
        let keys: Vec<NameKey> = self.model.borrow().keys().cloned().collect();
        for key in keys {
            let files = self.model.borrow()[&key].files.clone();
            for (place, file) in files.into_iter().enumerate() {
                if file.handle.is_some() {
                    let checking = self.inspect_file(&key, place, file, rule);
                    self.harness.within_limit("a check", checking).await;
                }
            }
        }
    }

    async fn inspect_file(&self, key: &NameKey, place: usize, file: StampedFile, rule: ReadRule) {
        let named = self.model.borrow()[key].named.clone();
        let found = match self.read(0, &file).await {
            Ok(found) => found,
            Err(CallFailure::Refused(Error::Stale {})) => {
                let kept = named.after_crash().iter().all(|named| *named == Some(place));
                assert!(rule == ReadRule::Older || !kept, "{key:?} is there, its file is gone");
                return;
            }
            Err(failure) => panic!("{key:?} cannot be read: {failure:?}"),
        };
        assert!(rule != ReadRule::Well || !found.damaged, "{key:?} is damaged, its disks are well");
        let whole = file.blocks.len() as u64 * BLOCK;
        let long = found.damaged || found.bytes == whole || !file.whole || rule == ReadRule::Older;
        assert!(long, "{key:?} has {} bytes, not {whole}", found.bytes);
        for ((block, versions), bytes) in (0..).zip(&file.blocks).zip(found.blocks) {
            let Some(bytes) = bytes else { continue };
            let version = version_of(&bytes, file.number, block);
            let version = version.unwrap_or_else(|wrong| panic!("{key:?}: {wrong}"));
            let right = match rule {
                ReadRule::Older => version <= *versions.last(),
                ReadRule::Well | ReadRule::DataDamaged | ReadRule::Damaged => {
                    versions.after_crash().contains(&version)
                }
            };
            let possible = versions.after_crash();
            assert!(right, "{key:?}, block {block}: version {version}, not one of {possible:?}");
            if rule == ReadRule::Well {
                self.change(key, |entry| {
                    entry.files[place].blocks[block as usize].flush(version);
                });
            }
        }
    }
}

/// What was read of a file.
pub(super) struct FoundBlocks {
    pub(super) bytes: u64,
    /// What could be read; holes, and what lies behind the end, are zeros.
    pub(super) blocks: Vec<Option<Vec<u8>>>,
    pub(super) damaged: bool,
}

impl FoundBlocks {
    /// `count` blocks from `first` on were asked for, and `data` came.
    fn add(&mut self, first: usize, count: usize, data: &[u8]) {
        assert!(data.len().is_multiple_of(BLOCK as usize), "a file ends within a block");
        self.bytes = self.bytes.max(first as u64 * BLOCK + data.len() as u64);
        for index in 0..count {
            let block = data.chunks(BLOCK as usize).nth(index);
            self.blocks.push(Some(block.map_or(vec![0; BLOCK as usize], <[u8]>::to_vec)));
        }
    }

    fn add_damage(&mut self) {
        self.damaged = true;
        self.blocks.push(None);
    }
}
