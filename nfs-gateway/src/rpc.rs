//! The headers of calls and replies (RFC 5531 section 9).

use bytes::Bytes;
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, accepted_reply, auth_stat, msg_body, opaque_auth,
    rejected_reply, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::Pack as _;
use nom::combinator::verify;
use nom::multi::length_count;
use nom::number::complete::be_u32;
use nom::{IResult, Parser as _};

use crate::record::{FRAGMENT_HEADER_BYTES, RecordError, RpcRecord, sole_fragment_header};
use crate::xdr::{CallArguments, ProcedureError, ReplyBody, XdrEncoder, opaque, padding};

/// Bytes of an authenticator, at most (RFC 5531 section 8.2).
const AUTH_BYTES_MAX: usize = 400;
/// Bytes of the machine's name in `AUTH_SYS`, at most (RFC 5531 appendix A).
pub(crate) const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Groups in `AUTH_SYS`, at most (RFC 5531 appendix A).
pub(crate) const AUTH_SYS_GROUPS_MAX: u32 = 16;

/// Bytes at the start of `AUTH_SYS` that a client may change in a retransmission.
const STAMP_BYTES: usize = 4;

/// The flavour without a credential.
pub(crate) const AUTH_NONE: u32 = 0;
/// The flavour with a user and groups.
pub(crate) const AUTH_SYS: u32 = 1;

/// Bytes of the result of a call to a client, at most.
pub(crate) const CALLBACK_RESULT_BYTES_MAX: usize = 8 << 10;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// The credential of `AUTH_SYS`: the user as the client reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthSys {
    /// The user.
    pub(crate) uid: u32,
    /// The group.
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// An RPC message that is a call.
#[derive(Clone, Debug)]
pub(crate) struct CallMessage {
    /// The client's number of the call; the reply carries it.
    pub(crate) xid: u32,
    /// The call, or the error to reply with.
    pub(crate) body: Result<CallBody, RpcError>,
}

/// A decoded call (`call_body`).
#[derive(Clone, Debug)]
pub(crate) struct CallBody {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    /// The credential; `None` is `AUTH_NONE`.
    pub(crate) credential: Option<AuthSys>,
    /// A hash of the credential with the machine's name, the same in retransmissions.
    pub(crate) credential_hash: u64,
    pub(crate) arguments: CallArguments,
}

/// The error of a call that has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcError {
    /// Another version of RPC than 2.
    RpcVersion,
    /// The caller is not authenticated.
    Authentication(auth_stat),
    /// No such program here.
    NoProgram,
    /// The program, but not in this version; the lowest and the highest version supported.
    ProgramVersion(u32, u32),
    /// The procedure returned no result.
    Procedure(ProcedureError),
}

impl From<ProcedureError> for RpcError {
    fn from(error: ProcedureError) -> Self {
        Self::Procedure(error)
    }
}

impl CallMessage {
    /// Decodes a record. A record that is not a call gets no reply: replies are taken before.
    pub(crate) fn parse(record: RpcRecord) -> Result<Self, RecordError> {
        let (rest, (xid, _)) =
            (be_u32::<_, nom::error::Error<&[u8]>>, verify(be_u32, |kind| *kind == CALL))
                .parse(&record.head[..])
                .map_err(|_| RecordError::NotAMessage)?;
        let rest = record.head.slice_ref(rest);
        Ok(Self { xid, body: CallBody::parse(&rest, record) })
    }
}

