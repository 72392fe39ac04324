//! `mount(8)` with the program as its helper.

#![allow(clippy::unwrap_used, reason = "tests of whole processes panic where they fail")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::site::program;

/// Makes `$1` the helpers of `mount(8)` in the folder where alone it looks, without a change that
/// others see, and runs the rest. `$0` is an empty folder. If `$2` is `without`, the helpers of
/// Debian's `fuse3` are hidden.
const WITH_HELPER: &str = r#"
set -e
mkdir "$0/real" "$0/sbin"
mount --bind /sbin "$0/real"
for file in "$0"/real/*; do ln -s "$file" "$0/sbin/"; done
[ "$2" = with ] || rm -f "$0"/sbin/mount.fuse*
for name in mount.mdfs mount.fuse.mdfs; do ln -sf "$1" "$0/sbin/$name"; done
mount --bind "$0/sbin" /sbin
shift 2
exec "$@"
"#;

/// A call of `program` in which `mount(8)` finds its helper. `folder` is made, and is the place for
/// files that it takes. `fuse3` says whether the helpers of that package are there, if it is
/// installed.
pub fn with_mount_helper(folder: &Path, fuse3: bool, call: &Path) -> Command {
    std::fs::create_dir(folder).unwrap();
    let helper = folder.join("mdfs");
    symlink(program(), &helper).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_HELPER]);
    command.arg(folder).arg(helper).arg(if fuse3 { "with" } else { "without" }).arg(call);
    command
}
