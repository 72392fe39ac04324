//! Who else on the host may touch the files of a volume (ADR 76).
//!
//! The volume's directory may be entered by all, since its socket is in it, but neither listed nor
//! changed. What it holds besides the socket is for its owner only: file permissions inside the
//! volume would mean nothing to a user who can read the disks.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Of the volume's directory.
const ENTERED_MODE: u32 = 0o711;
/// Of directories in it.
const FOLDER_MODE: u32 = 0o700;
/// Of files in it.
const FILE_MODE: u32 = 0o600;
/// Permission bits that are shown.
const MODE_BITS: u32 = 0o777;

/// Files that one message names, at most.
const NAMED_MAX: usize = 16;

/// The kinds of files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileClass {
    /// The volume's directory.
    Top,
    /// A directory in it.
    Folder,
    /// A file in it.
    File,
}

impl FileClass {
    fn mode(self) -> u32 {
        match self {
            Self::Top => ENTERED_MODE,
            Self::Folder => FOLDER_MODE,
            Self::File => FILE_MODE,
        }
    }
}

/// A file that other users can touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedFile {
    path: PathBuf,
    mode: u32,
    wanted: u32,
}

/// Files of a volume that other users of the host can read or change. It names them, and the
/// command that mends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExposedFiles(Vec<ExposedFile>);

impl ExposedFiles {
    /// Adds `path`, if it exists and more users may touch it than its class allows. Follows links;
    /// leaves devices alone, whose modes are the host's affair.
    pub(crate) fn inspect(&mut self, path: &Path, class: FileClass) -> io::Result<()> {
        let metadata = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata?,
        };
        let (mode, wanted) = (metadata.permissions().mode() & MODE_BITS, class.mode());
        let is_ours = metadata.is_file() || metadata.is_dir();
        if is_ours && mode & !wanted & !FOLDER_MODE != 0 {
            self.0.push(ExposedFile { path: path.to_owned(), mode, wanted });
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for ExposedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        write!(
            f,
            "other users of this host can read or change {} (mode {:03o})",
            first.path.display(),
            first.mode
        )?;
        if self.0.len() > 1 {
            write!(f, " and {} more", self.0.len() - 1)?;
        }
        f.write_str("; run `")?;
        let named = &self.0[..self.0.len().min(NAMED_MAX)];
        for (index, same) in named.chunk_by(|one, next| one.wanted == next.wanted).enumerate() {
            let and = if index > 0 { " && " } else { "" };
            write!(f, "{and}chmod {:o}", same[0].wanted)?;
            for file in same {
                write!(f, " {}", shell_word(&file.path))?;
            }
        }
        f.write_str("`, then start again")
    }
}

/// `path` as a shell takes it.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:@".contains(letter);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Makes a directory of a volume, with its parents. One that is there and empty is taken over; one
/// that holds something keeps its mode, which [`ExposedFiles`] judges.
pub(crate) fn make_directory(path: &Path, class: FileClass) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|_| class == FileClass::Top) {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            if fs::read_dir(path)?.next().is_some() {
                return Ok(());
            }
        }
        Err(error) => return Err(error),
    }
    // The mask of the process took bits away.
    fs::set_permissions(path, Permissions::from_mode(class.mode()))
}

/// Options to open a file of a volume, which is made if it is not there.
pub(crate) fn file_options() -> OpenOptions {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(FILE_MODE);
    options
}

/// Takes a file of its owner over as one of a volume.
pub(crate) fn restrict(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if mode & MODE_BITS & !FOLDER_MODE == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(FILE_MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & MODE_BITS
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_message_names_the_files_and_the_command() {
        let place = tempfile::TempDir::new().unwrap();
        let names = ["a", "b c", "d'e"].map(|name| place.path().join(name));
        let mut exposed = ExposedFiles::default();
        for name in &names {
            fs::write(name, b"").unwrap();
            set_mode(name, 0o644);
            exposed.inspect(name, FileClass::File).unwrap();
        }
        set_mode(place.path(), 0o755);
        exposed.inspect(place.path(), FileClass::Top).unwrap();
        exposed.inspect(&place.path().join("missing"), FileClass::File).unwrap();
        let text = exposed.to_string();
        let at = place.path().display().to_string();
        assert!(text.contains(&format!("{at}/a (mode 644) and 3 more;")), "{text}");
        let command = format!(r"`chmod 600 {at}/a '{at}/b c' '{at}/d'\''e' && chmod 711 {at}`");
        assert!(text.contains(&command), "{text}");
    }

    #[test]
    fn each_class_has_a_widest_mode() {
        let place = tempfile::TempDir::new().unwrap();
        let path = place.path().join("some");
        fs::create_dir(&path).unwrap();
        for (class, allowed, refused) in [
            (FileClass::Top, [0o711, 0o700], [0o755, 0o731]),
            (FileClass::Folder, [0o700, 0o500], [0o711, 0o740]),
            (FileClass::File, [0o600, 0o700], [0o640, 0o602]),
        ] {
            for (mode, is_exposed) in allowed
                .map(|mode| (mode, false))
                .into_iter()
                .chain(refused.map(|mode| (mode, true)))
            {
                set_mode(&path, mode);
                let mut exposed = ExposedFiles::default();
                exposed.inspect(&path, class).unwrap();
                assert_eq!(!exposed.is_empty(), is_exposed, "{class:?} {mode:o}");
            }
        }
    }

    #[test]
    fn an_empty_directory_is_taken_over_and_a_used_one_is_not() {
        let place = tempfile::TempDir::new().unwrap();
        let [new, empty, used] = ["x/new", "empty", "used"].map(|name| place.path().join(name));
        for made in [&empty, &used] {
            fs::create_dir(made).unwrap();
            set_mode(made, 0o755);
        }
        fs::write(used.join("a"), b"").unwrap();
        for path in [&new, &empty, &used] {
            make_directory(path, FileClass::Top).unwrap();
        }
        assert_eq!([mode(&new), mode(&empty), mode(&used)], [0o711, 0o711, 0o755]);
    }

    #[test]
    fn a_device_is_left_alone() {
        let mut exposed = ExposedFiles::default();
        exposed.inspect(Path::new("/dev/null"), FileClass::File).unwrap();
        assert!(exposed.is_empty());
    }
}