impl CallBody {
    fn parse(input: &[u8], record: RpcRecord) -> Result<Self, RpcError> {
        let garbage = |_| RpcError::Procedure(ProcedureError::GarbageArguments);
        let number = be_u32::<_, nom::error::Error<&[u8]>>;
        let (input, rpc_version) = number(input).map_err(garbage)?;
        //= rfc5531 9: "Even in the case of an RPC version mismatch ..."
        if rpc_version != RPC_VERSION_2 {
            return Err(RpcError::RpcVersion);
        }
        let (input, (program, version, procedure)) =
            (number, number, number).parse(input).map_err(garbage)?;
        let refused = |why| RpcError::Authentication(why);
        let (input, (flavour, body)) =
            authenticator(input).map_err(|_| refused(auth_stat::AUTH_BADCRED))?;
        let credential = credential(flavour, body).map_err(refused)?;
        let credential_hash = runtime::hash::xxh3(body.get(STAMP_BYTES..).unwrap_or_default());
        //= rfc5531 8.2: the verifier of both flavours is AUTH_NONE; others are ignored
        let (input, _) = authenticator(input).map_err(|_| refused(auth_stat::AUTH_BADVERF))?;
        let head_bytes = record.head.len() - input.len();
        let arguments = CallArguments::new(record.head.slice(head_bytes..), record.rest);
        Ok(Self { program, version, procedure, credential, credential_hash, arguments })
    }
}

/// A flavour and its opaque body (`opaque_auth`).
pub(crate) fn authenticator(input: &[u8]) -> IResult<&[u8], (u32, &[u8])> {
    let (input, flavour) = be_u32(input)?;
    let (input, body) = opaque(input, AUTH_BYTES_MAX)?;
    Ok((input, (flavour, body)))
}

fn credential(flavour: u32, body: &[u8]) -> Result<Option<AuthSys>, auth_stat> {
    match flavour {
        AUTH_NONE => Ok(None),
        AUTH_SYS => match auth_sys(body) {
            Ok(([], credential)) => Ok(Some(credential)),
            _ => Err(auth_stat::AUTH_BADCRED),
        },
        _ => Err(auth_stat::AUTH_REJECTEDCRED),
    }
}

//= rfc5531 appendix A: stamp, machine name, uid, gid, at most 16 gids
fn auth_sys(input: &[u8]) -> IResult<&[u8], AuthSys> {
    let (input, _stamp) = be_u32(input)?;
    let (input, _machine) = opaque(input, MACHINE_NAME_BYTES_MAX)?;
    let count = verify(be_u32, |count: &u32| *count <= AUTH_SYS_GROUPS_MAX);
    let (input, (uid, gid, groups)) = (be_u32, be_u32, length_count(count, be_u32)).parse(input)?;
    Ok((input, AuthSys { uid, gid, groups }))
}

/// Bytes before the result of a successful call: the fragment header and a constant header.
const SUCCESS_BYTES: usize = FRAGMENT_HEADER_BYTES + 24;

/// The reply to the call `xid` as the buffers of one record.
pub(crate) fn reply(xid: u32, answer: Result<ReplyBody, RpcError>) -> Vec<Bytes> {
    match answer {
        Ok(body) => success(xid, body),
        Err(refusal) => {
            let message = rpc_msg { xid, body: msg_body::REPLY(refused(refusal)) };
            let mut head = vec![0; FRAGMENT_HEADER_BYTES];
            message.pack(&mut head).expect("a reply head has no part that could be too long");
            let length = head.len() - FRAGMENT_HEADER_BYTES;
            head[..FRAGMENT_HEADER_BYTES].copy_from_slice(&sole_fragment_header(length));
            vec![head.into()]
        }
    }
}

//= rfc5531 9: REPLY, MSG_ACCEPTED, an empty verifier of AUTH_NONE, SUCCESS
fn success(xid: u32, ReplyBody { head: result, tail }: ReplyBody) -> Vec<Bytes> {
    let tail_bytes: usize = tail.iter().map(Bytes::len).sum();
    let padding = padding(tail_bytes);
    let length = SUCCESS_BYTES - FRAGMENT_HEADER_BYTES + result.len() + tail_bytes + padding.len();
    let mut head = Vec::with_capacity(SUCCESS_BYTES + result.len());
    head.extend_from_slice(&sole_fragment_header(length));
    for word in [xid, REPLY, 0, AUTH_NONE, 0, 0] {
        head.extend_from_slice(&word.to_be_bytes());
    }
    head.extend_from_slice(&result);
    let mut parts = Vec::with_capacity(tail.len() + 2);
    parts.push(head.into());
    parts.extend(tail.into_iter().filter(|part| !part.is_empty()));
    if !padding.is_empty() {
        parts.push(Bytes::from_static(padding));
    }
    parts
}

