//! The client at the other end of a connection.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::callback_link::CallbackLink;
use crate::signal::WakerSlot;

/// The other side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RpcPeer {
    /// Its host, for people and for the count of connections.
    pub(crate) host: String,
    /// Its address, if known: its rights depend on it.
    pub(crate) address: Option<SocketAddr>,
    /// The same when the peer reconnects.
    pub(crate) identity: Vec<u8>,
    /// Calls to it.
    pub(crate) callbacks: Rc<CallbackLink>,
}

impl RpcPeer {
    /// The peer that the machine calls `name`. A client that reconnects may have another port
    /// (ADR 50); a peer without an address is a new one each time, distinguished by `random`.
    /// `writer` wakes the writer of the connection.
    pub(crate) fn new(name: &str, random: u64, writer: Rc<WakerSlot>) -> Self {
        let callbacks = Rc::new(CallbackLink::new(writer));
        match name.parse::<SocketAddr>() {
            Ok(address) => {
                let host = address.ip().to_string();
                let identity = host.clone().into_bytes();
                Self { identity, host, address: Some(address), callbacks }
            }
            Err(_) => Self {
                host: name.to_owned(),
                address: None,
                identity: random.to_le_bytes().to_vec(),
                callbacks,
            },
        }
    }
}
