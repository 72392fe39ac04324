//! Small identities that every layer speaks of.

use std::fmt;

use crate::seed::Rng;
use crate::wire::{Decoder, Encoder, Malformed, Wire};

/// A lightweight, logical node.
///
/// File-system nodes are numbered from 0, disk nodes from [`NodeId::disk`] and application nodes
/// (clients, gateways) from [`NodeId::application`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// File-system nodes of one volume, at most.
pub const FS_NODES_MAX: u32 = 4096;
/// Disk nodes of one volume, at most.
pub const DISK_NODES_MAX: u32 = 1024;

const DISK_BASE: u32 = 1 << 16;
const APPLICATION_BASE: u32 = 1 << 20;

impl NodeId {
    /// File-system node `index`.
    pub const fn fs(index: u32) -> Self {
        Self(index)
    }

    /// Disk node `index`.
    pub const fn disk(index: u32) -> Self {
        Self(DISK_BASE + index)
    }

    /// Application node `index`.
    pub const fn application(index: u32) -> Self {
        Self(APPLICATION_BASE + index)
    }

    /// What kind of node it is, and its index within the kind.
    pub const fn kind(self) -> NodeKind {
        match self.0 {
            APPLICATION_BASE.. => NodeKind::Application(self.0 - APPLICATION_BASE),
            DISK_BASE.. => NodeKind::Disk(self.0 - DISK_BASE),
            _ => NodeKind::Fs(self.0),
        }
    }
}

/// The partitions of the machine (thesis section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A file-system node: cache, metadata, files.
    Fs(u32),
    /// A disk node: one disk group.
    Disk(u32),
    /// A client or a gateway.
    Application(u32),
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            NodeKind::Fs(index) => write!(f, "node {index}"),
            NodeKind::Disk(index) => write!(f, "disk node {index}"),
            NodeKind::Application(index) => write!(f, "application node {index}"),
        }
    }
}

/// Which incarnation of the volume a message belongs to; it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The identity of a volume: 128 random bits drawn at format time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u128);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Wire for VolumeId {
    fn put(&self, out: &mut Encoder) {
        out.bytes(&self.0.to_le_bytes());
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let bytes = input.bytes(16)?;
        Ok(Self(u128::from_le_bytes(bytes.try_into().map_err(|_| Malformed("short id"))?)))
    }
    fn sample(rng: &mut Rng) -> Self {
        Self(u128::from(rng.bits()) << 64 | u128::from(rng.bits()))
    }
}

macro_rules! wire_newtype {
    ($($name:ident),+) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut Encoder) {
                self.0.put(out);
            }
            fn take(input: &mut Decoder) -> Result<Self, Malformed> {
                Wire::take(input).map(Self)
            }
            fn sample(rng: &mut Rng) -> Self {
                Self(Wire::sample(rng))
            }
        }
    )+};
}
wire_newtype!(NodeId, Epoch);
