//! The host: an ordinary node behind its interface, on which the NFS gateway runs (MDFS thesis
//! 3.3).
//!
//! Bytes of clients come to it, and go, through one process that looks for them now and then; what
//! that and its network cost is in the profile. The sender of the bytes is outside virtual time.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _};
use nfs_gateway::{Config, Gateway};
use runtime::net::{Address, ByteStream};
use runtime::{Context, NodeId};

use super::{EmulatedError, Emulation};
use crate::cluster::OBSERVER;

/// Where the gateway listens inside.
const ADDRESS: &str = "host:2049";
/// Pieces of a connection that wait on their way in, or out, at most; then who brings more waits.
const PIECES_MAX: usize = 4;
/// Bytes that are taken at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The way in: a gateway that serves at the host.
#[derive(Debug)]
pub struct HostGateway {
    context: Context,
    gateway: Gateway,
}

/// One connection, from outside.
#[derive(Debug)]
pub struct HostConnection {
    /// Bytes of the client; the end of the sender is the end of what it says.
    pub inward: mpsc::Sender<Bytes>,
    /// Bytes for the client; its end is the end of the connection.
    pub outward: mpsc::Receiver<Bytes>,
}

impl HostGateway {
    /// A gateway for clients on this computer, which are believed. `entropy` is secret.
    pub async fn open(machine: &Emulation, entropy: [u8; 32]) -> Result<Self, EmulatedError> {
        let context = machine.world().context(NodeId::application(OBSERVER));
        let volume = machine.volume();
        let address = Address::Tcp(ADDRESS.to_owned());
        let gateway =
            Gateway::start(context.clone(), &address, Config::new(volume, entropy)).await?;
        Ok(Self { context, gateway })
    }

    /// A client at `peer`, as `127.0.0.1:700`, connects.
    pub fn connect(&self, machine: &Emulation, peer: &str) -> io::Result<HostConnection> {
        let stream = machine.world().connect_from(peer, self.gateway.address())?;
        Ok(carry(&self.context, stream))
    }

    /// The gateway ends its connections and stops.
    pub async fn close(self) {
        self.gateway.stop().await;
    }
}

/// The process at the host that brings bytes to and from a stream.
fn carry(context: &Context, stream: ByteStream) -> HostConnection {
    let (inward, mut said) = mpsc::channel::<Bytes>(PIECES_MAX);
    let (mut outgoing, outward) = mpsc::channel::<Bytes>(PIECES_MAX);
    let ByteStream { mut reader, mut writer, .. } = stream;
    context.task(async move {
        while let Some(bytes) = said.next().await {
            // The gateway has closed the connection: the other task reports it.
            if writer.write(vec![bytes]).await.is_err() {
                break;
            }
        }
    });
    context.task(async move {
        loop {
            let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
            let brought = reader.read(&mut buffer).await;
            if !brought.is_ok_and(|count| count > 0)
                || outgoing.send(buffer.freeze()).await.is_err()
            {
                break;
            }
        }
    });
    HostConnection { inward, outward }
}