/// A call to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallbackCall<'a> {
    /// The client's number of its callback program.
    pub(crate) program: u32,
    /// The flavour and the body of the credential.
    pub(crate) credential: (u32, &'a [u8]),
    pub(crate) procedure: u32,
    /// The encoded arguments.
    pub(crate) arguments: &'a [u8],
}

/// The version of the callback program (RFC 8881 section 20).
const CALLBACK_VERSION: u32 = 1;

//= rfc5531 9: CALL, RPC version 2, program, version, procedure, credential, a verifier of AUTH_NONE
/// The record of a call to a client.
pub(crate) fn callback(xid: u32, call: CallbackCall<'_>) -> Bytes {
    let CallbackCall { program, credential: (flavour, body), procedure, arguments } = call;
    let mut out = XdrEncoder::default();
    for word in [xid, CALL, RPC_VERSION_2, program, CALLBACK_VERSION, procedure, flavour] {
        out.u32(word);
    }
    out.opaque(body);
    out.u64(u64::from(AUTH_NONE));
    out.fixed(arguments);
    let message = out.body(Vec::new()).head;
    [&sole_fragment_header(message.len())[..], &message].concat().into()
}

/// The result of a call to a client, or that it refuses the call.
pub(crate) type ReplyOutcome = Result<Bytes, CallRefused>;

/// A client refuses a call, or its reply cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallRefused;

/// Is the record a reply?
pub(crate) fn is_reply(record: &RpcRecord) -> bool {
    record.head.get(4..8) == Some(&REPLY.to_be_bytes())
}

/// The XID and the outcome of a reply.
pub(crate) fn callback_reply(record: RpcRecord) -> Option<(u32, ReplyOutcome)> {
    let mut reply = CallArguments::new(record.head, record.rest);
    let xid = reply.take::<u32>().ok()?;
    Some((xid, success_of(reply).ok_or(CallRefused)))
}

//= rfc5531 9: MSG_ACCEPTED, a verifier, SUCCESS, the result
/// The result in a reply after its XID, if the call was accepted and done.
fn success_of(mut reply: CallArguments) -> Option<Bytes> {
    let is_accepted = (reply.take::<u32>().ok()?, reply.take::<u32>().ok()?) == (REPLY, 0);
    let _flavour = reply.take::<u32>().ok()?;
    reply.opaque(AUTH_BYTES_MAX).ok()?;
    let is_done = reply.take::<u32>().ok()? == 0;
    if !is_accepted || !is_done || reply.length() > CALLBACK_RESULT_BYTES_MAX {
        return None;
    }
    reply.join();
    Some(Bytes::copy_from_slice(reply.head()))
}

fn accepted(reply_data: accept_stat_data) -> reply_body<'static> {
    reply_body::MSG_ACCEPTED(accepted_reply { verf: opaque_auth::default(), reply_data })
}

