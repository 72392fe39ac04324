//! The client at the other end of a connection.

use std::net::SocketAddr;

/// The other side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RpcPeer {
    /// Its host, for people and for the count of connections.
    pub(crate) host: String,
    /// Its address, if known: its rights depend on it.
    pub(crate) address: Option<SocketAddr>,
    /// The same when the peer reconnects.
    pub(crate) identity: Vec<u8>,
}

impl RpcPeer {
    /// The peer that the machine calls `name`. A client that reconnects may have another port
    /// (ADR 50); a peer without an address is a new one each time, distinguished by `random`.
    pub(crate) fn new(name: &str, random: u64) -> Self {
        match name.parse::<SocketAddr>() {
            Ok(address) => {
                let host = address.ip().to_string();
                Self { identity: host.clone().into_bytes(), host, address: Some(address) }
            }
            Err(_) => Self {
                host: name.to_owned(),
                address: None,
                identity: random.to_le_bytes().to_vec(),
            },
        }
    }
}
