//! Extended attributes.

use meta::attributes::access;

use super::state::{ModelInode, STICKY, permit};
use crate::protocol::{
    Attributes, Credentials, Error, GetXattr, Kind, ListXattrs, RemoveXattr, SetXattr, Time,
    XATTR_VALUE_MAX, XATTRS_BYTES_MAX, XattrMode, XattrName,
};

impl ModelInode {
    /// May `who` set or remove the attribute?
    fn check_xattr_write(&self, who: &Credentials, name: &XattrName) -> Result<(), Error> {
        let refused = Err(Error::NotPermitted {});
        match (Namespace::of(name)?, self.fixed.kind) {
            (Namespace::Trusted, _) => {
                if who.uid == 0 {
                    Ok(())
                } else {
                    refused
                }
            }
            (Namespace::User, Kind::Directory {})
                if self.fixed.mode & STICKY != 0 && !self.owned_by(who) =>
            {
                refused
            }
            (Namespace::User, Kind::File {} | Kind::Directory {}) => {
                permit(self.fixed.permits(who, access::WRITE))
            }
            (Namespace::User | Namespace::Own, _) => refused,
        }
    }

    /// Bytes of all names and values but those of `name`.
    fn xattr_bytes_without(&self, name: &XattrName) -> usize {
        let others = self.xattrs.iter().filter(|(other, _)| *other != name);
        others.map(|(name, value)| name.as_bytes().len() + value.len()).sum()
    }

    pub(super) fn get_xattr(&self, r: &GetXattr) -> Result<Vec<u8>, Error> {
        let is_known = match (Namespace::of(&r.name)?, self.fixed.kind) {
            (Namespace::Trusted, _) => r.who.uid == 0,
            (Namespace::Own, _) => false,
            (Namespace::User, kind) => matches!(kind, Kind::File {} | Kind::Directory {}),
        };
        if !is_known {
            return Err(Error::NoXattr {});
        }
        if Namespace::of(&r.name)? == Namespace::User {
            permit(self.fixed.permits(&r.who, access::READ))?;
        }
        self.xattrs.get(&r.name).cloned().ok_or(Error::NoXattr {})
    }

    pub(super) fn set_xattr(&mut self, r: &SetXattr, now: Time) -> Result<Attributes, Error> {
        self.check_xattr_write(&r.who, &r.name)?;
        if r.value.len() > XATTR_VALUE_MAX {
            return Err(Error::TooLarge {});
        }
        match (r.mode, self.xattrs.contains_key(&r.name)) {
            (XattrMode::CreateNew {}, true) => return Err(Error::Exists {}),
            (XattrMode::Replace {}, false) => return Err(Error::NoXattr {}),
            _ => {}
        }
        let bytes = r.name.as_bytes().len() + r.value.len();
        if self.xattr_bytes_without(&r.name) + bytes > XATTRS_BYTES_MAX {
            return Err(Error::TooLarge {});
        }
        self.xattrs.insert(r.name.clone(), r.value.clone());
        self.fixed.ctime = now;
        Ok(self.attributes())
    }

    pub(super) fn list_xattrs(&self, r: &ListXattrs) -> Vec<XattrName> {
        let names = self.xattrs.keys();
        let is_seen = |name: &&XattrName| match Namespace::of(name) {
            Ok(Namespace::User) => true,
            Ok(Namespace::Trusted) => r.who.uid == 0,
            Ok(Namespace::Own) | Err(_) => false,
        };
        names.filter(is_seen).cloned().collect()
    }

    pub(super) fn remove_xattr(&mut self, r: &RemoveXattr, now: Time) -> Result<Attributes, Error> {
        self.check_xattr_write(&r.who, &r.name)?;
        self.xattrs.remove(&r.name).ok_or(Error::NoXattr {})?;
        self.fixed.ctime = now;
        Ok(self.attributes())
    }
}

/// What begins the name of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    /// The table of partitions: nothing for clients.
    Own,
}

impl Namespace {
    /// The namespace of a name that has something behind it.
    fn of(name: &XattrName) -> Result<Self, Error> {
        let name = name.as_bytes();
        let of = |prefix: &[u8]| name.strip_prefix(prefix);
        match (of(b"user."), of(b"trusted.")) {
            (Some([]), _) | (_, Some([])) => Err(Error::Invalid {}),
            (Some(_), _) => Ok(Self::User),
            (_, Some(b"mdfs.partitions")) => Ok(Self::Own),
            (_, Some(_)) => Ok(Self::Trusted),
            (None, None) => Err(Error::Unsupported {}),
        }
    }
}
