//! Registers the port of NFS and MOUNT with rpcbind of this computer, for clients that look it up
//! there.
//!
//! As libtirpc does it: version 4 of the protocol (RFC 1833 section 2.2) over the Unix socket of
//! rpcbind, which then knows who asks. No privilege is needed; who registered, or root, may
//! unregister.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Where rpcbind answers on Linux.
const SOCKET: &str = "/run/rpcbind.sock";
/// Longer than rpcbind takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// No list of registrations is longer.
const REPLY_MAX: usize = 1 << 20;
/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;

/// rpcbind's own program and version.
const RPCBIND: (u32, u32) = (100_000, 4);
const SET: u32 = 1;
const UNSET: u32 = 2;
const DUMP: u32 = 4;

/// NFS in versions 3 and 4, and MOUNT.
const PROGRAMS: [(u32, u32); 3] = [(100_003, 3), (100_003, 4), (100_005, 3)];

/// Why rpcbind does not know of the gateway.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "rpcbind does not answer at {SOCKET}: {0}; start it (the package and the service are called \
         rpcbind), or leave out --rpcbind and give clients the port"
    )]
    Silent(io::Error),
    #[error(
        "rpcbind answers in a way that is not of its protocol (RFC 1833); look at what listens at {SOCKET}"
    )]
    ProtocolMismatch,
    #[error(
        "rpcbind knows another server of program {program} version {version}, at {at}; stop that one \
         (`rpcinfo -p` lists all), or leave out --rpcbind"
    )]
    Taken { program: u32, version: u32, at: SocketAddr },
    #[error(
        "rpcbind refuses program {program} version {version}; it may be registered by another user: \
         `rpcinfo` lists the owners, and `rpcinfo -d {program} {version}` as root removes it"
    )]
    Refused { program: u32, version: u32 },
}

/// The gateway is registered, until this is dropped.
#[derive(Debug)]
pub(crate) struct RpcbindRegistration {
    at: SocketAddr,
    programs: Vec<(u32, u32)>,
}

impl RpcbindRegistration {
    /// Registers all programs of the gateway that answers `at`.
    pub(crate) fn new(at: SocketAddr) -> Result<Self, Error> {
        let mut registered = Self { at, programs: Vec::new() };
        for program in PROGRAMS {
            registered.set(program)?;
            registered.programs.push(program);
        }
        Ok(registered)
    }

    fn set(&self, program: (u32, u32)) -> Result<(), Error> {
        // rpcbind itself would let a new server take the place of one that lives.
        if let Some(at) = registered_at(program, self.at)?.filter(|at| *at != self.at) {
            if answers(at) {
                return Err(Error::Taken { program: program.0, version: program.1, at });
            }
            // What a server left that was killed.
            ask_bool(UNSET, program, self.at)?;
        }
        if ask_bool(SET, program, self.at)? {
            return Ok(());
        }
        Err(Error::Refused { program: program.0, version: program.1 })
    }
}

impl Drop for RpcbindRegistration {
    fn drop(&mut self) {
        for &program in &self.programs {
            match ask_bool(UNSET, program, self.at) {
                Ok(true) => {}
                Ok(false) => tracing::warn!(?program, "rpcbind had forgotten the gateway"),
                Err(error) => tracing::warn!(?program, "still registered: {error}"),
            }
        }
    }
}

/// Is there anybody? A killed server's port refuses.
#[allow(clippy::disallowed_methods, reason = "the program is a tool of this computer")]
fn answers(at: SocketAddr) -> bool {
    TcpStream::connect_timeout(&at, PATIENCE).is_ok()
}

fn ask_bool(procedure: u32, program: (u32, u32), at: SocketAddr) -> Result<bool, Error> {
    Ok(word(&mut &ask(procedure, program, at)?[..])? == 1)
}

/// Where `program` is registered, if it is, for the kind of address of `like`. The list is asked
/// for: a question for one address would be about the transport by which it comes, the Unix socket.
fn registered_at(program: (u32, u32), like: SocketAddr) -> Result<Option<SocketAddr>, Error> {
    let list = ask(DUMP, program, like)?;
    let mut rest = &list[..];
    let mut found = None;
    while word(&mut rest)? == 1 {
        let of = (word(&mut rest)?, word(&mut rest)?);
        let [network, address, _owner] = [text(&mut rest)?, text(&mut rest)?, text(&mut rest)?];
        if of == program && network == network_of(like).as_bytes() {
            found = std::str::from_utf8(address).ok().and_then(from_universal);
        }
    }
    Ok(found)
}

fn word(rest: &mut &[u8]) -> Result<u32, Error> {
    let (word, behind) = rest.split_first_chunk().ok_or(Error::ProtocolMismatch)?;
    *rest = behind;
    Ok(u32::from_be_bytes(*word))
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Error> {
    let length = word(rest)? as usize;
    let padded = length.next_multiple_of(4);
    let (text, behind) = rest.split_at_checked(padded).ok_or(Error::ProtocolMismatch)?;
    *rest = behind;
    Ok(&text[..length])
}

/// The result of one call.
fn ask(procedure: u32, program: (u32, u32), at: SocketAddr) -> Result<Vec<u8>, Error> {
    let record = exchange(&call(procedure, program, at)).map_err(Error::Silent)?;
    // Number, reply, accepted, verifier of no bytes, done.
    let head: Vec<u8> =
        [1, 1, 0, 0, 0, 0].iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    record.strip_prefix(&head[..]).map(<[u8]>::to_vec).ok_or(Error::ProtocolMismatch)
}

#[allow(clippy::disallowed_methods, reason = "the program is a tool of this computer")]
fn exchange(call: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(SOCKET)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&(call.len() as u32 | LAST).to_be_bytes())?;
    stream.write_all(call)?;
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let end = record.len() + (mark & !LAST) as usize;
        if end > REPLY_MAX {
            return Err(io::Error::other("the answer is too long"));
        }
        let start = record.len();
        record.resize(end, 0);
        stream.read_exact(&mut record[start..])?;
        if mark & LAST != 0 {
            return Ok(record);
        }
    }
}

/// A call about `program`, which answers `at`; [`DUMP`] takes no arguments, and those behind are
/// passed over.
fn call(procedure: u32, program: (u32, u32), at: SocketAddr) -> Vec<u8> {
    let head = [1, 0, 2, RPCBIND.0, RPCBIND.1, procedure, 0, 0, 0, 0, program.0, program.1];
    let mut call: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
    // The owner is who rpcbind sees at the socket.
    for text in [network_of(at), &universal(at), ""] {
        call.extend((text.len() as u32).to_be_bytes());
        call.extend(text.as_bytes());
        call.resize(call.len().next_multiple_of(4), 0);
    }
    call
}

/// What rpcbind calls the transport to `at`.
fn network_of(at: SocketAddr) -> &'static str {
    if at.is_ipv6() { "tcp6" } else { "tcp" }
}

/// An address as rpcbind writes it: the two bytes of the port behind two more dots.
fn universal(at: SocketAddr) -> String {
    let [high, low] = at.port().to_be_bytes();
    format!("{}.{high}.{low}", at.ip())
}

fn from_universal(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_rpcbind_does() {
        for (address, text) in [("127.0.0.1:2049", "127.0.0.1.8.1"), ("[::]:20490", "::.80.10")] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(universal(address), text);
            assert_eq!(from_universal(text), Some(address));
        }
        assert_eq!(from_universal(""), None);
        assert_eq!(from_universal("127.0.0.1.8.256"), None);
    }
}
