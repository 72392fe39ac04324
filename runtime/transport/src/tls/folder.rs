//! The keys of a cluster, or of a volume that one process serves: one file of PEM for each process,
//! and the authority that vouches for them.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::authority::{Authority, AuthorityError, Identity};
use super::certificate::HostCertificate;
use super::files::{FileError, host, make_folder, read_secret, write_secret};
use super::{KeyError, Keys};

/// Default validity of certificates, in days.
pub const CERTIFICATE_DAYS: u32 = 398;
/// The process of a volume that one process serves.
pub const VOLUME_PROCESS: u32 = 0;

/// Whom all processes of the cluster believe; on each host.
const AUTHORITY: &str = "authority.pem";
/// Makes certificates: on one host, or on none that serves.
const AUTHORITY_KEY: &str = "authority.key";
/// The folder of keys in the directory of a volume.
const VOLUME_FOLDER: &str = "keys";
/// How long before its end a certificate is spoken of, or renewed.
const WARN_BEFORE: Duration = Duration::from_hours(30 * 24);

/// Keys could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFolderError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A certificate could not be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The authority's key is elsewhere.
    #[error(
        "{} is not here, and without it no certificate can be made; do this on the host that has it",
        .0.display()
    )]
    NoAuthorityKey(PathBuf),
    /// There is no authority to make a certificate for a client.
    #[error("{} is not here; {next}", path.display())]
    NoAuthority {
        /// What is missing.
        path: PathBuf,
        /// What to do.
        next: &'static str,
    },
    /// A process has no keys.
    #[error(
        "process {number} does not start without keys: {} ({what}) is not there; make it with `mdfs \
         cluster certify FILE {number}` where the cluster was made and copy it here, or say \
         --insecure to trust everybody who can reach the port",
        path.display()
    )]
    NoKeys {
        /// Which process.
        number: u32,
        /// What is missing.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The keys of a process are not usable.
    #[error(
        "process {number} does not start with the keys in {}: {error}; make others with `mdfs \
         cluster certify FILE {number} --renew` where the cluster was made, and copy them here",
        path.display()
    )]
    Unusable {
        /// Which process.
        number: u32,
        /// The file.
        path: PathBuf,
        /// Why.
        error: KeyError,
    },
    /// The keys of a volume are not usable.
    #[error(
        "the keys in {} cannot be used: {error}; move the folder away, and the next start makes \
         others: clients then need new tokens",
        path.display()
    )]
    UnusableVolume {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: KeyError,
    },
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub struct KeyFolder(pub PathBuf);

/// What was made, and what was there.
#[derive(Debug, Default)]
pub struct IssuedCertificates {
    /// Processes with new keys.
    pub made: Vec<u32>,
    /// Processes that keep theirs.
    pub kept: Vec<u32>,
}

fn since_1970() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "certificates are made outside of the machines")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl KeyFolder {
    /// The keys in the directory of a volume.
    pub fn of_volume(directory: &Path) -> Self {
        Self(directory.join(VOLUME_FOLDER))
    }

    /// The file of a process: its certificate and its key.
    pub fn of_process(&self, number: u32) -> PathBuf {
        self.0.join(format!("process-{number}.pem"))
    }

    /// Makes certificates that hold for `days`, for those of `numbers` that have none, or for all
    /// anew. The authority is made if there is none.
    pub fn certify(
        &self,
        numbers: &[u32],
        days: u32,
        renew: bool,
    ) -> Result<IssuedCertificates, KeyFolderError> {
        let authority = self.authority()?;
        let mut issued = IssuedCertificates::default();
        for number in numbers {
            let path = self.of_process(*number);
            if path.exists() && !renew {
                issued.kept.push(*number);
                continue;
            }
            let length = Duration::from_hours(24) * days;
            let identity = authority.certify(*number, since_1970(), length)?;
            write_secret(&path, &format!("{}{}", identity.certificate, identity.key))?;
            issued.made.push(*number);
        }
        Ok(issued)
    }

    /// Makes a certificate for a host of clients; the text of its file has the key, the certificate
    /// and that of the authority.
    pub fn certify_host(
        &self,
        host: &HostCertificate,
        days: u32,
    ) -> Result<String, KeyFolderError> {
        let vouching = self.authority_certificate()?;
        let authority = self.authority()?;
        let length = Duration::from_hours(24) * days;
        let identity = authority.certify_host(host, since_1970(), length)?;
        Ok(format!("{}{}{vouching}", identity.key, identity.certificate))
    }

    /// The certificate of the authority, in PEM.
    pub fn authority_certificate(&self) -> Result<String, KeyFolderError> {
        let path = self.0.join(AUTHORITY);
        if !path.exists() {
            let next = "make the keys first: `mdfs cluster init` for a cluster, `mdfs serve VOL \
                        --listen ADDRESS:PORT` for a volume that one process serves";
            return Err(KeyFolderError::NoAuthority { path, next });
        }
        Ok(read_secret(&path)?)
    }

    /// The authority; a new one if there never was one.
    fn authority(&self) -> Result<Authority, KeyFolderError> {
        let (certificate, key) = (self.0.join(AUTHORITY), self.0.join(AUTHORITY_KEY));
        match (certificate.exists(), key.exists()) {
            (true, true) => return Ok(Authority::of_key(&read_secret(&key)?)?),
            (true, false) => return Err(KeyFolderError::NoAuthorityKey(key)),
            // Its certificate is written last.
            (false, _) => {}
        }
        make_folder(&self.0).map_err(host("make the folder of keys", &self.0))?;
        let (authority, identity) = Authority::make(since_1970())?;
        write_secret(&key, &identity.key)?;
        write_secret(&certificate, &identity.certificate)?;
        Ok(authority)
    }

    /// The keys of one process, to serve with.
    pub fn keys(&self, number: u32) -> Result<Keys, KeyFolderError> {
        let path = self.of_process(number);
        let keys = self.load(number)?;
        let keys = keys.map_err(|error| KeyFolderError::Unusable { number, path, error })?;
        if keys.hold_for(WARN_BEFORE).is_err() {
            tracing::warn!(
                "the certificate {} ends in less than 30 days: `mdfs cluster certify --renew`",
                self.of_process(number).display()
            );
        }
        Ok(keys)
    }

    fn load(&self, number: u32) -> Result<Result<Keys, KeyError>, KeyFolderError> {
        let path = self.of_process(number);
        let authority = self.0.join(AUTHORITY);
        for (file, what) in [(&authority, "the authority's certificate"), (&path, "its key")] {
            if !file.exists() {
                return Err(KeyFolderError::NoKeys { number, what, path: file.clone() });
            }
        }
        let both = read_secret(&path)?;
        let identity = Identity { certificate: both.clone(), key: both };
        Ok(Keys::new(number, read_secret(&authority)?.as_bytes(), &identity))
    }
}

