//! Looking: at one name, at one file, at a directory page by page.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use nfs3_types::nfs3::{
    GETATTR3args, GETATTR3res, LOOKUP3args, LOOKUP3res, NFS_PROGRAM, Nfs3Option, Nfs3Result,
    READDIR3args, READDIR3res, READDIRPLUS3args, READDIRPLUS3res, cookieverf3, diropargs3,
    filename3, ftype3, nfs_fh3, nfsstat3,
};

use super::link::HostLink;
use crate::harness::WorkResult;

/// A file by its handle; a directory or not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct V3File {
    pub(super) handle: Vec<u8>,
    pub(super) is_directory: bool,
}

impl std::fmt::Debug for V3File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.is_directory { "directory" } else { "file" };
        write!(f, "{what} {:08x}", runtime::hash::xxh3(&self.handle) as u32)
    }
}

/// A name in a directory.
pub(super) fn at<'a>(dir: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: filename3::from(name) }
}

pub(super) fn handle_of(named: &V3File) -> nfs_fh3 {
    nfs_fh3 { data: named.handle.clone().into() }
}

pub(super) fn bytes_of(handle: &nfs_fh3) -> Vec<u8> {
    handle.data.as_ref().to_vec()
}

/// The handle of a name, if there is one.
pub(super) async fn find(
    link: &HostLink<'_>,
    dir: &nfs_fh3,
    name: &[u8],
) -> WorkResult<Option<nfs_fh3>> {
    let arguments = LOOKUP3args { what: at(dir, name) };
    let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments);
    let found: LOOKUP3res = link.ask(&mut call).await?;
    match found {
        Nfs3Result::Ok(found) => Ok(Some(found.object)),
        Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(None),
        Nfs3Result::Err(error) => panic!("{name:?} cannot be looked up: {error:?}"),
    }
}

/// What a handle is, and how many links it has.
pub(super) async fn named_by(link: &HostLink<'_>, handle: &nfs_fh3) -> WorkResult<(V3File, u32)> {
    let arguments = GETATTR3args { object: handle.clone() };
    let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
    let looked: GETATTR3res = link.ask(&mut call).await?;
    match looked {
        Nfs3Result::Ok(looked) => {
            let is_directory = looked.obj_attributes.type_ == ftype3::NF3DIR;
            let named = V3File { handle: bytes_of(handle), is_directory };
            Ok((named, looked.obj_attributes.nlink))
        }
        Nfs3Result::Err(error) => panic!("a name leads to a missing inode: {error:?}"),
    }
}

/// When a directory changed last, as kernels go by it.
pub(super) async fn state_of(link: &HostLink<'_>, handle: &nfs_fh3) -> WorkResult<u64> {
    let arguments = GETATTR3args { object: handle.clone() };
    let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
    let looked: GETATTR3res = link.ask(&mut call).await?;
    match looked {
        Nfs3Result::Ok(looked) => {
            let ctime = looked.obj_attributes.ctime;
            Ok(u64::from(ctime.seconds) << 32 | u64::from(ctime.nseconds))
        }
        Nfs3Result::Err(error) => panic!("a directory is missing: {error:?}"),
    }
}

/// What was listed of each directory, by what stands for its state: a kernel goes by that as long
/// as the directory is in the same state.
#[derive(Default)]
pub(super) struct ListedDirectories(RefCell<BTreeMap<(usize, u64), BTreeSet<String>>>);

impl ListedDirectories {
    /// In one state there are always the same names.
    pub(super) fn note(&self, state: (usize, u64), listed: impl Iterator<Item = String>) {
        let listed: BTreeSet<String> = listed.collect();
        let mut seen = self.0.borrow_mut();
        let before = seen.entry(state).or_insert_with(|| listed.clone());
        assert_eq!(*before, listed, "a kernel that knows {state:?} keeps what it saw before");
    }
}

/// Entries (name, cookie, handle if given), the verifier, and whether these are the last.
pub(super) type NameListing = (Vec<(String, u64, Option<Vec<u8>>)>, cookieverf3, bool);

pub(super) async fn read_plain(
    link: &HostLink<'_>,
    dir: &nfs_fh3,
    (cookie, cookieverf): (u64, cookieverf3),
    count: u32,
) -> WorkResult<NameListing> {
    let arguments = READDIR3args { dir: dir.clone(), cookie, cookieverf, count };
    let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_READDIR, &arguments);
    let listed: READDIR3res<'static> = link.ask(&mut call).await?;
    match listed {
        Nfs3Result::Ok(listed) => {
            let entries = listed.reply.entries.0.into_iter();
            let entries = entries.map(|entry| (text(entry.name.as_ref()), entry.cookie, None));
            Ok((entries.collect(), listed.cookieverf, listed.reply.eof))
        }
        Nfs3Result::Err(error) => panic!("a directory cannot be listed: {error:?}"),
    }
}

pub(super) async fn read_plus(
    link: &HostLink<'_>,
    dir: &nfs_fh3,
    (cookie, cookieverf): (u64, cookieverf3),
    count: u32,
) -> WorkResult<NameListing> {
    let (dircount, maxcount) = (count, 2 * count);
    let arguments = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount, maxcount };
    let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &arguments);
    let listed: READDIRPLUS3res<'static> = link.ask(&mut call).await?;
    match listed {
        Nfs3Result::Ok(listed) => {
            let entries = listed.reply.entries.0.into_iter().map(|entry| {
                let handle = match &entry.name_handle {
                    Nfs3Option::Some(handle) => Some(bytes_of(handle)),
                    Nfs3Option::None => None,
                };
                (text(entry.name.as_ref()), entry.cookie, handle)
            });
            Ok((entries.collect(), listed.cookieverf, listed.reply.eof))
        }
        Nfs3Result::Err(error) => panic!("a directory cannot be listed: {error:?}"),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
