//! What the cells of a file may hold.

/// Bytes of a cell: blocks have whole ones and parts of some.
pub(super) const CELL_BYTES: usize = 1_000;

/// One change of some cells.
#[derive(Clone, Copy, Debug)]
struct CellWrite {
    /// The number in each word; 0 if they became zeros.
    version: u64,
    client: u64,
    begun: u64,
    answered: Option<u64>,
    /// Its client has died before a sync: it may be there or not.
    is_in_doubt: bool,
    /// It was synced, or durable when it was answered.
    is_durable: bool,
}

/// The changes of one cell.
type CellHistory = Vec<CellWrite>;

/// The changes of one file.
#[derive(Debug)]
pub(super) struct FileHistory {
    cells: Vec<CellHistory>,
    /// A sync has reported a loss: anything may be there.
    is_lost: bool,
}

/// A change that is under way: its place in the history of each cell.
#[derive(Debug)]
pub(super) struct CellChanges(Vec<(usize, usize)>);

impl FileHistory {
    pub(super) fn new(cells: usize) -> Self {
        Self { cells: vec![Vec::new(); cells], is_lost: false }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.cells.len());
    }

    pub(super) fn cells(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn begin(
        &mut self,
        cells: &[usize],
        version: u64,
        client: u64,
        is_durable: bool,
        begun: u64,
    ) -> CellChanges {
        let write =
            CellWrite { version, client, begun, answered: None, is_in_doubt: false, is_durable };
        let places = cells.iter().map(|&cell| {
            self.cells[cell].push(write);
            (cell, self.cells[cell].len() - 1)
        });
        CellChanges(places.collect())
    }

    pub(super) fn answered(&mut self, changes: &CellChanges, now: u64) {
        for &(cell, place) in &changes.0 {
            self.cells[cell][place].answered = Some(now);
        }
    }

    /// All that `client` has written is durable.
    pub(super) fn synced(&mut self, client: u64) {
        for write in self.cells.iter_mut().flatten() {
            write.is_durable |= write.client == client && write.answered.is_some();
        }
    }

    /// What `client` has not synced may be lost.
    pub(super) fn die(&mut self, client: u64) {
        for write in self.cells.iter_mut().flatten() {
            write.is_in_doubt |= write.client == client && !write.is_durable;
        }
    }

    pub(super) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// `bytes` were read from the cell `first` on. If `reader` did it, what others have not synced
    /// may be missing: it was lost, and is not sent again yet.
    pub(super) fn check(
        &self,
        bytes: &[u8],
        first: usize,
        reader: Option<u64>,
        begun: u64,
        file: usize,
    ) {
        if self.is_lost {
            return;
        }
        for (at, history) in self.cells.iter().enumerate().skip(first) {
            let start = (at - first) * CELL_BYTES;
            let cell = bytes.get(start..(start + CELL_BYTES).min(bytes.len())).unwrap_or_default();
            if reader.is_some() && cell.len() < CELL_BYTES {
                // Shorter, or past what was read.
                continue;
            }
            let mut found: Vec<u64> = cell
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .collect();
            found.dedup();
            assert!(found.len() <= 1, "cell {at} of file {file} has several versions: {found:?}");
            let version = found.first().copied().unwrap_or(0);
            check_cell(history, version, reader, begun).unwrap_or_else(|late| {
                panic!("cell {at} of file {file} has {version}, not {late}")
            });
        }
    }
}

/// Is `version` one that a read at `begun` may find? Else what it should have been.
fn check_cell(
    history: &CellHistory,
    version: u64,
    reader: Option<u64>,
    begun: u64,
) -> Result<(), String> {
    // Answered before the read, and it cannot be missing.
    let counts = |write: &&CellWrite| {
        let is_known = reader.is_none_or(|reader| reader == write.client || write.is_durable);
        !write.is_in_doubt && is_known && write.answered.is_some_and(|at| at < begun)
    };
    let replaces = |later: &CellWrite, at: u64| later.begun > at;
    // Zeros may be the first content, or of any punch or cut.
    let first_is_there = version == 0 && !history.iter().any(|write| counts(&write));
    let is_there = history.iter().filter(|write| write.version == version).any(|write| {
        let Some(answered) = write.answered else { return true };
        !history.iter().filter(counts).any(|later| replaces(later, answered))
    });
    if first_is_there || is_there {
        return Ok(());
    }
    let last = history.iter().filter(counts).max_by_key(|write| write.begun);
    Err(format!("{:?}; all: {history:?}", last.map(|write| write.version)))
}