/// The keys of a volume that one process serves, in its directory. The first time they are made; a
/// certificate that ends in less than 30 days is renewed.
pub fn volume_keys(directory: &Path) -> Result<Keys, KeyFolderError> {
    let folder = KeyFolder::of_volume(directory);
    folder.certify(&[VOLUME_PROCESS], CERTIFICATE_DAYS, false)?;
    let is_used_up = match folder.load(VOLUME_PROCESS)? {
        Ok(keys) => keys.hold_for(WARN_BEFORE).is_err(),
        Err(error) => matches!(error, KeyError::Expired(_)),
    };
    if is_used_up {
        folder.certify(&[VOLUME_PROCESS], CERTIFICATE_DAYS, true)?;
    }
    let path = folder.0.clone();
    folder.load(VOLUME_PROCESS)?.map_err(|error| KeyFolderError::UnusableVolume { path, error })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn each_process_has_a_key_that_only_its_owner_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder(folder.path().join("keys"));
        let missing = keys.keys(1).unwrap_err().to_string();
        assert!(missing.contains("certify") && missing.contains("--insecure"), "{missing}");

        assert_eq!(keys.certify(&[1, 2], 30, false).unwrap().made, [1, 2]);
        assert_eq!(mode(&keys.0), 0o700);
        for entry in std::fs::read_dir(&keys.0).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
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
        let open = Permissions::from_mode(0o640);
        std::fs::set_permissions(keys.of_process(1), open).unwrap();
        let text = keys.keys(1).unwrap_err().to_string();
        assert!(text.contains("640") && text.contains("chmod 600"), "{text}");
        std::fs::remove_file(folder.path().join(AUTHORITY_KEY)).unwrap();
        let text = keys.certify(&[3], 30, false).unwrap_err().to_string();
        assert!(text.contains(AUTHORITY_KEY), "{text}");
    }

    #[test]
    fn a_volume_makes_its_keys_once_and_renews_them_before_their_end() {
        let volume = tempfile::tempdir().unwrap();
        volume_keys(volume.path()).unwrap();
        let folder = KeyFolder::of_volume(volume.path());
        assert_eq!(mode(&folder.0), 0o700);
        let files = || {
            [folder.authority_certificate().unwrap(), read_secret(&folder.of_process(0)).unwrap()]
        };
        let [authority, process] = files();
        volume_keys(volume.path()).unwrap();
        assert_eq!(files(), [authority.clone(), process.clone()], "they are kept");
        folder.certify(&[VOLUME_PROCESS], 3, true).unwrap();
        volume_keys(volume.path()).unwrap().hold_for(WARN_BEFORE).unwrap();
        assert_eq!(files()[0], authority, "and their authority stays");
        // Of another authority: a person decides.
        let other = tempfile::tempdir().unwrap();
        volume_keys(other.path()).unwrap();
        let foreign = KeyFolder::of_volume(other.path()).of_process(VOLUME_PROCESS);
        std::fs::copy(foreign, folder.of_process(VOLUME_PROCESS)).unwrap();
        let text = volume_keys(volume.path()).unwrap_err().to_string();
        assert!(text.contains("not of this cluster's authority"), "{text}");
    }
}
