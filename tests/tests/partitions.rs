//! Partitions as people use them: the commands, a mount, NFS of libnfs and of the Linux kernel.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use rustix::fs::statvfs;
use serde_json::Value;
use tests::guest::{POINT, may_boot, run};
use tests::mounted::{Mounted, may_mount};
use tests::{Site, libnfs};

const VOLUME: &str = "VOL";
const MIB: u64 = 1 << 20;

fn listed(site: &Site) -> Vec<Value> {
    serde_json::from_str(&site.ok(&["partition", "list", "--json", VOLUME])).unwrap()
}

fn used(site: &Site, name: &str) -> u64 {
    let listed = listed(site);
    let found = listed.iter().find(|partition| partition["name"] == name).unwrap();
    found["used_bytes"].as_u64().unwrap()
}

#[test]
fn partitions_are_created_listed_limited_and_removed() {
    let site = Site::formatted(512, 16);
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "4MiB"]);
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "4MiB"]);
    site.refused(&["partition", "create", VOLUME, "home"]).says(1, &["home", "choose another"]);
    let bad = ["partition", "create", VOLUME, "other", "--block", "5000"];
    site.refused(&bad).says(1, &["4096", "choose 4KiB"]);
    let content = site.path("content");
    fs::write(&content, vec![7; 3 * MIB as usize]).unwrap();
    let content = content.to_str().unwrap();
    site.ok(&["cp", content, &format!("{VOLUME}:/home/one")]);
    let full = site.refused(&["cp", content, &format!("{VOLUME}:/home/two")]);
    full.says(1, &["no space"]);
    let found = &listed(&site)[1];
    assert_eq!(found["name"], "home");
    assert_eq!(
        (&found["limit_bytes"], &found["used_bytes"]),
        (&(4 * MIB).into(), &(3 * MIB).into())
    );
    assert_eq!(found["available_bytes"], Value::from(MIB));
    site.ok(&["partition", "limit", VOLUME, "home", "none"]);
    site.ok(&["cp", content, &format!("{VOLUME}:/home/two")]);
    assert_eq!(used(&site, "home"), 6 * MIB);
    site.refused(&["partition", "limit", VOLUME, "hoem", "none"]).says(1, &["partition list"]);
    site.refused(&["partition", "remove", VOLUME, "home"]).says(1, &["--with-content"]);
    let table = site.ok(&["partition", "list", VOLUME]);
    println!("{table}");
    assert!(table.contains("home"), "{table}");
    site.ok(&["partition", "remove", "--with-content", VOLUME, "home"]);
    assert_eq!(listed(&site).len(), 1);
    site.refused(&["ls", &format!("{VOLUME}:/home")]).says(1, &["home"]);
    site.ok(&["check", VOLUME]);
}

#[test]
fn a_mount_shows_a_partition_as_a_file_system_of_its_own() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(512, 16);
    let served = site.serve();
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "16MiB", "--block", "64KiB"]);
    site.ok(&["partition", "create", VOLUME, "work"]);
    let mounted = Mounted::start(&site, &[]);
    let (home, work) = (mounted.path("home"), mounted.path("work"));
    fs::write(home.join("file"), vec![7; 2 * MIB as usize]).unwrap();
    let crossed = fs::rename(home.join("file"), work.join("file")).unwrap_err();
    assert_eq!(crossed.kind(), ErrorKind::CrossesDevices);
    let linked = fs::hard_link(home.join("file"), mounted.path("file")).unwrap_err();
    assert_eq!(linked.kind(), ErrorKind::CrossesDevices);
    assert_eq!(fs::remove_dir(&work).unwrap_err().kind(), ErrorKind::ResourceBusy);
    // `mv` copies between file systems.
    let moved = Command::new("mv").arg(home.join("file")).arg(work.join("file")).status();
    assert!(moved.unwrap().success());
    assert_eq!(fs::read(work.join("file")).unwrap(), vec![7; 2 * MIB as usize]);
    let space = statvfs(&home).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 16 * MIB);
    let too_large = fs::write(home.join("large"), vec![7; 17 * MIB as usize]);
    assert_eq!(too_large.unwrap_err().kind(), ErrorKind::StorageFull);
    fs::remove_file(home.join("large")).unwrap();

    mounted.unmount();
    served.stop();
}

#[test]
fn partitions_are_exported_by_name() {
    let site = Site::formatted(512, 16);
    let served = site.serve();
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "16MiB", "--block", "64KiB"]);
    let content = site.path("content");
    fs::write(&content, b"content").unwrap();
    libnfs::copy(content.to_str().unwrap(), &libnfs::url(&served, "/home/file"));
    assert_eq!(libnfs::list(&served, "/home"), ["file"]);
    assert_eq!(libnfs::cat(&served, "/home/file"), b"content");
    served.stop();
}

fn kernel_crosses(version: &str) {
    if !may_boot() {
        return;
    }
    let site = Site::formatted(512, 16);
    let served = site.serve();
    site.ok(&["partition", "create", VOLUME, "home", "--limit", "16MiB", "--block", "64KiB"]);
    let job = format!(
        r"mount_nfs {version} {POINT}
         cd {POINT}
         echo outside >outside
         echo inside >home/inside
         cat outside home/inside
         ls -la home
         [ $(stat -c %d .) != $(stat -c %d home) ]
         [ $(stat -f -c '%b' home) -lt $(stat -f -c '%b' .) ]
         if ln outside home/outside 2>/dev/null; then exit 1; fi
         mv home/inside moved
         cat moved
         if dd if=/dev/zero of=home/large bs=1M count=17 conv=fsync 2>/run/told; then exit 1; fi
         grep -i 'no space' /run/told
         rm home/large
         if rmdir home 2>/dev/null; then exit 1; fi
         ls"
    );
    let told = run(&site, served.port(), 120, &job).ok();
    assert!(told.contains("outside\ninside\n"), "{told}");
    served.stop();
    assert_eq!(used(&site, "home"), 0);
}

#[test]
fn the_kernel_crosses_into_a_partition_by_nfs_3() {
    kernel_crosses("3");
}

#[test]
fn the_kernel_crosses_into_a_partition_by_nfs_4_2() {
    kernel_crosses("4.2");
}
