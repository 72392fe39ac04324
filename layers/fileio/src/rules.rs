//! Who may do what, as POSIX has it. Pure: attributes and credentials in, a verdict out.
//!
//! Where POSIX leaves the choice the rules are those that the [model](crate::model) states.

use meta::attributes::access;
use meta::partition::partition_of;
use meta::protocol::{InodeChange, NewInode};

use crate::partition_types::TABLE_XATTR;
use crate::protocol::{
    Attributes, Change, Credentials, Error, FILE_SIZE_MAX, Kind, SetTime, Time, XattrName,
};

/// `0o1000`: only owners remove entries of such a directory.
const STICKY: u32 = 0o1000;
/// `0o2000`: on a directory, new entries get its group.
pub(crate) const SETGID: u32 = 0o2000;
const SETUID: u32 = 0o4000;
const GROUP_EXECUTE: u32 = 0o010;
const MODE_BITS: u32 = 0o7777;

/// Extended attributes of users.
const USER: &[u8] = b"user.";
/// Extended attributes of root.
const TRUSTED: &[u8] = b"trusted.";

/// As a result.
pub(crate) fn permit(permitted: bool) -> Result<(), Error> {
    if permitted { Ok(()) } else { Err(Error::AccessDenied {}) }
}

/// May `who` search the directory?
pub(crate) fn check_search(who: &Credentials, directory: &Attributes) -> Result<(), Error> {
    if directory.kind != (Kind::Directory {}) {
        return Err(Error::NotDirectory {});
    }
    permit(directory.permits(who, access::EXECUTE))
}

/// May `who` add entries to the directory?
pub(crate) fn check_add(who: &Credentials, directory: &Attributes) -> Result<(), Error> {
    permit(directory.permits(who, access::WRITE | access::EXECUTE))
}

/// May `who` take the entry of a file of `uid` out of the directory?
pub(crate) fn check_take(who: &Credentials, directory: &Attributes, uid: u32) -> Result<(), Error> {
    check_add(who, directory)?;
    let owns = who.uid == uid || owns(who, directory);
    if directory.mode & STICKY == 0 || owns { Ok(()) } else { Err(Error::NotPermitted {}) }
}

/// May `who` read (or write) the content? The owner may always, and who may execute may read (RFC
/// 1813 section 4.4).
pub(crate) fn check_transfer(
    who: &Credentials,
    file: &Attributes,
    wanted: u32,
) -> Result<(), Error> {
    check_content(file.kind)?;
    let runs = wanted == access::READ && file.permits(who, access::EXECUTE);
    permit(owns(who, file) || file.permits(who, wanted) || runs)
}

/// Has this kind a content?
pub(crate) fn check_content(kind: Kind) -> Result<(), Error> {
    match kind {
        Kind::File {} => Ok(()),
        Kind::Directory {} => Err(Error::IsDirectory {}),
        _ => Err(Error::Invalid {}),
    }
}

/// Is a file of this size possible?
pub(crate) fn check_size(size: u64) -> Result<(), Error> {
    if size <= FILE_SIZE_MAX { Ok(()) } else { Err(Error::FileTooLarge {}) }
}

/// Can a file have all these bytes?
pub(crate) fn check_range(offset: u64, length: u64) -> Result<(), Error> {
    check_size(offset.checked_add(length).ok_or(Error::FileTooLarge {})?)
}

/// Does this kind have a content, or hand its redundancy on?
fn has_redundancy(kind: Kind) -> bool {
    matches!(kind, Kind::File {} | Kind::Directory {})
}

fn owns(who: &Credentials, file: &Attributes) -> bool {
    who.uid == 0 || who.uid == file.uid
}

/// May `who` change the attributes as `change` says? `writes` tells whether one who changes the
/// size may write the content.
pub(crate) fn check_change(
    who: &Credentials,
    file: &Attributes,
    change: &Change,
    writes: impl FnOnce(&Credentials, &Attributes) -> Result<(), Error>,
) -> Result<(), Error> {
    let owner = owns(who, file);
    let times = [change.atime, change.mtime];
    let given_time = times.iter().any(|time| matches!(time, Some(SetTime::To { .. })));
    if !owner && (change.mode.is_some() || change.redundancy.is_some() || given_time) {
        return Err(Error::NotPermitted {});
    }
    if change.redundancy.is_some() && !has_redundancy(file.kind) {
        return Err(Error::Invalid {});
    }
    check_new_owner(who, file, change)?;
    if !owner && times.iter().any(Option::is_some) {
        permit(file.permits(who, access::WRITE))?;
    }
    if let Some(size) = change.size {
        writes(who, file)?;
        check_size(size)?;
    }
    Ok(())
}

/// Only root gives files away; an owner may choose among the own groups.
pub(crate) fn check_new_owner(
    who: &Credentials,
    file: &Attributes,
    change: &Change,
) -> Result<(), Error> {
    let owner = owns(who, file);
    let uid = change.uid.is_none_or(|uid| owner && uid == file.uid);
    let gid = change.gid.is_none_or(|gid| owner && (gid == file.gid || who.in_group(gid)));
    if who.uid == 0 || (uid && gid) { Ok(()) } else { Err(Error::NotPermitted {}) }
}

/// The bits that let others act as the owner do not survive a change by others than root.
pub(crate) fn without_setid(who: &Credentials, file: &Attributes) -> u32 {
    if who.uid == 0 { file.mode } else { without_setid_of_owner(file) }
}

