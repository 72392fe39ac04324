//! Volumes, and operations on paths.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::blocking;
use client::kind::kind_bits;
use client::process::umask;
use client::volume::{ConnectOptions, OpenError};
use client::{Attributes, Change, Error, OpenOptions, SetTime, Time, VolumeAddress, XattrMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::checked::PerProcess;
use crate::failure::{embedded_in_parent, failed, not_opened};
use crate::file::PyFile;

/// Nanoseconds of a second.
const SECOND: i128 = 1_000_000_000;

/// A volume. Paths are bytes, from its root.
#[pyclass(name = "Volume", frozen, module = "mdfs._mdfs")]
#[derive(Debug)]
pub(crate) struct PyVolume(Arc<VolumeHandle>);

/// An open volume, which a forked child opens again.
#[derive(Debug)]
pub(crate) struct VolumeHandle {
    address: VolumeAddress,
    options: ConnectOptions,
    volume: PerProcess<blocking::Volume>,
}

impl VolumeHandle {
    fn open(address: VolumeAddress, options: ConnectOptions) -> Result<Self, OpenError> {
        let volume = PerProcess::new(client::volume::connect(&address, &options)?);
        Ok(Self { address, options, volume })
    }

    /// The volume, as this process has opened it.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<blocking::Volume>> {
        self.volume.get(py, |py, of_parent| {
            if of_parent.is_embedded() {
                return Err(embedded_in_parent());
            }
            py.detach(|| client::volume::connect(&self.address, &self.options)).map_err(not_opened)
        })
    }
}

/// As `stat` has it: mode, inode, links, uid, gid, size, bytes used, and the times of the last
/// read, the last change of the content and of anything, and of creation, in nanoseconds.
type StatTuple = (u32, u64, u32, u32, u32, u64, u64, i128, i128, i128, i128);

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * SECOND + i128::from(time.nanos)
}

/// A time to be set; none for now.
fn time(nanoseconds: Option<i128>) -> PyResult<SetTime> {
    let Some(nanoseconds) = nanoseconds else { return Ok(SetTime::Now {}) };
    let seconds = i64::try_from(nanoseconds.div_euclid(SECOND)).map_err(|_| {
        PyValueError::new_err("a time is farther from 1970 than 64 bits of seconds")
    })?;
    let nanos = nanoseconds.rem_euclid(SECOND) as u32;
    Ok(SetTime::To { time: Time { seconds, nanos } })
}

pub(crate) fn stat_of(of: &Attributes) -> StatTuple {
    let [atime, mtime, ctime, birth] = [of.atime, of.mtime, of.ctime, of.birth].map(nanoseconds);
    let mode = kind_bits(of.kind) | of.mode;
    let used = of.used_bytes;
    (mode, of.ino, of.links, of.uid, of.gid, of.size, used, atime, mtime, ctime, birth)
}

impl PyVolume {
    /// Does `work` while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&blocking::Volume) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let volume = self.0.get(py)?;
        py.detach(|| work(&volume)).map_err(failed)
    }
}

#[pymethods]
impl PyVolume {
    /// Opens the volume in this directory, or at `mdfs://HOST[:PORT]/VOLUME`.
    /// `token` is a token file; `timeout` how many seconds a request waits for a server that is
    /// away, for ever if it is infinite; the defaults are those of the program.
    #[new]
    fn new(
        py: Python<'_>,
        address: PathBuf,
        token: Option<PathBuf>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let wrong = |text: String| PyValueError::new_err(text);
        let address = VolumeAddress::parse(address).map_err(|error| wrong(error.to_string()))?;
        let mut options = ConnectOptions::of_this_process()?;
        options.token = token.or(options.token);
        if let Some(seconds) = timeout {
            options.timeout = match Duration::try_from_secs_f64(seconds) {
                Ok(timeout) => Some(timeout),
                Err(_) if seconds == f64::INFINITY => None,
                Err(_) => return Err(wrong("a timeout is a number of seconds".to_owned())),
            };
        }
        let opened = py.detach(|| VolumeHandle::open(address, options));
        Ok(Self(Arc::new(opened.map_err(not_opened)?)))
    }