fn refused(refusal: RpcError) -> reply_body<'static> {
    let denied = reply_body::MSG_DENIED;
    match refusal {
        RpcError::RpcVersion => denied(rejected_reply::rpc_mismatch(RPC_VERSION_2, RPC_VERSION_2)),
        RpcError::Authentication(why) => denied(rejected_reply::auth_error(why)),
        RpcError::NoProgram => accepted(accept_stat_data::PROG_UNAVAIL),
        RpcError::ProgramVersion(low, high) => {
            accepted(accept_stat_data::PROG_MISMATCH { low, high })
        }
        RpcError::Procedure(ProcedureError::NoProcedure) => {
            accepted(accept_stat_data::PROC_UNAVAIL)
        }
        RpcError::Procedure(ProcedureError::GarbageArguments) => {
            accepted(accept_stat_data::GARBAGE_ARGS)
        }
        RpcError::Procedure(ProcedureError::System) => accepted(accept_stat_data::SYSTEM_ERR),
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn parse(bytes: Vec<u8>) -> Result<CallMessage, RecordError> {
        CallMessage::parse(RpcRecord { head: bytes.into(), rest: Vec::new() })
    }

    fn body(bytes: Vec<u8>) -> Result<CallBody, RpcError> {
        parse(bytes).unwrap().body
    }

    /// A call of program 100003, version 3, procedure 1 with these authenticators.
    fn call(authenticators: &[u8], arguments: &[u8]) -> Vec<u8> {
        [&words(&[9, 0, 2, 100_003, 3, 1]), authenticators, arguments].concat()
    }

    fn sys(groups: &[u32]) -> Vec<u8> {
        let body = words(&[&[7, 0, 1000, 100, groups.len() as u32], groups].concat());
        [words(&[AUTH_SYS, body.len() as u32]), body, words(&[0, 0])].concat()
    }

    #[test]
    fn a_call_is_decoded() {
        let message = parse(call(&sys(&[4, 5]), b"args")).unwrap();
        let body = message.body.unwrap();
        assert_eq!(message.xid, 9);
        assert_eq!((body.program, body.version, body.procedure), (100_003, 3, 1));
        assert_eq!(body.credential, Some(AuthSys { uid: 1000, gid: 100, groups: vec![4, 5] }));
        assert_eq!(body.arguments.head(), b"args");
    }

    #[test]
    fn the_credential_hash_covers_all_but_the_stamp() {
        let hash = |stamp, user| {
            let body_words = words(&[stamp, 0, user, 100, 0]);
            let header = words(&[AUTH_SYS, body_words.len() as u32]);
            let credential = [header, body_words, words(&[0, 0])].concat();
            body(call(&credential, &[])).unwrap().credential_hash
        };
        assert_eq!(hash(1, 1000), hash(2, 1000));
        assert_ne!(hash(1, 1000), hash(1, 1001));
    }

    #[test]
    fn auth_none_has_no_credential() {
        let body = body(call(&words(&[0, 0, 0, 0]), &[])).unwrap();
        assert_eq!(body.credential, None);
    }

    #[test]
    fn other_messages_break_the_stream() {
        for bytes in [vec![], words(&[1]), words(&[1, 2]), words(&[1, 0xffff_ffff, 2])] {
            assert_eq!(parse(bytes).unwrap_err(), RecordError::NotAMessage);
        }
    }

    #[test]
    fn each_bad_header_has_its_error() {
        let bad = |why| RpcError::Authentication(why);
        let cases = [
            (words(&[9, 0, 3]), RpcError::RpcVersion),
            (words(&[9, 0]), RpcError::Procedure(ProcedureError::GarbageArguments)),
            (words(&[9, 0, 2, 100_003]), RpcError::Procedure(ProcedureError::GarbageArguments)),
            (call(&[], &[]), bad(auth_stat::AUTH_BADCRED)),
            (call(&words(&[1, 400]), &[]), bad(auth_stat::AUTH_BADCRED)),
            (call(&words(&[1, u32::MAX]), &[0; 500]), bad(auth_stat::AUTH_BADCRED)),
            (call(&words(&[1, 404]), &[0; 500]), bad(auth_stat::AUTH_BADCRED)),
            (call(&words(&[1, 4, 4, 0, 0]), &[]), bad(auth_stat::AUTH_BADCRED)),
            (call(&sys(&[0; 17]), &[]), bad(auth_stat::AUTH_BADCRED)),
            (call(&words(&[6, 0, 0, 0]), &[]), bad(auth_stat::AUTH_REJECTEDCRED)),
            (call(&words(&[0, 0, 0]), &[]), bad(auth_stat::AUTH_BADVERF)),
            (call(&words(&[0, 0, 0, u32::MAX]), &[]), bad(auth_stat::AUTH_BADVERF)),
        ];
        for (index, (bytes, refusal)) in cases.into_iter().enumerate() {
            assert_eq!(body(bytes).unwrap_err(), refusal, "case {index}");
        }
    }

    #[test]
    fn any_bytes_are_a_call_or_an_error_and_never_a_panic() {
        with_seed(|rng| {
            for _ in 0..20_000 {
                let mut bytes = vec![0; rng.index(200)];
                rng.fill(&mut bytes);
                let _ = parse(bytes.clone());
                let _ = parse([words(&[1, 0, 2]), bytes.clone()].concat());
                let _ = parse(call(&words(&[1, rng.index(200) as u32]), &bytes));
            }
        });
    }

    #[test]
    fn replies_have_the_agreed_bytes() {
        let reply = |answer| reply(7, answer).concat();
        let accepted = |words_after: &[u32]| {
            let length = 20 + 4 * words_after.len() as u32;
            words(&[&[1 << 31 | length, 7, 1, 0, 0, 0], words_after].concat())
        };
        let denied = |words_after: &[u32]| {
            let length = 12 + 4 * words_after.len() as u32;
            words(&[&[1 << 31 | length, 7, 1, 1], words_after].concat())
        };
        assert_eq!(reply(Err(RpcError::NoProgram)), accepted(&[1]));
        assert_eq!(reply(Err(RpcError::ProgramVersion(3, 4))), accepted(&[2, 3, 4]));
        assert_eq!(reply(Err(ProcedureError::NoProcedure.into())), accepted(&[3]));
        assert_eq!(reply(Err(ProcedureError::GarbageArguments.into())), accepted(&[4]));
        assert_eq!(reply(Err(ProcedureError::System.into())), accepted(&[5]));
        assert_eq!(reply(Err(RpcError::RpcVersion)), denied(&[0, 2, 2]));
        let weak = RpcError::Authentication(auth_stat::AUTH_TOOWEAK);
        assert_eq!(reply(Err(weak)), denied(&[1, 5]));
        let body = ReplyBody { head: words(&[0, 5]), tail: vec!["abc".into(), "de".into()] };
        let mut expected = [&accepted(&[0, 0, 5])[..], b"abcde\0\0\0"].concat();
        expected[3] += 8;
        assert_eq!(reply(Ok(body)), expected);
    }

    #[test]
    fn a_call_to_a_client_has_the_agreed_bytes() {
        let call = CallbackCall {
            program: 0x4000_0000,
            credential: (AUTH_SYS, b"12345"),
            procedure: 1,
            arguments: &words(&[8]),
        };
        let record = callback(7, call);
        let head = words(&[0x8000_0034, 7, 0, 2, 0x4000_0000, 1, 1, AUTH_SYS, 5]);
        assert_eq!(record, [&head[..], b"12345\0\0\0", &words(&[0, 0, 8])].concat());
    }

    #[test]
    fn a_reply_of_a_client_has_a_result_if_it_was_accepted_and_done() {
        let reply = |bytes: Vec<u8>| {
            let record = RpcRecord { head: bytes.into(), rest: Vec::new() };
            assert!(is_reply(&record));
            callback_reply(record)
        };
        let done = reply(words(&[7, 1, 0, 0, 0, 0, 5, 6]));
        assert_eq!(done, Some((7, Ok(words(&[5, 6]).into()))));
        // Denied; PROG_UNAVAIL; cut short; too large.
        let large = [words(&[7, 1, 0, 0, 0, 0]), vec![0; CALLBACK_RESULT_BYTES_MAX + 4]].concat();
        for refused in
            [words(&[7, 1, 1, 0, 2, 2]), words(&[7, 1, 0, 0, 0, 1]), words(&[7, 1]), large]
        {
            assert_eq!(reply(refused), Some((7, Err(CallRefused))));
        }
        let call = RpcRecord { head: words(&[7, 0]).into(), rest: Vec::new() };
        assert!(!is_reply(&call));
    }

    #[test]
    fn data_are_sent_without_a_copy() {
        let data = Bytes::from(vec![7; 1000]);
        let body = ReplyBody { head: words(&[0]), tail: vec![data.clone()] };
        let parts = reply(1, Ok(body));
        assert!(parts.iter().any(|part| part.as_ptr() == data.as_ptr() && part.len() == 1000));
    }
}
