//! Conversion of attributes, times, errors and names between NFS and file I/O.

use bytes::Bytes;
use fileio::hash::partition_of;
use fileio::protocol::{
    Attributes, Change, Error, Kind, Name, NameError, PartitionRefusal, SetTime, Time,
    WriteObstacle,
};
use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime, specdata3,
};
use runtime::{Undelivered, VolumeId};

/// Any odd number: all partitions of a volume have different ids.
const FSID_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The permission bits of a mode; clients may send the file's type above them.
const MODE_BITS: u32 = 0o7777;

//= rfc1813 2.6: the errors, as the procedures of section 3.3 list them
pub(crate) fn status(error: Error) -> nfsstat3 {
    match error {
        Error::Undelivered { why } => undelivered(why),
        Error::NotFound {} => nfsstat3::NFS3ERR_NOENT,
        Error::Exists {} => nfsstat3::NFS3ERR_EXIST,
        Error::NotDirectory {} => nfsstat3::NFS3ERR_NOTDIR,
        Error::IsDirectory {} => nfsstat3::NFS3ERR_ISDIR,
        Error::NotEmpty {} => nfsstat3::NFS3ERR_NOTEMPTY,
        Error::AccessDenied {} => nfsstat3::NFS3ERR_ACCES,
        Error::NotPermitted {} => nfsstat3::NFS3ERR_PERM,
        // No procedure of version 3 is about extended attributes, and none about disks.
        Error::Invalid {}
        | Error::NoXattr {}
        | Error::TooLarge {}
        | Error::DisksUnchanged { .. } => nfsstat3::NFS3ERR_INVAL,
        Error::FileTooLarge {} => nfsstat3::NFS3ERR_FBIG,
        Error::NoSpace {} | Error::Unwritable { why: WriteObstacle::Full {}, .. } => {
            nfsstat3::NFS3ERR_NOSPC
        }
        Error::ReadOnly {} | Error::Unwritable { why: WriteObstacle::ReadOnly {}, .. } => {
            nfsstat3::NFS3ERR_ROFS
        }
        Error::TooManyLinks {} => nfsstat3::NFS3ERR_MLINK,
        Error::Stale {} => nfsstat3::NFS3ERR_STALE,
        Error::Damaged {} | Error::Unreadable { .. } => nfsstat3::NFS3ERR_IO,
        Error::Changed {} => nfsstat3::NFS3ERR_NOT_SYNC,
        // A lost stable write, which the client sends again.
        Error::LostWrites {} => nfsstat3::NFS3ERR_JUKEBOX,
        Error::BadCookie {} => nfsstat3::NFS3ERR_BAD_COOKIE,
        Error::Unsupported {} => nfsstat3::NFS3ERR_NOTSUPP,
        Error::Partitions { why } => partition_status(why),
    }
}

//= rfc1813 3.3.14, 3.3.15: NFS3ERR_XDEV. There is no status for a directory that is in use; servers
//= say NFS3ERR_ACCES of mount points
fn partition_status(why: PartitionRefusal) -> nfsstat3 {
    match why {
        PartitionRefusal::Crossing {} => nfsstat3::NFS3ERR_XDEV,
        PartitionRefusal::IsRoot {} | PartitionRefusal::IsGoing {} => nfsstat3::NFS3ERR_ACCES,
        // These are of requests that gateways do not make.
        _ => nfsstat3::NFS3ERR_INVAL,
    }
}

fn undelivered(why: Undelivered) -> nfsstat3 {
    match why {
        // The client retries with a new call: these errors are transient, and in a cluster the
        // epoch changes whenever nodes move. (A non-idempotent call gets no reply if its outcome is
        // unknown.)
        Undelivered::Busy
        | Undelivered::Unreachable
        | Undelivered::Lost
        | Undelivered::Gone
        | Undelivered::Fenced => nfsstat3::NFS3ERR_JUKEBOX,
        Undelivered::Refused => nfsstat3::NFS3ERR_ACCES,
        // The last one is made by clients alone.
        Undelivered::ProtocolMismatch | Undelivered::TimedOut => nfsstat3::NFS3ERR_SERVERFAULT,
    }
}

/// A component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    Entry(Name),
    /// `.`: the directory itself.
    Dot,
    /// `..`: the parent.
    DotDot,
}

//= rfc1813 3.2: null names and unusable characters are NFS3ERR_ACCES, too long ones (no_trunc is
//= TRUE) NFS3ERR_NAMETOOLONG, "." and ".." the directory itself and the one above
pub(crate) fn component(bytes: Bytes) -> Result<Component, nfsstat3> {
    match &bytes[..] {
        b"." => Ok(Component::Dot),
        b".." => Ok(Component::DotDot),
        _ => Name::new(bytes).map(Component::Entry).map_err(|error| match error {
            NameError::TooLong => nfsstat3::NFS3ERR_NAMETOOLONG,
            NameError::Empty | NameError::Forbidden | NameError::Dots => nfsstat3::NFS3ERR_ACCES,
        }),
    }
}

/// The name of an entry to create, remove or rename; `dots` is the error for `.` and `..`.
pub(crate) fn entry_name(bytes: Bytes, dots: nfsstat3) -> Result<Name, nfsstat3> {
    match component(bytes)? {
        Component::Entry(name) => Ok(name),
        Component::Dot | Component::DotDot => Err(dots),
    }
}

