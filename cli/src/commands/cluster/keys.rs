//! The keys of a cluster: one file of PEM for each process, and the authority that vouches for
//! them.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use transport::tls::{Authority, Identity, Keys};

use crate::exit::CommandFailure;

/// Whom all processes of the cluster believe; on each host.
const AUTHORITY: &str = "authority.pem";
/// Makes certificates: on one host, or on none that serves.
const AUTHORITY_KEY: &str = "authority.key";
/// For its owner only.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// What more than the owner may do with a file.
const OTHERS: u32 = 0o077;
/// How long before its end a certificate is spoken of.
const WARN_BEFORE: Duration = Duration::from_hours(30 * 24);

/// Where the keys are.
#[derive(Clone, Debug)]
pub(super) struct KeyFolder(pub(super) PathBuf);

/// What was made, and what was there.
#[derive(Debug, Default)]
pub(super) struct IssuedCertificates {
    pub(super) made: Vec<u32>,
    pub(super) kept: Vec<u32>,
}

fn since_1970() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "the program itself looks at the clock")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl KeyFolder {
    fn of_process(&self, number: u32) -> PathBuf {
        self.0.join(format!("process-{number}.pem"))
    }

    /// Makes certificates that hold for `days`, for those of `numbers` that have none, or for all
    /// anew. The authority is made if there is none.
    pub(super) fn certify(
        &self,
        numbers: &[u32],
        days: u32,
        renew: bool,
    ) -> Result<IssuedCertificates, CommandFailure> {
        let authority = self.authority()?;
        let mut issued = IssuedCertificates::default();
        for number in numbers {
            let path = self.of_process(*number);
            if path.exists() && !renew {
                issued.kept.push(*number);
                continue;
            }
            let length = Duration::from_hours(24) * days;
            let identity = authority.certify(*number, since_1970(), length).map_err(wrong)?;
            write(&path, &format!("{}{}", identity.certificate, identity.key))?;
            issued.made.push(*number);
        }
        Ok(issued)
    }

    /// The authority; a new one if there never was one.
    fn authority(&self) -> Result<Authority, CommandFailure> {
        let (certificate, key) = (self.0.join(AUTHORITY), self.0.join(AUTHORITY_KEY));
        match (certificate.exists(), key.exists()) {
            (true, true) => return Authority::of_key(&read(&key)?).map_err(wrong),
            (true, false) => {
                return Err(CommandFailure::Wrong(format!(
                    "{} is not here, and without it no certificate can be made; do this on the host \
                     that has it",
                    key.display()
                )));
            }
            // Its certificate is written last.
            (false, _) => {}
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.0);
        made.map_err(|error| CommandFailure::local("make the folder of keys", &self.0, error))?;
        let (authority, identity) = Authority::make(since_1970()).map_err(wrong)?;
        write(&key, &identity.key)?;
        write(&certificate, &identity.certificate)?;
        Ok(authority)
    }

    /// The keys of one process, to serve with.
    pub(super) fn keys(&self, number: u32) -> Result<Keys, CommandFailure> {
        let path = self.of_process(number);
        let authority = self.0.join(AUTHORITY);
        for (file, what) in [(&authority, "the authority's certificate"), (&path, "its key")] {
            if !file.exists() {
                return Err(CommandFailure::Wrong(format!(
                    "process {number} does not start without keys: {} ({what}) is not there; make it \
                     with `mdfs cluster certify FILE {number}` where the cluster was made and copy it \
                     here, or say --insecure to trust everybody who can reach the port",
                    file.display()
                )));
            }
        }
        let both = read(&path)?;
        let identity = Identity { certificate: both.clone(), key: both };
        let keys = Keys::new(number, read(&authority)?.as_bytes(), &identity).map_err(|error| {
            CommandFailure::Wrong(format!(
                "process {number} does not start with the keys in {}: {error}; make others with \
                 `mdfs cluster certify FILE {number} --renew` where the cluster was made, and copy \
                 them here",
                path.display()
            ))
        })?;
        if keys.hold_for(WARN_BEFORE).is_err() {
            tracing::warn!(
                "the certificate {} ends in less than 30 days: `mdfs cluster certify --renew`",
                path.display()
            );
        }
        Ok(keys)
    }
}

fn wrong(error: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::Wrong(error.to_string())
}

/// Reads a file that is readable by this user only.
fn read(path: &Path) -> Result<String, CommandFailure> {
    let failed = |error| CommandFailure::local("read", path, error);
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(CommandFailure::Wrong(format!(
            "{} can be read or changed by others (mode {:03o}); chmod 600 it, and make it anew if it \
             was seen",
            path.display(),
            mode & 0o777
        )));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Replaces a file as a whole, durably.
fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    let failed = |error| CommandFailure::local("write", path, error);
    let new = path.with_extension("new");
    // One that is left over may be anybody's.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(&new)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_key_that_only_its_owner_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder(folder.path().join("keys"));
        let missing = keys.keys(1).unwrap_err().to_string();
        assert!(missing.contains("certify") && missing.contains("--insecure"), "{missing}");

        assert_eq!(keys.certify(&[1, 2], 30, false).unwrap().made, [1, 2]);
        for entry in std::fs::read_dir(&keys.0).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, FILE_MODE);
        }
        assert!(keys.keys(1).is_ok() && keys.keys(2).is_ok());

        let before = std::fs::read(keys.of_process(1)).unwrap();
        let again = keys.certify(&[1, 3], 30, false).unwrap();
        assert_eq!((again.made, again.kept), (vec![3], vec![1]));
        assert_eq!(std::fs::read(keys.of_process(1)).unwrap(), before);
        assert_eq!(keys.certify(&[1], 30, true).unwrap().made, [1]);
        assert_ne!(std::fs::read(keys.of_process(1)).unwrap(), before);
        assert!(keys.keys(1).is_ok());
    }

    #[test]
    fn keys_that_others_can_read_or_of_another_process_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder(folder.path().to_owned());
        keys.certify(&[1, 2], 30, false).unwrap();
        std::fs::copy(keys.of_process(1), keys.of_process(2)).unwrap();
        let other = keys.keys(2).unwrap_err().to_string();
        assert!(other.contains("not that of process 2") && other.contains("--renew"), "{other}");
        let open = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(keys.of_process(1), open).unwrap();
        let text = keys.keys(1).unwrap_err().to_string();
        assert!(text.contains("640") && text.contains("chmod 600"), "{text}");
        std::fs::remove_file(folder.path().join(AUTHORITY_KEY)).unwrap();
        let text = keys.certify(&[3], 30, false).unwrap_err().to_string();
        assert!(text.contains(AUTHORITY_KEY), "{text}");
    }
}
