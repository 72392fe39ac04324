//! What is printed about files, as text or as JSON.

use client::{Attributes, Kind, Time};
use serde::Serialize;

use crate::size::human;
use crate::time::date;

/// A file as JSON has it.
#[derive(Debug, Serialize)]
pub struct FileRecord {
    /// The name or path; bytes that are not UTF-8 are replaced.
    name: String,
    kind: &'static str,
    /// Where a symbolic link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    size_bytes: u64,
    used_bytes: u64,
    /// Permission bits, octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
    accessed: String,
    modified: String,
    changed: String,
    created: String,
    /// If it is not the volume's.
    #[serde(skip_serializing_if = "Option::is_none")]
    redundancy: Option<String>,
    inode: u64,
    generation: u64,
}

impl FileRecord {
    /// The file `name` with its attributes and, for a symbolic link, its target.
    pub fn new(name: &[u8], found: &Attributes, target: Option<&[u8]>) -> Self {
        Self {
            name: lossy(name),
            kind: kind(found.kind),
            target: target.map(lossy),
            size_bytes: found.size,
            used_bytes: found.used_bytes,
            mode: format!("{:04o}", found.mode),
            links: found.links,
            uid: found.uid,
            gid: found.gid,
            device: is_device(found.kind).then_some([found.major, found.minor]),
            accessed: stamp(found.atime),
            modified: stamp(found.mtime),
            changed: stamp(found.ctime),
            created: stamp(found.birth),
            redundancy: found.redundancy.map(|class| class.to_string()),
            inode: found.ino,
            generation: found.generation,
        }
    }
}

/// Bytes as text; what is not UTF-8 is replaced.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A name as it is printed: on a terminal, what would control it is replaced.
pub fn printable(name: &[u8], terminal: bool) -> Vec<u8> {
    if !terminal {
        return name.to_vec();
    }
    lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into()
}

/// `2026-01-31T23:59:58.000000001Z`.
fn stamp(time: Time) -> String {
    format!("{}.{:09}Z", date(time).replace(' ', "T"), time.nanos)
}

/// The kind in words.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File {} => "file",
        Kind::Directory {} => "directory",
        Kind::Symlink {} => "symbolic link",
        Kind::BlockDevice {} => "block device",
        Kind::CharDevice {} => "character device",
        Kind::Fifo {} => "pipe",
        Kind::Socket {} => "socket",
    }
}

/// Whether this is a block or character device.
pub fn is_device(kind: Kind) -> bool {
    matches!(kind, Kind::BlockDevice {} | Kind::CharDevice {})
}

/// Kind and permissions as `ls -l` has them: `drwxr-sr-t`.
pub fn permissions(found: &Attributes) -> String {
    let first = match found.kind {
        Kind::File {} => '-',
        Kind::Directory {} => 'd',
        Kind::Symlink {} => 'l',
        Kind::BlockDevice {} => 'b',
        Kind::CharDevice {} => 'c',
        Kind::Fifo {} => 'p',
        Kind::Socket {} => 's',
    };
    let mut text = String::from(first);
    // The shift of each triple, the bit that changes its `x`, and into what.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = found.mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (bits & 1 != 0, found.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Rows with aligned columns, as in `ls -l`; `right` says which columns stand on the right. The
/// last column is not filled up.
pub fn table(rows: &[Vec<Vec<u8>>], right: &[bool]) -> Vec<u8> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |cell: &[u8]| String::from_utf8_lossy(cell).chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|c| width(c)).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut out = Vec::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let fill = vec![b' '; widths[column] - width(cell)];
            let last = column + 1 == row.len();
            match right.get(column) {
                Some(true) => out.extend([fill, cell.clone()].concat()),
                _ if last => out.extend(cell),
                _ => out.extend([cell.clone(), fill].concat()),
            }
            out.push(if last { b'\n' } else { b' ' });
        }
    }
    out
}

/// A file of a listing.
pub struct ListedFile {
    /// Its name.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: Attributes,
    /// Where it points, if it is a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// The columns of a [`list_row`] that are aligned right.
pub const LIST_ALIGNED_RIGHT: [bool; 7] = [false, true, true, true, true, false, false];

/// The row of `ls -l` for a file.
pub fn list_row(file: &ListedFile, human_sizes: bool, terminal: bool) -> Vec<Vec<u8>> {
    let found = &file.attributes;
    let size = match () {
        () if is_device(found.kind) => format!("{}, {}", found.major, found.minor),
        () if human_sizes => human(found.size),
        () => found.size.to_string(),
    };
    let mut name = printable(&file.name, terminal);
    if let Some(target) = &file.target {
        name.extend(b" -> ");
        name.extend(printable(target, terminal));
    }
    let cells = [
        permissions(found),
        found.links.to_string(),
        found.uid.to_string(),
        found.gid.to_string(),
        size,
        date(found.mtime),
    ];
    cells.into_iter().map(String::into_bytes).chain([name]).collect()
}

/// The lines of `stat` for a file.
pub fn describe(path: &[u8], found: &Attributes, target: Option<&[u8]>, terminal: bool) -> String {
    let name = lossy(&printable(path, terminal));
    let mut lines = vec![format!("    path  {name}"), format!("    kind  {}", kind(found.kind))];
    if let Some(target) = target {
        let target = lossy(&printable(target, terminal));
        lines.push(format!("  target  {target}"));
    }
    if is_device(found.kind) {
        lines.push(format!("  device  {}, {}", found.major, found.minor));
    }
    lines.extend(numeric_lines(found));
    lines.join("\n") + "\n"
}

fn numeric_lines(found: &Attributes) -> [String; 8] {
    let (size, used_bytes) = (human(found.size), human(found.used_bytes));
    [
        format!("    size  {} bytes ({size}), {used_bytes} on disk", found.size),
        format!("    mode  {:04o} {}", found.mode, permissions(found)),
        format!("   owner  {}  group {}  links {}", found.uid, found.gid, found.links),
        format!("   inode  {}  generation {}", found.ino, found.generation),
        format!("accessed  {} UTC", date(found.atime)),
        format!("modified  {} UTC", date(found.mtime)),
        format!(" changed  {} UTC", date(found.ctime)),
        format!(" created  {} UTC", date(found.birth)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(|cell| cell.as_bytes().to_vec()).to_vec();
        let rows = [row(["a", "1", "x"]), row(["bcé", "100", "yy"])];
        let text = String::from_utf8(table(&rows, &[false, true, false])).unwrap();
        assert_eq!(text, "a     1 x\nbcé 100 yy\n");
        assert_eq!(table(&[], &[]), b"");
    }

    #[test]
    fn a_name_cannot_control_the_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\n", true), b"a?[2Jb?");
        assert_eq!(printable(b"a\x1b\xff", false), b"a\x1b\xff");
    }
}