/// The file system id of the partition of a file: clients cross from one to another as they cross
/// mount points.
pub(crate) fn fsid(volume: VolumeId, ino: u64) -> u64 {
    let of_volume = (volume.0 >> 64) as u64 ^ volume.0 as u64;
    of_volume ^ u64::from(partition_of(ino)).wrapping_mul(FSID_STEP)
}

//= rfc1813 2.6: fattr3
pub(crate) fn fattr(volume: VolumeId, attributes: &Attributes) -> fattr3 {
    fattr3 {
        type_: file_type(attributes.kind),
        mode: attributes.mode & MODE_BITS,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used_bytes,
        rdev: specdata3 { specdata1: attributes.major, specdata2: attributes.minor },
        fsid: fsid(volume, attributes.ino),
        fileid: attributes.ino,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
    }
}

fn file_type(kind: Kind) -> ftype3 {
    match kind {
        Kind::File {} => ftype3::NF3REG,
        Kind::Directory {} => ftype3::NF3DIR,
        Kind::Symlink {} => ftype3::NF3LNK,
        Kind::BlockDevice {} => ftype3::NF3BLK,
        Kind::CharDevice {} => ftype3::NF3CHR,
        Kind::Fifo {} => ftype3::NF3FIFO,
        Kind::Socket {} => ftype3::NF3SOCK,
    }
}

/// Times of version 3 range from 1970 to 2106: others are clamped.
pub(crate) fn time(time: Time) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanos },
        Err(_) if time.seconds < 0 => nfstime3::default(),
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

/// The time that a client sent; a billion nanoseconds or more are invalid.
pub(crate) fn client_time(time: nfstime3) -> Result<Time, nfsstat3> {
    if time.nseconds >= 1_000_000_000 {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    Ok(Time { seconds: i64::from(time.seconds), nanos: time.nseconds })
}

//= rfc1813 2.6: sattr3
pub(crate) fn change(attributes: &sattr3) -> Result<Change, nfsstat3> {
    let atime = match attributes.atime {
        set_atime::DONT_CHANGE => None,
        set_atime::SET_TO_SERVER_TIME => Some(SetTime::Now {}),
        set_atime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To { time: client_time(time)? }),
    };
    let mtime = match attributes.mtime {
        set_mtime::DONT_CHANGE => None,
        set_mtime::SET_TO_SERVER_TIME => Some(SetTime::Now {}),
        set_mtime::SET_TO_CLIENT_TIME(time) => Some(SetTime::To { time: client_time(time)? }),
    };
    Ok(Change {
        mode: option(&attributes.mode).map(|mode| mode & MODE_BITS),
        uid: option(&attributes.uid),
        gid: option(&attributes.gid),
        size: option(&attributes.size),
        atime,
        mtime,
        redundancy: None,
    })
}

/// Converts an option of `nfs3_types`.
pub(crate) fn option<T>(option: &Nfs3Option<T>) -> Option<T>
where
    T: Copy + nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack,
{
    match option {
        Nfs3Option::Some(value) => Some(*value),
        Nfs3Option::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_section_3_2() {
        let status = |bytes: Vec<u8>| component(bytes.into()).unwrap_err();
        assert_eq!(status(vec![]), nfsstat3::NFS3ERR_ACCES);
        assert_eq!(status(vec![b'a'; 256]), nfsstat3::NFS3ERR_NAMETOOLONG);
        assert_eq!(status(vec![b'/'; 60_000]), nfsstat3::NFS3ERR_NAMETOOLONG);
        assert_eq!(status(b"a/b".to_vec()), nfsstat3::NFS3ERR_ACCES);
        assert_eq!(status(b"a\0b".to_vec()), nfsstat3::NFS3ERR_ACCES);
        assert!(component(vec![b'a'; 255].into()).is_ok());
        assert_eq!(component("..".into()), Ok(Component::DotDot));
        let refused = entry_name(".".into(), nfsstat3::NFS3ERR_EXIST);
        assert_eq!(refused, Err(nfsstat3::NFS3ERR_EXIST));
    }

    #[test]
    fn times_outside_the_range_are_clamped() {
        let told = |seconds| time(Time { seconds, nanos: 5 });
        assert_eq!(told(-1), nfstime3::default());
        assert_eq!(told(7), nfstime3 { seconds: 7, nseconds: 5 });
        assert_eq!(told(1 << 32).seconds, u32::MAX);
        let wrong = client_time(nfstime3 { seconds: 1, nseconds: 1_000_000_000 });
        assert_eq!(wrong, Err(nfsstat3::NFS3ERR_INVAL));
    }

    #[test]
    fn what_a_retry_may_heal_is_a_jukebox() {
        let told = |why| status(Error::Undelivered { why });
        assert_eq!(told(Undelivered::Busy), nfsstat3::NFS3ERR_JUKEBOX);
        assert_eq!(told(Undelivered::Unreachable), nfsstat3::NFS3ERR_JUKEBOX);
        assert_eq!(told(Undelivered::Fenced), nfsstat3::NFS3ERR_JUKEBOX);
        assert_eq!(told(Undelivered::ProtocolMismatch), nfsstat3::NFS3ERR_SERVERFAULT);
    }

    #[test]
    fn the_type_bits_of_a_mode_are_not_taken_over() {
        let attributes = sattr3 { mode: Nfs3Option::Some(0o100_644), ..sattr3::default() };
        assert_eq!(change(&attributes).unwrap().mode, Some(0o644));
    }
}
