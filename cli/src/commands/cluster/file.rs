//! The machine file.

use std::path::{Path, PathBuf};

use fileio::stack::cluster::{ClusterShape, Engine};
use runtime::membership::{Founder, ProcessId};
use serde::Deserialize;

use crate::exit::Failure;
use crate::size::Size;

/// A file to begin with.
pub(super) const EXAMPLE: &str = r#"# The machine file of a cluster: the same on each host.

[coordination]
# The etcd servers that all processes can reach.
etcd = ["http://127.0.0.1:2379"]
# Before the keys in etcd: each volume has its own.
prefix = "mdfs/scratch/"

# What the volume is like, for good. Sizes as in 64KiB or 4GiB.
[volume]
nodes = 64          # file-system nodes: over so many the work is spread
stripe = "64KiB"    # so much goes to one disk before the next one
disks = 1           # disks of each process that has some
disk-size = "4GiB"  # of each disk; its file grows only as it is written

# The processes that serve it. Numbers and disks stay with a process for good.
[[process]]
number = 1
address = "127.0.0.1:7401"  # where the other processes reach it
directory = "/srv/mdfs/1"   # its disks and its socket, on its host
cache = "512MiB"

[[process]]
number = 2
address = "127.0.0.1:7402"
directory = "/srv/mdfs/2"

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
    pub(super) volume: VolumeTable,
    #[serde(rename = "process")]
    pub(super) processes: Vec<ProcessTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoordinationTable {
    etcd: Vec<String>,
    prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct VolumeTable {
    nodes: u32,
    #[serde(deserialize_with = "size")]
    stripe: Size,
    disks: u32,
    #[serde(deserialize_with = "size")]
    pub(super) disk_size: Size,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ProcessTable {
    pub(super) number: u32,
    pub(super) address: String,
    pub(super) directory: PathBuf,
    #[serde(default = "yes")]
    has_disks: bool,
    #[serde(default, deserialize_with = "some_size")]
    pub(super) cache: Option<Size>,
}

fn yes() -> bool {
    true
}

fn size<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Size, D::Error> {
    String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
}

fn some_size<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Size>, D::Error> {
    size(input).map(Some)
}

impl MachineFile {
    /// Reads it.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::local("read the machine file", path, error))?;
        Self::parse(&text).map_err(|cause| {
            Failure::Wrong(format!("{}: {cause}; correct the machine file", path.display()))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (at, process) in file.processes.iter().enumerate() {
            if file.processes[..at].iter().any(|other| other.number == process.number) {
                return Err(format!("two processes have the number {}", process.number));
            }
        }
        Ok(file)
    }

    /// Where etcd is.
    pub(super) fn engine(&self) -> Engine {
        let CoordinationTable { etcd, prefix } = &self.coordination;
        Engine { endpoints: etcd.clone(), prefix: prefix.clone(), tls: None }
    }

    /// The shape of the cluster to be made. Disk nodes are numbered in the order of the processes.
    pub(super) fn shape(&self) -> Result<ClusterShape, Failure> {
        let VolumeTable { nodes, stripe, disks, disk_size } = self.volume;
        let stripe_size = u32::try_from(stripe.0)
            .map_err(|_| Failure::Wrong("a stripe is at most 4 GiB long".to_owned()))?;
        let mut disk_node = 0;
        let founders = self.processes.iter().map(|process| {
            let first = disk_node;
            disk_node += u32::from(process.has_disks);
            Founder { id: ProcessId(process.number), disks: (first..disk_node).collect() }
        });
        Ok(ClusterShape {
            fs_nodes: nodes,
            stripe_size,
            disks_per_node: disks,
            disk_bytes: disk_size.0,
            founders: founders.collect(),
        })
    }

    /// What the file says of process `number`.
    pub(super) fn process(&self, number: u32) -> Result<&ProcessTable, Failure> {
        let found = self.processes.iter().find(|process| process.number == number);
        found.ok_or_else(|| {
            Failure::Usage(format!("the machine file has no process {number}; add it there first"))
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
        assert_eq!((shape.fs_nodes, shape.stripe_size, shape.disk_bytes), (64, 64 << 10, 4 << 30));
        assert_eq!(file.process(1).unwrap().cache, Some(Size(512 << 20)));
        assert!(file.process(4).unwrap_err().to_string().contains("no process 4"));
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
