//! Listing a directory: `opendir` to `closedir`.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_long};
use std::mem;
use std::sync::Arc;

use client::{Kind, ReadDir};
use runtime::{ClientHandle, wait};

use crate::failure::{CApiFailure, answer};
use crate::mount::MountedVolume;
use crate::{arguments, fork};

/// A directory being listed. One thread at a time may use it.
#[derive(Debug)]
pub struct DirectoryStream {
    mount: Arc<MountedVolume>,
    path: Vec<u8>,
    /// Inode numbers of `.` and `..`.
    dots: [u64; 2],
    /// Where the next entry is looked for.
    position: u64,
    pages: ReadDir<ClientHandle>,
    /// Entries that came and were not returned yet.
    waiting: VecDeque<StreamEntry>,
    /// The entry that was returned last: C keeps a pointer to it.
    last: libc::dirent,
}

#[derive(Debug)]
struct StreamEntry {
    name: Vec<u8>,
    ino: u64,
    kind: Kind,
    cookie: u64,
}

/// Positions after `.` and `..`; the file system keeps them free (`fileio`, `DirectoryEntry`).
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

impl DirectoryStream {
    fn open(mount: Arc<MountedVolume>, path: &[u8]) -> Result<Self, CApiFailure> {
        let pages = wait(mount.volume.file_system().read_dir(path))?;
        let inode = |path: &[u8]| mount.volume.metadata(path).map(|attributes| attributes.ino);
        let dots = [inode(path)?, inode(&[path, b"/.."].concat())?];
        Ok(Self {
            path: path.to_vec(),
            dots,
            position: 0,
            pages,
            waiting: VecDeque::new(),
            // SAFETY: a struct of numbers, for which zero is a value.
            last: unsafe { mem::zeroed() },
            mount,
        })
    }

    fn next(&mut self) -> Result<Option<StreamEntry>, CApiFailure> {
        let dot = |name: &[u8], ino, cookie| {
            Some(StreamEntry { name: name.to_vec(), ino, kind: Kind::Directory {}, cookie })
        };
        match self.position {
            0 => return Ok(dot(b".", self.dots[0], AFTER_DOT)),
            AFTER_DOT => return Ok(dot(b"..", self.dots[1], AFTER_DOTDOT)),
            _ => {}
        }
        if self.waiting.is_empty()
            && let Some(page) = wait(self.pages.next_page())?
        {
            self.waiting.extend(page.into_iter().map(|entry| StreamEntry {
                name: entry.name.as_bytes().to_vec(),
                ino: entry.handle.ino,
                kind: entry.kind,
                cookie: entry.cookie,
            }));
        }
        Ok(self.waiting.pop_front())
    }

    fn seek(&mut self, position: u64) -> Result<(), CApiFailure> {
        let pages = wait(self.mount.volume.file_system().read_dir(&self.path))?;
        self.pages = if position > AFTER_DOTDOT { pages.after(position) } else { pages };
        self.waiting.clear();
        self.position = position;
        Ok(())
    }

    /// Keeps `entry` where C may look at it.
    fn show(&mut self, entry: &StreamEntry) -> *mut libc::dirent {
        let shown = &mut self.last;
        shown.d_ino = entry.ino;
        shown.d_off = entry.cookie.cast_signed();
        // The whole struct, as Linux itself has it.
        shown.d_reclen = mem::size_of::<libc::dirent>() as u16;
        // The kinds of entries are those of the mode, in four bits.
        shown.d_type = (client::kind::kind_bits(entry.kind) >> 12) as u8;
        // A name has at most 255 bytes, and a zero byte has room after it.
        let name = &entry.name[..entry.name.len().min(shown.d_name.len() - 1)];
        for (out, byte) in shown.d_name.iter_mut().zip(name.iter().chain(&[0])) {
            *out = byte.cast_signed();
        }
        &raw mut *shown
    }
}

/// Does `work` on an open directory.
unsafe fn with<T>(
    directory: *mut DirectoryStream,
    work: impl FnOnce(&mut DirectoryStream) -> Result<T, CApiFailure>,
) -> Result<T, CApiFailure> {
    // SAFETY: C vouches for an open directory that no other thread uses now.
    let directory = unsafe { arguments::place(directory, "the directory") }?;
    fork::check(directory.mount.generation)?;
    work(directory)
}

/// Opens the directory `path` to list it. Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_opendir(
    mount: *mut MountedVolume,
    path: *const c_char,
) -> *mut DirectoryStream {
    answer(std::ptr::null_mut(), || {
        let mount = MountedVolume::at(mount)?;
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        Ok(Box::into_raw(Box::new(DirectoryStream::open(mount, path)?)))
    })
}

/// The next entry, `.` and `..` among them; NULL at the end, and on failure, which sets `errno`.
/// Valid until the next call for this directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_readdir(directory: *mut DirectoryStream) -> *mut libc::dirent {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `with`.
        unsafe {
            with(directory, |directory| {
                let Some(entry) = directory.next()? else { return Ok(std::ptr::null_mut()) };
                directory.position = entry.cookie;
                Ok(directory.show(&entry))
            })
        }
    })
}

/// Where the next entry is, for mdfs_seekdir: valid also while entries come and go, and in another
/// listing of the same directory. -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_telldir(directory: *mut DirectoryStream) -> c_long {
    // SAFETY: see `with`.
    answer(-1, || {
        arguments::signed(unsafe { with(directory, |directory| Ok(directory.position)) }?)
    })
}

/// Goes on from a place of mdfs_telldir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_seekdir(directory: *mut DirectoryStream, position: c_long) {
    answer((), || {
        let position = arguments::offset(position)?;
        // SAFETY: see `with`.
        unsafe { with(directory, |directory| directory.seek(position)) }
    });
}

/// Starts again, and sees what has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_rewinddir(directory: *mut DirectoryStream) {
    // SAFETY: the same promises.
    unsafe { mdfs_seekdir(directory, 0) }
}

/// Ends a listing. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_closedir(directory: *mut DirectoryStream) -> c_int {
    answer(-1, || {
        // SAFETY: see `with`; it came from a box.
        let directory = unsafe {
            arguments::place(directory, "the directory")?;
            Box::from_raw(directory)
        };
        if let Err(failure) = fork::check(directory.mount.generation) {
            // It shares what only the parent may end.
            mem::forget(directory);
            return Err(failure);
        }
        Ok(0)
    })
}
