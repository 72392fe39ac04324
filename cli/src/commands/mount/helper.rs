//! The helper of `mount(8)`: the program under the names `mount.mdfs` and `mount.fuse.mdfs`, for
//! `/etc/fstab`, `mount -t mdfs` and `mount -o remount`.
//!
//! `mount(8)` calls it as `mount.TYPE SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use client::VolumeAddress;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{MountFlags, mount_remount};

use super::{CACHE_MS, MountCommand, background};
use crate::connection::ConnectionArguments;
use crate::exit::{CommandFailure, say};

/// The names of the helper, one for each name of the type.
const NAMES: [&str; 2] = ["mount.mdfs", "mount.fuse.mdfs"];

/// Exit codes of `mount(8)`: the call makes no sense; the mount failed.
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Options for `mount(8)` and systemd, and those that hold for every volume.
const WITHOUT_EFFECT: &[&str] = &[
    "auto",
    "default_permissions",
    "defaults",
    "group",
    "mand",
    "nofail",
    "noauto",
    "nomand",
    "nouser",
    "nousers",
    "owner",
    "user",
    "users",
    "_netdev",
];
/// Prefixes of such options.
const WITHOUT_EFFECT_PREFIXES: &[&str] =
    &["x-", "X-", "comment=", "fsname=", "subtype=", "user=", "user_id=", "group_id=", "max_read="];

/// Options that are flags of the kernel, with the flags that they set and clear.
const FLAGS: &[(&str, MountFlags, MountFlags)] = &[
    ("ro", MountFlags::RDONLY, MountFlags::empty()),
    ("rw", MountFlags::empty(), MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID, MountFlags::empty()),
    ("suid", MountFlags::empty(), MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV, MountFlags::empty()),
    ("dev", MountFlags::empty(), MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC, MountFlags::empty()),
    ("exec", MountFlags::empty(), MountFlags::NOEXEC),
    ("sync", MountFlags::SYNCHRONOUS, MountFlags::empty()),
    ("async", MountFlags::empty(), MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC, MountFlags::empty()),
    ("noatime", MountFlags::NOATIME, MountFlags::RELATIME),
    ("atime", MountFlags::empty(), MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME, MountFlags::empty()),
    ("diratime", MountFlags::empty(), MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME, MountFlags::NOATIME),
    ("norelatime", MountFlags::empty(), MountFlags::RELATIME),
    ("strictatime", MountFlags::STRICTATIME, MountFlags::RELATIME.union(MountFlags::NOATIME)),
    ("nostrictatime", MountFlags::empty(), MountFlags::STRICTATIME),
    ("lazytime", MountFlags::LAZYTIME, MountFlags::empty()),
    ("nolazytime", MountFlags::empty(), MountFlags::LAZYTIME),
];

/// Flags of a mount as `statvfs` reports them, which are other bits than those of `mount(2)`.
const REPORTED: [(StatVfsMountFlags, MountFlags); 8] = [
    (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
    (StatVfsMountFlags::NODEV, MountFlags::NODEV),
    (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
    (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
    (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
];

/// Whether `mount(8)` calls the program by this name.
pub(crate) fn is_helper(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| NAMES.iter().any(|helper| name == *helper))
}

/// Runs the helper with `arguments`, the program's name left out.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let call = match HelperCall::parse(arguments) {
        Ok(call) => call,
        Err(error) => {
            say(format_args!("mount.mdfs: {error}"));
            return ExitCode::from(USAGE);
        }
    };
    match call.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, CommandFailure::Reported { .. }) {
                say(format_args!("mount.mdfs: {failure}"));
            }
            ExitCode::from(FAILED)
        }
    }
}

/// What `mount(8)` wants.
#[derive(Debug)]
struct HelperCall {
    mount: MountCommand,
    /// Flags of the kernel that are set and cleared, in the order of the options.
    flags: Vec<(MountFlags, MountFlags)>,
    remount: bool,
    /// Do everything but the mount (`-f`).
    fake: bool,
}

