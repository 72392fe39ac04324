//! Calls and replies as bytes (RFC 5531): nothing here reads or writes a stream.

use bytes::{Buf as _, Bytes, BytesMut};
use nfs3_types::rpc::{RPC_VERSION_2, auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;
/// Bytes of the mark before a record; the number of the call follows it.
const MARK_BYTES: usize = 4;
/// What stands in an accepted reply between its number and the result: a reply, accepted, an empty
/// verifier, done.
const ACCEPTED: [u32; 5] = [1, 0, 0, 0, 0];

/// The record of call `xid`, as root.
pub(super) fn record(xid: u32, program: [u32; 3], arguments: &[u8]) -> Bytes {
    let [prog, vers, procedure] = program;
    let machinename = Opaque::borrowed(b"sim");
    let who = auth_unix { machinename, ..auth_unix::default() };
    let call = call_body {
        rpcvers: RPC_VERSION_2,
        prog,
        vers,
        proc: procedure,
        cred: opaque_auth::auth_unix(&who),
        verf: opaque_auth::default(),
    };
    let mut bytes = vec![0; MARK_BYTES];
    pack(&rpc_msg { xid, body: msg_body::CALL(call) }, &mut bytes);
    bytes.extend_from_slice(arguments);
    let mark = (bytes.len() - MARK_BYTES) as u32 | LAST;
    bytes[..MARK_BYTES].copy_from_slice(&mark.to_be_bytes());
    bytes.into()
}

/// Arguments as bytes.
pub(super) fn packed(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(value, &mut bytes);
    bytes
}

fn pack(value: &impl Pack, out: &mut Vec<u8>) {
    value.pack(out).expect("it is small enough");
}

/// The same call with another number.
pub(super) fn renumbered(record: &Bytes, xid: u32) -> Bytes {
    let mut bytes = record.to_vec();
    bytes[MARK_BYTES..MARK_BYTES + 4].copy_from_slice(&xid.to_be_bytes());
    bytes.into()
}

/// The next whole reply in `received`: the number of its call, and the result.
pub(super) fn next_reply(received: &mut BytesMut) -> Option<(u32, Bytes)> {
    let mark = u32::from_be_bytes(*received.first_chunk()?);
    assert!(mark & LAST != 0, "replies come in one fragment");
    let length = (mark & !LAST) as usize;
    if received.len() < MARK_BYTES + length {
        return None;
    }
    received.advance(MARK_BYTES);
    let mut reply = received.split_to(length).freeze();
    let xid = reply.get_u32();
    for expected in ACCEPTED {
        assert_eq!(reply.get_u32(), expected, "the reply to call {xid} is not an accepted one");
    }
    Some((xid, reply))
}

/// A result as exactly one `T`.
pub(super) fn decode<T: Unpack>(bytes: &Bytes) -> T {
    let mut input = &bytes[..];
    let (value, _) = T::unpack(&mut input).expect("a result of this procedure");
    assert!(input.is_empty(), "the result is longer than its type");
    value
}
