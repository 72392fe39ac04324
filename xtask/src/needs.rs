//! Programs that must be on the machine. What is missing is installed by the system's package
//! manager if that can be done without asking (as root, with apt-get); else the exact line is
//! printed and the command fails.

use crate::steps::ProgramCall;

/// A program that a command cannot do without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// What it is.
    what: &'static str,
    /// How to see whether it is there.
    sign: Sign,
    /// How it gets there.
    source: NeedSource,
}

#[derive(Clone, Copy, Debug)]
enum Sign {
    /// A program of this name is on the PATH.
    OnPath(&'static str),
    /// This call succeeds.
    Succeeds(&'static str),
    /// This much space, in GiB, is free for `target/` or used by it already.
    Space(u64),
    /// It is among the tools of this tree, in this version.
    Tool { name: &'static str, version: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeedSource {
    /// A package of Debian and the systems made from it.
    Package(&'static str),
    /// A line for the user to type: toolchains are not ours to change.
    Line(&'static str),
    /// A call that builds it, in this tree and for it alone.
    Build(&'static str),
}

/// What the test command must find free even where all is built: new builds of changed crates and
/// the volumes of the tests. In GiB.
const LEAST_SPACE_GIB: u64 = 4;

/// Where the tools of this tree are.
const TOOLS: &str = "target/tools";

/// What the test command builds, in debug and in release. It fills the disk late, half an hour
/// after the start, if it is short.
pub(crate) const SPACE: Need = Need {
    what: "12 GiB on the disk, free or in target/ (4 of them free)",
    sign: Sign::Space(12),
    source: NeedSource::Line("cargo clean"),
};

/// Rust links with it, and some crates contain C.
pub(crate) const C_COMPILER: Need = Need::program("a C compiler (cc)", "cc", "build-essential");

/// A real NFS client that needs no mount and no root: nfs-ls, nfs-cp and nfs-cat.
pub(crate) const NFS_CLIENT: Need =
    Need::program("an NFS client (nfs-ls, nfs-cp and nfs-cat of libnfs)", "nfs-ls", "libnfs-utils");

/// Runs the tests of the Python package.
pub(crate) const PYTHON: Need = Need {
    what: "Python 3.11 or newer, with venv",
    sign: Sign::Succeeds("python3 client/python/tests/is_new_enough.py"),
    source: NeedSource::Package("python3-venv"),
};

/// Builds and runs the MPI example.
pub(crate) const MPI_COMPILER: Need =
    Need::program("MPI for C programs (mpicc of mpich)", "mpicc", "libmpich-dev");

/// Starts the ranks of the MPI example.
pub(crate) const MPI: Need = Need::program("MPI (mpiexec of mpich)", "mpiexec", "mpich");

/// A Linux kernel that is a program, with the kernel's own NFS client among its modules.
pub(crate) const GUEST_KERNEL: Need =
    Need::program("User-mode Linux (linux.uml)", "linux.uml", "user-mode-linux");

/// The network of such a kernel, for any user.
pub(crate) const GUEST_NETWORK: Need = Need::program("slirp", "slirp-fullbolt", "slirp");

/// What makes such a kernel ready for a job.
pub(crate) const GUEST_SHELL: Need =
    Need::program("busybox, all in one file", "busybox", "busybox-static");

/// Where NFS clients ask for ports; `rpcinfo` comes with it.
pub(crate) const RPCBIND: Need = Need::program("rpcbind", "rpcbind", "rpcbind");

/// Messages and remote memory between processes; `fi_info` comes with the library.
pub(crate) const LIBFABRIC: Need = Need::program("libfabric (fi_info)", "fi_info", "libfabric-bin");

/// Looks at the page of `mdfs-lab emulate --movie`.
pub(crate) const BROWSER: Need = Need::program("a browser (chromium)", "chromium", "chromium");

/// The coordination engine of a cluster; tests start one of their own.
pub(crate) const ETCD: Need = Need::program("etcd (3.4 or later)", "etcd", "etcd-server");

/// Makes hosts of network namespaces, for tests of clusters.
pub(crate) const HOSTS: Need = Need::program("ip and bridge (iproute2)", "bridge", "iproute2");

/// Has such hosts lose packets.
pub(crate) const PACKET_RULES: Need = Need::program("nft (nftables)", "nft", "nftables");

/// Checks the layout of the code.
pub(crate) const RUSTFMT: Need = Need {
    what: "rustfmt",
    sign: Sign::Succeeds("cargo fmt --version"),
    source: NeedSource::Line("rustup component add rustfmt"),
};

/// Checks the code against the workspace's lints.
pub(crate) const CLIPPY: Need = Need {
    what: "clippy",
    sign: Sign::Succeeds("cargo clippy --version"),
    source: NeedSource::Line("rustup component add clippy"),
};

/// Tries out a mounted volume, POSIX case by case.
pub(crate) const PJDFSTEST: Need = Need {
    what: "pjdfstest",
    sign: Sign::Tool { name: "pjdfstest", version: "0.2.2" },
    source: NeedSource::Build(
        "cargo install pjdfstest --version =0.2.2 --locked --root target/tools --target-dir \
         target/tools/build",
    ),
};

/// Tries out the content of a file of a mounted volume, by random operations.
pub(crate) const FSX: Need = Need {
    what: "fsx",
    sign: Sign::Tool { name: "fsx", version: "0.3.2" },
    source: NeedSource::Build(
        "cargo install fsx --version =0.3.2 --locked --root target/tools --target-dir \
         target/tools/build",
    ),
};

impl Need {
    /// A program on the PATH, and its package of Debian.
    const fn program(what: &'static str, program: &'static str, package: &'static str) -> Self {
        Self { what, sign: Sign::OnPath(program), source: NeedSource::Package(package) }
    }

    fn is_met(&self) -> bool {
        match self.sign {
            Sign::Tool { name, version } => {
                let list = std::fs::read_to_string(format!("{TOOLS}/.crates.toml"));
                let program = std::path::Path::new(TOOLS).join("bin").join(name);
                program.is_file()
                    && list.is_ok_and(|list| list.contains(&format!("\"{name} {version} ")))
            }
            Sign::OnPath(program) => on_path(program),
            Sign::Succeeds(line) => ProgramCall::new(line).output().is_some(),
            Sign::Space(needed) => has_space(needed),
        }
    }

    fn package(&self) -> Option<&'static str> {
        match self.source {
            NeedSource::Package(name) => Some(name),
            NeedSource::Line(_) | NeedSource::Build(_) => None,
        }
    }
}

/// Checks `needs` and installs what is missing if it can; the result is an exit code.
pub(crate) fn meet(needs: &[Need]) -> u8 {
    let packages: Vec<&str> = unmet(needs).iter().filter_map(Need::package).collect();
    if !packages.is_empty() && may_install() {
        install(&packages.join(" "));
    }
    for need in unmet(needs) {
        if let NeedSource::Build(line) = need.source {
            println!("building {}: {line}", need.what);
            ProgramCall::new(line).run();
        }
    }
    let missing = unmet(needs);
    if missing.is_empty() {
        return 0;
    }
    eprint!("{}", advice(&missing));
    1
}

fn unmet(needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|need| !need.is_met()).copied().collect()
}

/// Whether `target/` may grow to `needed_gib`. A system without `df` as POSIX has it is not
/// refused.
fn has_space(needed_gib: u64) -> bool {
    let free = ProgramCall::new("df -Pk .").output().and_then(|text| kib(text.lines().nth(1)?, 3));
    let used =
        ProgramCall::new("du -sk target").output().and_then(|text| kib(&text, 0)).unwrap_or(0);
    let missing = (needed_gib << 20).saturating_sub(used).max(LEAST_SPACE_GIB << 20);
    free.is_none_or(|free| free >= missing)
}

/// The number in `column` of a line of `df` or `du`.
fn kib(line: &str, column: usize) -> Option<u64> {
    line.split_whitespace().nth(column)?.parse().ok()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Root on a system with apt-get may install packages without a question.
fn may_install() -> bool {
    on_path("apt-get") && ProgramCall::new("id -u").output().is_some_and(|uid| uid.trim() == "0")
}

/// Installs `packages`. A new machine may not have the lists of packages yet.
fn install(packages: &str) {
    let install = ProgramCall::new(&format!(
        "env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends {packages}"
    ));
    println!("installing {packages}: {}", install.line());
    if install.run() != 0 {
        println!("the lists of packages may be old: apt-get update, then once more");
        if ProgramCall::new("apt-get update").run() == 0 {
            install.run();
        }
    }
}

/// What is missing, and the exact lines that bring it.
fn advice(missing: &[Need]) -> String {
    let mut lines: Vec<String> =
        missing.iter().map(|need| format!("missing: {}", need.what)).collect();
    lines.push("run this, then the command again:".into());
    let packages: Vec<&str> = missing.iter().filter_map(Need::package).collect();
    if !packages.is_empty() {
        let names = packages.join(" ");
        lines.push(format!("   sudo apt-get update && sudo apt-get install --yes {names}"));
        if !on_path("apt-get") {
            lines.push("   (there is no apt-get here: install the same with what there is)".into());
        }
    }
    lines.extend(missing.iter().filter_map(|need| match need.source {
        NeedSource::Line(line) | NeedSource::Build(line) => Some(format!("   {line}")),
        NeedSource::Package(_) => None,
    }));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Need = Need {
        what: "a thing",
        sign: Sign::OnPath("no-such-program-anywhere"),
        source: NeedSource::Line("make thing"),
    };

    #[test]
    fn what_is_missing_is_told_with_the_line_that_brings_it() {
        let advice = advice(&[NFS_CLIENT, C_COMPILER, RUSTFMT]);
        let apt = "sudo apt-get update && sudo apt-get install --yes libnfs-utils build-essential";
        assert!(advice.contains("missing: an NFS client"), "{advice}");
        assert!(advice.contains(apt), "{advice}");
        assert!(advice.contains("   rustup component add rustfmt\n"), "{advice}");
    }

    #[test]
    fn space_is_asked_for_before_it_lacks() {
        assert!(has_space(0), "this test needs 4 GiB itself");
        assert!(!has_space(1 << 40));
        assert_eq!(kib("/dev/vda  264212084 38756704  56529184 41% /", 3), Some(56_529_184));
    }

    #[test]
    fn a_missing_program_fails_the_command_and_a_present_one_does_not() {
        let present = Need { sign: Sign::OnPath("sh"), ..ABSENT };
        let succeeds = Need { sign: Sign::Succeeds("true"), ..ABSENT };
        assert_eq!(meet(&[present, succeeds]), 0);
        assert_eq!(meet(&[present, ABSENT]), 1);
        assert_eq!(meet(&[Need { sign: Sign::Succeeds("false"), ..ABSENT }]), 1);
    }
}