impl HelperCall {
    fn parse(arguments: Vec<OsString>) -> Result<Self, String> {
        let (mut paths, mut options, mut sloppy, mut fake) = (Vec::new(), Vec::new(), false, false);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let text = argument.to_str().unwrap_or_default();
            let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                paths.push(PathBuf::from(argument));
                continue;
            };
            match letters {
                "o" => {
                    let value = arguments.next().ok_or("-o needs OPTIONS")?;
                    let value = value.to_str().ok_or("the options are not UTF-8")?;
                    options.extend(value.split(',').map(str::to_owned));
                }
                "t" | "N" => drop(arguments.next()),
                _ => {
                    for letter in letters.chars() {
                        match letter {
                            's' => sloppy = true,
                            'f' => fake = true,
                            'n' | 'v' | 'w' => {}
                            'r' => options.push("ro".to_owned()),
                            _ => return Err(format!("there is no option -{letter}")),
                        }
                    }
                }
            }
        }
        let [volume, point] = <[PathBuf; 2]>::try_from(paths)
            .map_err(|_| "usage: mount.mdfs VOL DIR [-sfnv] [-o OPTION,...]")?;
        let volume = VolumeAddress::parse(volume).map_err(|error| error.to_string())?;
        let mount = MountCommand { volume, point, ..MountCommand::default() };
        let mut call = Self { mount, flags: Vec::new(), remount: false, fake };
        for option in options {
            let known = call.apply(&option)?;
            if !known && !sloppy {
                return Err(format!(
                    "there is no mount option '{option}'; there are ro, allow_other, \
                     cache_ms=MILLISECONDS, write_behind, log=FILE, token=FILE, timeout=SECONDS \
                     and those of all file systems"
                ));
            }
        }
        Ok(call)
    }

    /// Whether the option is known.
    fn apply(&mut self, option: &str) -> Result<bool, String> {
        if let Some((_, set, clear)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            self.flags.push((*set, *clear));
        }
        match option.split_once('=') {
            None if option == "allow_other" => self.mount.allow_other = true,
            None if option == "write_behind" => self.mount.write_behind = true,
            // `mount(8)` adds the options of fstab: those of the program hold until it is
            // unmounted.
            None if option == "remount" => self.remount = true,
            Some(("cache_ms", value)) => {
                let wrong = |_| format!("cache_ms={value} is not a number of milliseconds");
                self.mount.cache_ms = value.parse().map_err(wrong)?;
            }
            Some(("log", value)) => self.mount.log = Some(value.into()),
            Some(("token", value)) => self.mount.connection.token = Some(value.into()),
            Some(("timeout", value)) => {
                let wrong = |why| format!("timeout={value}: {why}");
                self.mount.connection.timeout = Some(value.parse().map_err(wrong)?);
            }
            _ => {
                return Ok(FLAGS.iter().any(|(name, ..)| *name == option)
                    || WITHOUT_EFFECT.contains(&option)
                    || WITHOUT_EFFECT_PREFIXES.iter().any(|prefix| option.starts_with(prefix)));
            }
        }
        Ok(true)
    }

    fn run(mut self) -> Result<(), CommandFailure> {
        if self.fake {
            return Ok(());
        }
        let flags = self.changed(MountFlags::empty());
        if !self.remount {
            self.mount.read_only = flags.contains(MountFlags::RDONLY);
            background::start(&self.mount)?;
        }
        // A mount has `nosuid` and `nodev` from the start.
        if self.remount || self.flags.iter().any(|(set, clear)| !is_read_only(*set | *clear)) {
            self.change_flags().map_err(|error| self.mount.failed("remount", error.into()))?;
        }
        Ok(())
    }

    /// `flags` with the changes of all options.
    fn changed(&self, flags: MountFlags) -> MountFlags {
        self.flags.iter().fold(flags, |flags, (set, clear)| (flags | *set) - *clear)
    }

    /// Sets and clears flags of the mount that is there.
    fn change_flags(&self) -> io::Result<()> {
        let point = &self.mount.point;
        let reported = statvfs(point)?.f_flag;
        let present = REPORTED.iter().filter(|(flag, _)| reported.contains(*flag));
        let present = present.fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag);
        Ok(mount_remount(point, self.changed(present), "")?)
    }
}

fn is_read_only(flags: MountFlags) -> bool {
    flags == MountFlags::RDONLY
}

impl Default for MountCommand {
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: false,
            cache_ms: CACHE_MS,
            write_behind: false,
            background: true,
            detach: false,
            log: None,
            connection: ConnectionArguments::default(),
            volume: VolumeAddress::Directory(PathBuf::new()),
            point: PathBuf::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Timeout;

    fn parse(line: &str) -> Result<HelperCall, String> {
        HelperCall::parse(line.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn a_call_of_mount_is_understood() {
        let options = "ro,nosuid,noexec,allow_other,cache_ms=5,_netdev,x-systemd.automount";
        let call = parse(&format!("/vol /mnt -v -o {options} -t fuse.mdfs")).unwrap();
        let MountCommand { allow_other, cache_ms, ref volume, ref point, .. } = call.mount;
        assert!(allow_other && cache_ms == 5 && !call.remount && !call.fake);
        assert_eq!((volume, point.as_path()), (&Path::new("/vol").into(), Path::new("/mnt")));
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
        assert_eq!(call.changed(MountFlags::empty()), flags);

        let call = parse("/vol /mnt -o remount,ro,rw,user_id=0").unwrap();
        assert!(call.remount);
        assert_eq!(call.changed(MountFlags::RDONLY | MountFlags::NODEV), MountFlags::NODEV);
        assert!(parse("/vol /mnt -fn").unwrap().fake);

        assert!(parse("/vol /mnt -o write_behind").unwrap().mount.write_behind);

        let call = parse("mdfs://h,g:1/v /mnt -o token=/t,timeout=forever").unwrap();
        assert_eq!(call.mount.volume.to_string(), "mdfs://h:7400,g:1/v");
        assert_eq!(call.mount.connection.token, Some("/t".into()));
        assert_eq!(call.mount.connection.timeout, Some(Timeout(None)));
    }

    #[test]
    fn a_call_that_makes_no_sense_is_refused_with_what_there_is() {
        assert!(parse("/vol /mnt -o allow_others").unwrap_err().contains("allow_other, cache_ms"));
        assert!(parse("/vol /mnt -s -o allow_others").is_ok());
        assert!(parse("/vol /mnt -o cache_ms=x").is_err());
        assert!(parse("/vol /mnt -o timeout=0").unwrap_err().contains("timeout=0: write"));
        assert!(parse("mdfs://h /mnt").unwrap_err().contains("names no volume"));
        assert!(parse("/vol").unwrap_err().starts_with("usage:"));
        assert!(parse("/vol /mnt -q").is_err());
    }

    #[test]
    fn the_helper_is_known_by_its_names() {
        assert!(is_helper("/sbin/mount.fuse.mdfs".as_ref()) && is_helper("mount.mdfs".as_ref()));
        assert!(!is_helper("/usr/bin/mdfs".as_ref()));
    }
}
