//! The machine file.

use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::coordination::Tls;
use cluster::membership::{Founder, ProcessId};
use serde::Deserialize;
use transport::fabric::{FabricOptions, Provider, unknown_provider};
use transport::tls::KeyFolder;
use volume::cluster::{ClusterShape, Engine, LEASE, MemberDisks};
use volume::{DiskName, RedundancyClass};

use crate::exit::CommandFailure;
use crate::size::{ByteSize, cache_size};

/// Seconds that a lease may have: more than an election of etcd takes, and few enough that a
/// process which is cut off from etcd does not keep others waiting for long.
const LEASE_SECONDS: std::ops::RangeInclusive<u32> = 5..=60;

/// A file to begin with.
pub(super) const EXAMPLE: &str = r#"# The machine file of a cluster: the same on each host.

[coordination]
# The etcd servers that all processes can reach.
etcd = ["http://127.0.0.1:2379"]
# Before the keys in etcd: each volume has its own.
prefix = "mdfs/scratch/"
# Seconds for which a process may be unable to reach etcd and keeps what it serves. It answers
# nothing meanwhile; a process that is found dead is taken over from before.
# lease = 10
# With https://: who vouches for etcd, and what this host proves to it by. Files in PEM.
# authority = "/etc/mdfs/etcd-ca.pem"
# certificate = "/etc/mdfs/etcd-client.pem"
# key = "/etc/mdfs/etcd-client.key"

# How the processes know each other: `mdfs cluster init` makes the keys.
[security]
keys = "keys"       # a folder, on each host; beside this file unless it begins with /

# A faster way than TCP between processes that both have libfabric: uncomment it. The first provider that both
# have is taken; of "shm" they must be on one host.
# [links]
# fabric = ["shm", "verbs;ofi_rxm", "tcp;ofi_rxm"]

# What the volume is like, for good. Sizes as in 64KiB or 4GiB.
[volume]
# name = "scratch" # for clients of other hosts: mdfs://HOST:PORT/scratch; else the prefix's last part
nodes = 64          # file-system nodes, which share the work
stripe = "64KiB"    # so much goes to one disk before the next one
redundancy = "none" # or "2x", "3x": data on two or three disks, of different processes if possible; "4+1", "8+2"
disks = 1           # disks of each process that has some, and does not name them
disk-size = "4GiB"  # of each disk; its file grows only as it is written

# The processes that serve it. A new one is put at the end. Numbers and disk nodes stay with a process for good:
# if one with disks is deleted here, the next gets `disk-node = N` as `mdfs cluster status` shows it.
[[process]]
number = 1
address = "127.0.0.1:7401"  # where the other processes reach it
directory = "/srv/mdfs/1"   # its disks and its socket, on its host
cache = "512MiB"            # memory for cached data
prefault = true             # is found at the start, not when it is first used
scrub-days = 7              # between comparisons of all data with its checksums; 0: never

[[process]]
number = 2
address = "127.0.0.1:7402"
directory = "/srv/mdfs/2"
# disk-paths = ["/dev/disk/by-id/nvme-A", "/dev/disk/by-id/nvme-B"]  # devices, in place of files in the directory
# disk-size = "1TiB"        # of each; a process that joins later uses all of its devices

[[process]]
number = 3
address = "127.0.0.1:7403"
directory = "/srv/mdfs/3"
has-disks = false           # takes part in the work, and stores nothing
"#;