/// Nor do they survive a new owner or group, not even one that root gives, as Linux has it.
fn without_setid_of_owner(file: &Attributes) -> u32 {
    if file.kind != (Kind::File {}) {
        return file.mode;
    }
    let group = if file.mode & GROUP_EXECUTE != 0 { SETGID } else { 0 };
    file.mode & !(SETUID | group)
}

/// What of an inode changes by a permitted `change`, the size left aside.
pub(crate) fn inode_change(
    who: &Credentials,
    file: &Attributes,
    change: &Change,
    now: Time,
) -> InodeChange {
    let to = |time: SetTime| match time {
        SetTime::Now {} => now,
        SetTime::To { time } => time,
    };
    let mut after = *file;
    if change.uid.is_some() || change.gid.is_some() {
        after.uid = change.uid.unwrap_or(file.uid);
        after.gid = change.gid.unwrap_or(file.gid);
        after.mode = without_setid_of_owner(&after);
    }
    if change.size.is_some() {
        after.mtime = now;
        after.mode = without_setid(who, &after);
    }
    if let Some(mode) = change.mode
        && file.kind != (Kind::Symlink {})
    {
        after.mode = mode & MODE_BITS;
        if who.uid != 0 && !who.in_group(after.gid) {
            after.mode &= !SETGID;
        }
    }
    after.atime = change.atime.map_or(after.atime, to);
    after.mtime = change.mtime.map_or(after.mtime, to);
    // Only what differs, so that two changes at a time do not undo each other.
    let differs = |after: u32, before: u32| (after != before).then_some(after);
    InodeChange {
        mode: differs(after.mode, file.mode),
        uid: differs(after.uid, file.uid),
        gid: differs(after.gid, file.gid),
        atime: change.atime.map(to),
        mtime: (after.mtime != file.mtime).then_some(after.mtime),
        ctime: Some(now),
        ..InodeChange::default()
    }
}

/// The inode that `who` makes in `directory`.
pub(crate) fn new_inode(
    who: &Credentials,
    directory: &Attributes,
    kind: Kind,
    change: &Change,
    now: Time,
) -> Result<NewInode, Error> {
    let is_directory = kind == (Kind::Directory {});
    let inherits = directory.mode & SETGID != 0;
    let default_mode = match kind {
        Kind::Directory {} => 0o755,
        Kind::Symlink {} => 0o777,
        _ => 0o644,
    };
    let plain = Attributes {
        kind,
        mode: default_mode,
        uid: who.uid,
        gid: if inherits { directory.gid } else { who.gid },
        ..*directory
    };
    check_new_owner(who, &plain, change)?;
    // It is the directory's, and can be changed once it is there.
    if change.redundancy.is_some() {
        return Err(Error::Invalid {});
    }
    check_size(change.size.unwrap_or(0))?;
    let given = inode_change(who, &plain, &Change { size: None, ..change.clone() }, now);
    let inherited = if inherits && is_directory { SETGID } else { 0 };
    Ok(NewInode {
        kind,
        mode: given.mode.unwrap_or(plain.mode) | inherited,
        uid: given.uid.unwrap_or(plain.uid),
        gid: given.gid.unwrap_or(plain.gid),
        major: 0,
        minor: 0,
        time: now,
        atime: given.atime,
        mtime: change.mtime.and(given.mtime),
        verifier: None,
        target: Vec::new(),
        size: change.size.unwrap_or(0),
        partition: partition_of(directory.ino),
        redundancy: directory.redundancy.filter(|_| has_redundancy(kind)),
    })
}

/// May `who` read (or write) the extended attribute, as Linux has it? `user.` is for files and
/// directories: their mode decides, and in a sticky directory only owners write. `trusted.` is
/// root's, but for the table of partitions. There are no others: access control lists and
/// labels that are stored and not obeyed would promise what is not kept.
pub(crate) fn check_xattr(
    who: &Credentials,
    file: &Attributes,
    name: &XattrName,
    wanted: u32,
) -> Result<(), Error> {
    let refused = if wanted == access::READ { Error::NoXattr {} } else { Error::NotPermitted {} };
    let is_named = |rest: &[u8]| if rest.is_empty() { Err(Error::Invalid {}) } else { Ok(()) };
    if let Some(rest) = name.as_bytes().strip_prefix(TRUSTED) {
        is_named(rest)?;
        return if lists_xattr(who, name) { Ok(()) } else { Err(refused) };
    }
    is_named(name.as_bytes().strip_prefix(USER).ok_or(Error::Unsupported {})?)?;
    match file.kind {
        Kind::File {} => {}
        Kind::Directory {} => {
            if wanted == access::WRITE && file.mode & STICKY != 0 && !owns(who, file) {
                return Err(refused);
            }
        }
        _ => return Err(refused),
    }
    permit(file.permits(who, wanted))
}

/// May `who` know that there is such an extended attribute?
pub(crate) fn lists_xattr(who: &Credentials, name: &XattrName) -> bool {
    let name = name.as_bytes();
    !name.starts_with(TRUSTED) || who.uid == 0 && name != TABLE_XATTR.as_bytes()
}

/// Is a read at `now` to be noted? As `relatime`: if not noted since the last change, or for a day.
pub(crate) fn notes_access(file: &Attributes, now: Time) -> bool {
    const DAY_SECONDS: i64 = 24 * 60 * 60;
    let Attributes { atime, mtime, ctime, .. } = *file;
    atime <= mtime || atime <= ctime || now.seconds - atime.seconds >= DAY_SECONDS
}
