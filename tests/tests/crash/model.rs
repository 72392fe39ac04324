//! What may be found under a name after a crash.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a block: not a multiple of the file system's, so that neighbours share blocks there.
pub(crate) const BLOCK_BYTES: usize = 12_000;
/// Blocks of a file.
pub(crate) const BLOCKS: u64 = 24;
const WORD_BYTES: usize = 8;

/// What a name is known to be.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    Absent,
    Directory,
    File(FileModel),
}

/// What each block of a file may hold: one version once that is durable, several until then.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileModel {
    /// Told from its predecessors under the same name.
    birth: u64,
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Debug)]
struct Block {
    /// Each word has one of these versions; 0 is a hole, or past the end of the file.
    versions: BTreeSet<u64>,
    /// Written, and not committed yet.
    newest: Option<u64>,
}

impl FileModel {
    pub(crate) fn new(birth: u64) -> Self {
        Self { birth, blocks: BTreeMap::new() }
    }

    /// `version` of a block is written, or perhaps written in part.
    pub(crate) fn write(&mut self, block: u64, version: u64) {
        let hole = || Block { versions: [0].into(), newest: None };
        let block = self.blocks.entry(block).or_insert_with(hole);
        block.versions.insert(version);
        block.newest = Some(version);
    }

    /// All that was written is durable.
    pub(crate) fn commit(&mut self) {
        for block in self.blocks.values_mut() {
            if let Some(newest) = block.newest.take() {
                block.versions = [newest].into();
            }
        }
    }

    /// The server has crashed and this is what it has kept: what is lost does not come back, and
    /// what is there stays.
    pub(crate) fn crashed(&mut self, bytes: &[u8]) {
        for (&index, block) in &mut self.blocks {
            let start = bytes.len().min(index as usize * BLOCK_BYTES);
            let end = bytes.len().min(start + BLOCK_BYTES);
            let words = bytes[start..end].chunks_exact(WORD_BYTES);
            let versions = words.map(|word| parts(u64::from_le_bytes(word.try_into().unwrap()))[2]);
            let past_end = (end - start < BLOCK_BYTES).then_some(0);
            *block = Block { versions: versions.chain(past_end).collect(), newest: None };
        }
    }

    /// The bytes of a block.
    pub(crate) fn bytes(&self, block: u64, version: u64) -> Vec<u8> {
        word(self.birth, block, version).to_le_bytes().repeat(BLOCK_BYTES / WORD_BYTES)
    }

    /// What is wrong with these bytes of the file, if anything: a durable one is missing, or one
    /// was never written there.
    pub(crate) fn flaw(&self, bytes: &[u8]) -> Option<String> {
        let committed = self.blocks.iter().filter(|(_, block)| !block.versions.contains(&0));
        let committed = committed.map(|(block, _)| block + 1).max().unwrap_or(0);
        let length = bytes.len();
        if length < committed as usize * BLOCK_BYTES {
            return Some(format!("{length} bytes are left of {committed} committed blocks"));
        }
        (0..)
            .zip(bytes.chunks(BLOCK_BYTES))
            .find_map(|(block, bytes)| self.block_flaw(block, bytes))
    }

    fn block_flaw(&self, block: u64, bytes: &[u8]) -> Option<String> {
        let Some(Block { versions, .. }) = self.blocks.get(&block) else {
            let written = bytes.iter().any(|&byte| byte != 0);
            return written.then(|| format!("block {block} was never written"));
        };
        // A file may end within a word that was not committed.
        bytes.chunks_exact(WORD_BYTES).enumerate().find_map(|(index, bytes)| {
            let found = u64::from_le_bytes(bytes.try_into().unwrap());
            let allowed = versions.iter().any(|&version| found == word(self.birth, block, version));
            (!allowed).then(|| {
                let [birth, block_found, version] = parts(found);
                format!(
                    "word {index} of block {block} of file {}: version {version} of block \
                     {block_found} of file {birth}, not {versions:?}",
                    self.birth
                )
            })
        })
    }
}

const VERSION_BITS: u32 = 24;
const BLOCK_BITS: u32 = 8;

/// Eight bytes that tell where they belong; version 0 is a hole.
fn word(birth: u64, block: u64, version: u64) -> u64 {
    if version == 0 { 0 } else { (birth << BLOCK_BITS | block) << VERSION_BITS | version }
}

fn parts(word: u64) -> [u64; 3] {
    let place = word >> VERSION_BITS;
    [place >> BLOCK_BITS, place % (1 << BLOCK_BITS), word % (1 << VERSION_BITS)]
}

#[test]
fn the_model_finds_what_is_lost_or_in_the_wrong_place() {
    let mut file = FileModel::new(5);
    file.write(0, 1);
    file.commit();
    file.write(0, 2);
    file.write(1, 3);
    let [first, second, third] = [(0, 1), (0, 2), (1, 3)].map(|(b, v)| file.bytes(b, v));
    let mixed = [&first[..6000], &second[6000..]].concat();
    for good in [&first, &second, &mixed, &[&first[..], &third[..100]].concat()] {
        assert_eq!(file.flaw(good), None);
    }
    let other = FileModel::new(4).bytes(0, 1);
    for bad in [&first[..11_999], &third[..], &other[..], &[0; BLOCK_BYTES]] {
        assert!(file.flaw(bad).is_some());
    }
    let mut after = file.clone();
    after.crashed(&first);
    after.commit();
    assert_eq!(after.flaw(&first), None, "a commit says nothing of what a crash has taken");
    assert!(after.flaw(&second).is_some(), "it does not come back");
    file.commit();
    assert!(file.flaw(&[&first[..], &third[..]].concat()).is_some(), "the old version is gone");
    assert!(file.flaw(&second).is_some(), "a committed block is missing");
}