    /// Ends the use of the volume; in its own process it is made durable.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let Some(volume) = self.0.volume.get_own() else { return Ok(()) };
        py.detach(|| volume.finish()).map_err(failed)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, blocking::Volume::sync)
    }

    /// The number of the process that requests of this volume wait for, if it is known, and for how
    /// many seconds they have; none if they wait for none. At least 2 seconds.
    fn outage(&self) -> Option<(Option<u32>, f64)> {
        let outage = self.0.options.outages.longest()?;
        Some((outage.process, outage.lasted.as_secs_f64()))
    }

    /// Opens a file. `how` has the letters r(ead), w(rite), c(reate), x (create new), t(runcate);
    /// `mode` the permission bits of a new file, less those of the umask.
    fn open(&self, py: Python<'_>, path: &[u8], how: &str, mode: u32) -> PyResult<PyFile> {
        let has = |letter| how.contains(letter);
        let options = OpenOptions::new().read(has('r')).write(has('w')).truncate(has('t'));
        let options = options.create(has('c')).create_new(has('x')).mode(mode & !umask());
        let file = self.with(py, |volume| volume.open(path, options))?;
        Ok(PyFile::new(self.0.clone(), file, OpenOptions::new().read(has('r')).write(has('w'))))
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<StatTuple> {
        self.with(py, |volume| {
            let attributes =
                if follow { volume.metadata(path) } else { volume.symlink_metadata(path) };
            Ok(stat_of(&attributes?))
        })
    }

    /// The entries of a directory: name, bits of the kind, inode number, and the result of `stat`
    /// if the entry was still there.
    #[allow(clippy::type_complexity, reason = "Python takes tuples apart by place")]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, u32, u64, Option<StatTuple>)>> {
        let entries = self.with(py, |volume| volume.read_dir(path))?;
        let entry = |entry: client::protocol::DirectoryEntry| {
            let name = PyBytes::new(py, entry.name.as_bytes());
            let stat = entry.attributes.as_deref().map(stat_of);
            (name, kind_bits(entry.kind), entry.handle.ino, stat)
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        let mode = mode & !umask();
        self.with(py, |volume| volume.mkdir_with_mode(path, mode).map(drop))
    }

    /// Makes a directory and all above it.
    fn mkdir_all(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.mkdir_all(path).map(drop))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_dir(path))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_file(path))
    }

    /// Removes a directory with all in it.
    fn remove_all(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.remove_all(path))
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.rename(from, to))
    }

    fn link(&self, py: Python<'_>, original: &[u8], path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.hard_link(original, path).map(drop))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.symlink(target, path).map(drop))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.with(py, |volume| volume.read_link(path))?;
        Ok(PyBytes::new(py, &target))
    }

    /// Changes what is given.
    fn change(
        &self,
        py: Python<'_>,
        path: &[u8],
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
    ) -> PyResult<()> {
        let change = Change { mode, uid: owner, gid: group, size, ..Change::default() };
        self.with(py, |volume| volume.set_attributes(path, change).map(drop))
    }

    /// Sets the times of the last read and change, in nanoseconds since 1970; none means now.
    fn utime(
        &self,
        py: Python<'_>,
        path: &[u8],
        read: Option<i128>,
        changed: Option<i128>,
    ) -> PyResult<()> {
        let (atime, mtime) = (Some(time(read)?), Some(time(changed)?));
        let change = Change { atime, mtime, ..Change::default() };
        self.with(py, |volume| volume.set_attributes(path, change).map(drop))
    }

    /// Bytes in all, bytes that one file can have, files and directories.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let space = self.with(py, blocking::Volume::space)?;
        Ok((space.total_bytes, space.available_bytes, space.inodes))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with(py, |volume| volume.xattrs(path).get(name))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(&self, py: Python<'_>, path: &[u8], name: &[u8], value: &[u8]) -> PyResult<()> {
        let mode = XattrMode::Either {};
        self.with(py, |volume| volume.xattrs(path).set(name, value, mode).map(drop))
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.with(py, |volume| volume.xattrs(path).list())?;
        Ok(names.iter().map(|name| PyBytes::new(py, name.as_bytes())).collect())
    }

    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8]) -> PyResult<()> {
        self.with(py, |volume| volume.xattrs(path).remove(name).map(drop))
    }
}
