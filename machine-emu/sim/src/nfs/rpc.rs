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

/// What a gateway sends.
pub(super) enum GatewayMessage {
    /// A reply: the number of its call, and the result.
    Reply(u32, Bytes),
    /// A call: its number, its procedure, and the arguments.
    Call(u32, u32, Bytes),
}

/// The record of the reply to call `xid` of a gateway.
pub(super) fn reply_record(xid: u32, result: &[u8]) -> Bytes {
    let words = [xid].into_iter().chain(ACCEPTED);
    let head: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    let mark = (head.len() + result.len()) as u32 | LAST;
    [&mark.to_be_bytes()[..], &head, result].concat().into()
}

/// What follows the number of a call of a gateway.
fn call(xid: u32, mut call: Bytes) -> GatewayMessage {
    assert_eq!([call.get_u32(), call.get_u32()], [0, RPC_VERSION_2], "a call");
    let _program_and_version = call.get_u64();
    let procedure = call.get_u32();
    let (flavour, length) = (call.get_u32(), call.get_u32());
    assert_eq!((flavour, length), (0, 0), "the credential that the host wants");
    assert_eq!(call.get_u64(), 0, "an empty verifier");
    GatewayMessage::Call(xid, procedure, call)
}

/// The next whole message in `received`.
pub(super) fn next_message(received: &mut BytesMut) -> Option<GatewayMessage> {
    let mark = u32::from_be_bytes(*received.first_chunk()?);
    assert!(mark & LAST != 0, "replies come in one fragment");
    let length = (mark & !LAST) as usize;
    if received.len() < MARK_BYTES + length {
        return None;
    }
    received.advance(MARK_BYTES);
    let mut reply = received.split_to(length).freeze();
    let xid = reply.get_u32();
    if reply.starts_with(&[0; 4]) {
        return Some(call(xid, reply));
    }
    for expected in ACCEPTED {
        assert_eq!(reply.get_u32(), expected, "the reply to call {xid} is not an accepted one");
    }
    Some(GatewayMessage::Reply(xid, reply))
}

/// A result as exactly one `T`.
pub(super) fn decode<T: Unpack>(bytes: &Bytes) -> T {
    let mut input = &bytes[..];
    let (value, _) = T::unpack(&mut input).expect("a result of this procedure");
    assert!(input.is_empty(), "the result is longer than its type");
    value
}