/// The machine file as it stands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineFile {
    coordination: CoordinationTable,
    #[serde(default)]
    security: SecurityTable,
    #[serde(default)]
    links: LinksTable,
    pub(super) volume: VolumeTable,
    #[serde(rename = "process")]
    pub(super) processes: Vec<ProcessTable>,
    /// Where the file is: other files are named from there.
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoordinationTable {
    etcd: Vec<String>,
    prefix: String,
    #[serde(default)]
    lease: Option<u32>,
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecurityTable {
    keys: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksTable {
    #[serde(default)]
    fabric: Vec<String>,
}

impl Default for SecurityTable {
    fn default() -> Self {
        Self { keys: "keys".into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct VolumeTable {
    name: Option<String>,
    nodes: u32,
    #[serde(deserialize_with = "size")]
    stripe: ByteSize,
    #[serde(default, deserialize_with = "redundancy")]
    redundancy: RedundancyClass,
    disks: u32,
    #[serde(deserialize_with = "size")]
    pub(super) disk_size: ByteSize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ProcessTable {
    pub(super) number: u32,
    pub(super) address: String,
    pub(super) directory: PathBuf,
    #[serde(default = "yes")]
    has_disks: bool,
    /// Devices or files, in place of files in the directory.
    #[serde(default)]
    disk_paths: Vec<PathBuf>,
    #[serde(default, deserialize_with = "some_size")]
    disk_size: Option<ByteSize>,
    /// One more than that of the process before, if it is not given.
    disk_node: Option<u32>,
    #[serde(default, deserialize_with = "some_cache")]
    pub(super) cache: Option<ByteSize>,
    #[serde(default)]
    pub(super) prefault: bool,
    pub(super) scrub_days: Option<u32>,
}

fn yes() -> bool {
    true
}

fn size<'de, D: serde::Deserializer<'de>>(input: D) -> Result<ByteSize, D::Error> {
    String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
}

fn redundancy<'de, D: serde::Deserializer<'de>>(input: D) -> Result<RedundancyClass, D::Error> {
    String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
}

fn some_size<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<ByteSize>, D::Error> {
    size(input).map(Some)
}

fn some_cache<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<ByteSize>, D::Error> {
    cache_size(&String::deserialize(input)?).map(Some).map_err(serde::de::Error::custom)
}

impl MachineFile {
    /// The name by which clients of other hosts ask for the volume.
    pub(super) fn name(&self) -> String {
        let prefix = self.coordination.prefix.trim_end_matches('/');
        let last = prefix.rsplit('/').next().unwrap_or_default();
        self.volume.name.clone().unwrap_or_else(|| last.to_owned())
    }

    /// Reads it.
    pub(super) fn read(path: &Path) -> Result<Self, CommandFailure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| CommandFailure::local("read the machine file", path, error))?;
        let parsed = Self::parse(&text).map_err(|cause| {
            CommandFailure::Wrong(format!("{}: {cause}; correct the machine file", path.display()))
        })?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { folder, ..parsed })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.coordination.lease.is_some_and(|seconds| !LEASE_SECONDS.contains(&seconds)) {
            let (least, most) = (LEASE_SECONDS.start(), LEASE_SECONDS.end());
            return Err(format!("a lease has {least} to {most} seconds"));
        }
        for (at, process) in file.processes.iter().enumerate() {
            if file.processes[..at].iter().any(|other| other.number == process.number) {
                return Err(format!("two processes have the number {}", process.number));
            }
            if process.number == u32::MAX {
                return Err(format!("a process cannot have the number {}", u32::MAX));
            }
            let names_disks = !process.disk_paths.is_empty() || process.disk_node.is_some();
            if !process.has_disks && names_disks {
                let number = process.number;
                return Err(format!("process {number} has disks, and `has-disks = false`"));
            }
        }
        let mut nodes: Vec<u32> = file.disk_nodes().into_iter().flatten().collect();
        nodes.sort_unstable();
        if let Some([disk_node, ..]) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two processes have the disk node {disk_node}"));
        }
        Ok(file)
    }

    /// The length of the leases of its processes.
    pub(super) fn lease(&self) -> Duration {
        self.coordination.lease.map_or(LEASE, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Where etcd is, and how this host proves to it who it is.
    pub(super) fn engine(&self) -> Result<Engine, CommandFailure> {
        let CoordinationTable { etcd, prefix, authority, certificate, key, .. } =
            &self.coordination;
        let read = |path: &PathBuf| {
            let path = self.folder.join(path);
            std::fs::read(&path).map_err(|error| CommandFailure::local("read", &path, error))
        };
        let identity_pem = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => {
                let text = "[coordination] names a certificate without its key, or a key without its \
                            certificate; name both or none";
                return Err(CommandFailure::Wrong(text.to_owned()));
            }
        };
        let authorities_pem = authority.as_ref().map(read).transpose()?;
        let tls = authorities_pem.map(|authorities_pem| Tls { authorities_pem, identity_pem });
        Ok(Engine { endpoints: etcd.clone(), prefix: prefix.clone(), tls })
    }

    /// Where the keys of the cluster are.
    pub(super) fn keys(&self) -> KeyFolder {
        KeyFolder(self.folder.join(&self.security.keys))
    }

    /// How process `number` reaches others by libfabric; `None` if the file does not request it.
    pub(super) fn fabric(&self, number: u32) -> Result<Option<FabricOptions>, CommandFailure> {
        if self.links.fabric.is_empty() {
            return Ok(None);
        }
        let provider = |name: &String| {
            Provider::of_name(name).ok_or_else(|| {
                let why = unknown_provider(name);
                CommandFailure::Wrong(format!("[links] {why}; correct the machine file"))
            })
        };
        let process = self.process(number)?;
        let source = process.address.to_socket_addrs().ok().and_then(|mut found| found.next());
        Ok(Some(FabricOptions {
            providers: self.links.fabric.iter().map(provider).collect::<Result<_, _>>()?,
            source: source.map(|source| source.ip()),
            costs: Some(process.directory.clone()),
            is_told: true,
        }))
    }

    /// The numbers of all processes.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.number).collect()
    }

    /// The disk node of each process, in the order of the file.
    fn disk_nodes(&self) -> Vec<Option<u32>> {
        let mut next = 0_u32;
        let number = |process: &ProcessTable| {
            let disk_node = process.has_disks.then(|| process.disk_node.unwrap_or(next))?;
            next = disk_node.saturating_add(1);
            Some(disk_node)
        };
        self.processes.iter().map(number).collect()
    }

    fn disks_of(&self, process: &ProcessTable, disk_node: Option<u32>) -> MemberDisks {
        let paths = process.disk_paths.clone();
        let count = if paths.is_empty() { self.volume.disks } else { paths.len() as u32 };
        let bytes = process.disk_size.unwrap_or(self.volume.disk_size).0;
        MemberDisks { disk_node, count, paths, bytes }
    }

    /// The disks of process `number`.
    pub(super) fn disks(&self, number: u32) -> MemberDisks {
        let found = self.processes.iter().zip(self.disk_nodes());
        let mut found = found.filter(|(process, _)| process.number == number);
        let of = |(process, disk_node): (&ProcessTable, _)| self.disks_of(process, disk_node);
        found.next().map(of).unwrap_or_default()
    }

    /// The shape of the cluster to be made. Disk nodes are numbered in the order of the processes.
    pub(super) fn shape(&self) -> Result<ClusterShape, CommandFailure> {
        let VolumeTable { nodes, stripe, redundancy, .. } = self.volume;
        let stripe_size = u32::try_from(stripe.0)
            .map_err(|_| CommandFailure::Wrong("a stripe is at most 4 GiB long".to_owned()))?;
        let (mut founders, mut disks) = (Vec::new(), Vec::new());
        for (process, disk_node) in self.processes.iter().zip(self.disk_nodes()) {
            let (id, own) = (ProcessId(process.number), disk_node.into_iter().collect());
            founders.push(Founder { id, disks: own });
            let Some(disk_node) = disk_node else { continue };
            let MemberDisks { count, bytes, .. } = self.disks_of(process, Some(disk_node));
            disks.extend((0..count).map(|disk| (DiskName { disk_node, disk }, bytes)));
        }
        Ok(ClusterShape { fs_nodes: nodes, stripe_size, redundancy, disks, founders })
    }

    /// What the file says of process `number`.
    pub(super) fn process(&self, number: u32) -> Result<&ProcessTable, CommandFailure> {
        let found = self.processes.iter().find(|process| process.number == number);
        found.ok_or_else(|| {
            CommandFailure::Usage(format!(
                "the machine file has no process {number}; add it there first"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_machine_file() {
        let file = MachineFile::parse(EXAMPLE).unwrap();
        let shape = file.shape().unwrap();
        let disks: Vec<Vec<u32>> =
            shape.founders.iter().map(|founder| founder.disks.clone()).collect();
        assert_eq!(disks, [vec![0], vec![1], vec![]]);
        assert_eq!((shape.fs_nodes, shape.stripe_size), (64, 64 << 10));
        let name = |disk_node| DiskName { disk_node, disk: 0 };
        assert_eq!(shape.disks, [(name(0), 4 << 30), (name(1), 4 << 30)]);
        assert_eq!(file.process(1).unwrap().cache, Some(ByteSize(512 << 20)));
        assert_eq!(file.keys().0, Path::new("keys"));
        assert!(file.fabric(1).unwrap().is_none(), "the file does not request it");
        assert!(file.process(4).unwrap_err().to_string().contains("no process 4"));
    }

    #[test]
    fn who_asks_for_libfabric_gets_it_in_the_order_of_the_file() {
        let asked = EXAMPLE.replace("# [links]", "[links]").replace("# fabric", "fabric");
        let options = MachineFile::parse(&asked).unwrap().fabric(2).unwrap().unwrap();
        assert_eq!(options.providers, [Provider::Shm, Provider::Verbs, Provider::Tcp]);
        assert_eq!(options.source.unwrap().to_string(), "127.0.0.1");
        let odd = asked.replace("shm", "carrier-pigeon");
        let text = MachineFile::parse(&odd).unwrap().fabric(1).unwrap_err().to_string();
        assert!(text.contains("carrier-pigeon") && text.contains("tcp;ofi_rxm"), "{text}");
    }

    #[test]
    fn a_process_names_its_disks_and_keeps_its_disk_node() {
        let named = EXAMPLE.replace("# disk-", "disk-");
        let file = MachineFile::parse(&named).unwrap();
        let disks = file.disks(2);
        assert_eq!((disks.disk_node, disks.count, disks.bytes), (Some(1), 2, 1 << 40));
        assert_eq!(disks.paths[1], Path::new("/dev/disk/by-id/nvme-B"));
        assert_eq!(file.shape().unwrap().disks.len(), 3);
        assert_eq!((file.disks(3).disk_node, file.disks(9).disk_node), (None, None));
        // The first has left for good.
        let (head, rest) = EXAMPLE.split_once("[[process]]").unwrap();
        let rest = &rest[rest.find("[[process]]").unwrap()..];
        let left = format!("{head}{}", rest.replace("number = 2", "number = 2\ndisk-node = 1"));
        let file = MachineFile::parse(&left).unwrap();
        assert_eq!(file.shape().unwrap().founders[0].disks, [1]);
        let both = EXAMPLE.replace("number = 1", "number = 1\ndisk-node = 1");
        assert_eq!(MachineFile::parse(&both).unwrap().disks(2).disk_node, Some(2));
        let twice = both.replace("number = 2", "number = 2\ndisk-node = 1");
        assert!(MachineFile::parse(&twice).unwrap_err().contains("the disk node 1"));
        let none = EXAMPLE.replace("number = 3", "number = 3\ndisk-paths = [\"/dev/sdb\"]");
        assert!(MachineFile::parse(&none).unwrap_err().contains("process 3 has disks"));
    }

    #[test]
    fn a_file_that_makes_no_sense_says_where() {
        let twice = EXAMPLE.replace("number = 2", "number = 1");
        assert!(MachineFile::parse(&twice).unwrap_err().contains("the number 1"));
        let odd = EXAMPLE.replace("\"64KiB\"", "\"many\"");
        assert!(MachineFile::parse(&odd).unwrap_err().contains("stripe"), "the line is shown");
        assert!(MachineFile::parse(&EXAMPLE.replace("etcd =", "zookeeper =")).is_err());
    }
}
