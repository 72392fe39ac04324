//! What no single crate can promise: the real program with real disks, real clients and real
//! crashes. The whole system in simulation is beside it, in the crate `sim`.
//!
//! # Promise
//!
//! - Each test has a folder of its own on a real disk, under the target directory, and leaves
//!   neither files nor processes behind.
//! - The server of a test is the program that users run; a panic in it fails the test, whatever
//!   the test asks.
//! - What the operator or a client is told is looked at, not only that something failed.
//!
//! With `MDFS_LONG=1` in the environment the sizes are those that the system is to be shown with;
//! without it, and in debug builds, smaller ones.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `site.rs` | a folder with volumes in it, and the program run there |
//! | `served.rs` | a server process: started, stopped, killed |
//! | `cluster/` | several processes that serve one volume, their etcd, their hosts, and who writes there |
//! | `client_host.rs` | a host without a server, and a mount there |
//! | `far_link.rs` | a link with a rate and a delay |
//! | `mounted.rs` | a mounted volume: mounted, unmounted, killed |
//! | `mount_helper.rs` | `mount(8)` with the program as its helper |
//! | `guest.rs` | a Linux kernel as a process, for the NFS client in it |
//! | `conformance.rs` | what others have written to try out file systems |
//! | `http.rs` | a page over HTTP |
//! | `content.rs` | files of random bytes, made and compared as streams |
//! | `libnfs.rs` | the NFS client of the system: `nfs-ls`, `nfs-cp`, `nfs-cat` |
//! | `raw_nfs.rs` | an NFS client of our own, that can also send what no client should |
//! | `raw_nfs4.rs` | its sessions of version 4.1 |
//!
//! The tests: `big_files.rs`, `bad_input.rs`, `bad_bytes.rs`, `crash.rs`, `clients.rs`,
//! `far_links.rs`, `nfs_load.rs`,
//! `cluster/`, `mount.rs`, `mount_conformance.rs`, `mount_crash.rs`, `mount_helper.rs`,
//! `kernel_nfs.rs`, `remote_clients.rs`, `retransmission.rs`, `rpcbind.rs`, `emulate.rs`.

pub mod client_host;
pub mod cluster;
pub mod conformance;
pub mod content;
pub mod far_link;
pub mod guest;
pub mod http;
pub mod libnfs;
pub mod mount_helper;
pub mod mounted;
pub mod raw_nfs;
pub mod raw_nfs4;
pub mod served;
pub mod site;

pub use content::Content;
pub use http::get;
pub use mounted::Mounted;
pub use served::Served;
pub use site::{Refusal, Site};

/// Are the full sizes wanted, however long that takes?
pub fn long() -> bool {
    std::env::var_os("MDFS_LONG").is_some_and(|value| value == "1")
}
