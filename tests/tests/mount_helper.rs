//! A volume mounted by `mount(8)`, from a line as in `/etc/fstab` and by its type.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::thread;
use std::time::Duration;

use tests::Site;
use tests::mount_helper::with_mount_helper;
use tests::mounted::may_mount;
use tests::site::VOLUME;

/// `$1` is the volume, `$2` the mount point, `$3` the table.
const SCRIPT: &str = r#"
set -eux
trap 'umount -q -l "$2" || true' EXIT
flags() { grep " $2 fuse.mdfs " /proc/mounts | cut -d' ' -f4; }

mount -T "$3" "$2"
case $(flags "$@") in rw,nosuid,nodev,*allow_other*) ;; *) exit 10 ;; esac
echo one > "$2/file"
mount -o remount,ro "$2"
case $(flags "$@") in ro,nosuid,nodev,*) ;; *) exit 11 ;; esac
if echo two >> "$2/file"; then exit 12; fi
mount -o remount,rw,noexec "$2"
case $(flags "$@") in rw,nosuid,nodev,noexec,*) ;; *) exit 13 ;; esac
echo two >> "$2/file"
umount "$2"

for type in mdfs fuse.mdfs; do
    mount -t $type -o ro,noexec,cache_ms=0 "$1" "$2"
    case $(flags "$@") in ro,nosuid,nodev,noexec,*) ;; *) exit 14 ;; esac
    test "$(cat "$2/file")" = "one
two"
    if echo no >> "$2/file"; then exit 15; fi
    mount -o remount,rw "$2"
    case $(flags "$@") in rw,nosuid,nodev,noexec,*) ;; *) exit 16 ;; esac
    echo more > "$2/file2"
    umount "$2"
done

mount -f -t mdfs "$1" "$2"
test -z "$(flags "$@")"
code=0; mount -t mdfs "$1/missing" "$2" || code=$?
test $code = 32
code=0; mount -t mdfs -o allow_others "$1" "$2" || code=$?
test $code = 1
"#;

/// The process in the background may still be closing the volume.
const TRIES_MAX: u32 = 100;

#[test]
fn a_volume_is_mounted_from_fstab_remounted_and_mounted_by_type() {
    mount_remount_and_unmount(true);
}

#[test]
fn the_helper_does_not_need_fuse3() {
    mount_remount_and_unmount(false);
}

fn mount_remount_and_unmount(fuse3: bool) {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(64, 8);
    let [volume, point, log] = [VOLUME, "point", "log"].map(|name| site.path(name));
    fs::create_dir(&point).unwrap();
    let options = format!("allow_other,nofail,x-systemd.automount,log={}", log.display());
    let line = format!("{} {} mdfs {options} 0 0\n", volume.display(), point.display());
    fs::write(site.path("fstab"), line).unwrap();

    let mut command = with_mount_helper(&site.path("helpers"), fuse3, "sh".as_ref());
    command.args(["-c", SCRIPT, "sh"]).arg(&volume).arg(&point).arg(site.path("fstab"));
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);
    for words in ["no such directory", "there is no mount option 'allow_others'"] {
        assert!(told.contains(words), "'{words}' is not in: {told}");
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "");

    let closed = (0..TRIES_MAX).any(|_| {
        thread::sleep(Duration::from_millis(100));
        site.run(&["check", VOLUME]).status.success()
    });
    assert!(closed, "the last mount is still there");
    assert_eq!(site.ok(&["cat", &format!("{VOLUME}:/file")]), "one\ntwo\n");
}
