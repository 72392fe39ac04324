//! The head of a call and the head of a reply (RFC 5531 section 9).

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

use crate::record::{MARK_BYTES, Record, Violation, sole_mark};
use crate::xdr::{Arguments, Body, Fault, opaque, padding};

/// Bytes of an authenticator, at most (RFC 5531 section 8.2).
const AUTH_BYTES_MAX: usize = 400;
/// Bytes of the machine's name in `AUTH_SYS`, at most (RFC 5531 appendix A).
const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Groups in `AUTH_SYS`, at most (RFC 5531 appendix A).
const AUTH_SYS_GROUPS_MAX: u32 = 16;

/// Bytes at the beginning of `AUTH_SYS` that a client may change when it sends a call again.
const STAMP_BYTES: usize = 4;

/// The number of the flavour "no authentication".
pub(crate) const AUTH_NONE: u32 = 0;
/// The number of the flavour in which the client says who asks.
pub(crate) const AUTH_SYS: u32 = 1;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// Who the client says is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody in particular.
    Nobody,
    /// A user of the client's machine.
    User {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// Further groups.
        groups: Vec<u32>,
    },
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The client's number of the call; the reply carries it.
    pub(crate) xid: u32,
    /// What is asked.
    pub(crate) question: Result<Question, Refusal>,
}

/// What a call asks, once its head is understood.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The program.
    pub(crate) program: u32,
    /// Its version.
    pub(crate) version: u32,
    /// The procedure.
    pub(crate) procedure: u32,
    /// Who asks.
    pub(crate) claim: Claim,
    /// The same again when the call is sent again: a hash of who asks, and of the name of their machine.
    pub(crate) caller: u64,
    /// The arguments.
    pub(crate) arguments: Arguments,
}

/// Why a call was not even given to a program, or not done by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another version of RPC than 2.
    RpcVersion,
    /// The caller's authentication is not good enough.
    Authentication(auth_stat),
    /// No such program here.
    NoProgram,
    /// The program, but not in this version; the lowest and the highest that there are.
    ProgramVersion(u32, u32),
    /// The program could not make a result.
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Call {
    /// Takes a record apart. A record that is not even a call cannot be answered.
    pub(crate) fn parse(record: Record) -> Result<Self, Violation> {
        let (rest, (xid, _)) =
            (be_u32::<_, nom::error::Error<&[u8]>>, verify(be_u32, |kind| *kind == CALL))
                .parse(&record.head[..])
                .map_err(|_| Violation::NotACall)?;
        let rest = record.head.slice_ref(rest);
        Ok(Self { xid, question: Question::parse(&rest, record) })
    }
}

impl Question {
    fn parse(input: &[u8], record: Record) -> Result<Self, Refusal> {
        let garbage = |_| Refusal::Fault(Fault::GarbageArguments);
        let number = be_u32::<_, nom::error::Error<&[u8]>>;
        let (input, rpc_version) = number(input).map_err(garbage)?;
        //= rfc5531 9: "Even in the case of an RPC version mismatch ..."
        if rpc_version != RPC_VERSION_2 {
            return Err(Refusal::RpcVersion);
        }
        let (input, (program, version, procedure)) =
            (number, number, number).parse(input).map_err(garbage)?;
        let refused = |why| Refusal::Authentication(why);
        let (input, (flavour, credential)) =
            authenticator(input).map_err(|_| refused(auth_stat::AUTH_BADCRED))?;
        let claim = claim(flavour, credential).map_err(refused)?;
        let caller = runtime::hash::xxh3(credential.get(STAMP_BYTES..).unwrap_or_default());
        //= rfc5531 8.2: the verifier of both flavours is AUTH_NONE; clients that send more are let be
        let (input, _) = authenticator(input).map_err(|_| refused(auth_stat::AUTH_BADVERF))?;
        let head_bytes = record.head.len() - input.len();
        let arguments = Arguments::new(record, head_bytes);
        Ok(Self { program, version, procedure, claim, caller, arguments })
    }
}

/// A flavour, and what stands for it.
pub(crate) fn authenticator(input: &[u8]) -> IResult<&[u8], (u32, &[u8])> {
    let (input, flavour) = be_u32(input)?;
    let (input, body) = opaque(input, AUTH_BYTES_MAX)?;
    Ok((input, (flavour, body)))
}

fn claim(flavour: u32, body: &[u8]) -> Result<Claim, auth_stat> {
    match flavour {
        AUTH_NONE => Ok(Claim::Nobody),
        AUTH_SYS => match auth_sys(body) {
            Ok(([], claim)) => Ok(claim),
            _ => Err(auth_stat::AUTH_BADCRED),
        },
        _ => Err(auth_stat::AUTH_REJECTEDCRED),
    }
}

//= rfc5531 appendix A: stamp, machine name, uid, gid, at most 16 gids
fn auth_sys(input: &[u8]) -> IResult<&[u8], Claim> {
    let (input, _stamp) = be_u32(input)?;
    let (input, _machine) = opaque(input, MACHINE_NAME_BYTES_MAX)?;
    let count = verify(be_u32, |count: &u32| *count <= AUTH_SYS_GROUPS_MAX);
    let (input, (uid, gid, groups)) = (be_u32, be_u32, length_count(count, be_u32)).parse(input)?;
    Ok((input, Claim::User { uid, gid, groups }))
}

/// Bytes before the result of a call that was done: the mark, and a head that is always the same.
const SUCCESS_BYTES: usize = MARK_BYTES + 24;

/// The reply to the call `xid` as one record: its bytes in order, to be sent as they are.
pub(crate) fn reply(xid: u32, answer: Result<Body, Refusal>) -> Vec<Bytes> {
    match answer {
        Ok(body) => success(xid, body),
        Err(refusal) => {
            let message = rpc_msg { xid, body: msg_body::REPLY(refused(refusal)) };
            let mut head = vec![0; MARK_BYTES];
            message.pack(&mut head).expect("a reply head has no part that could be too long");
            let length = head.len() - MARK_BYTES;
            head[..MARK_BYTES].copy_from_slice(&sole_mark(length));
            vec![head.into()]
        }
    }
}

//= rfc5531 9: REPLY, MSG_ACCEPTED, an empty verifier of AUTH_NONE, SUCCESS
fn success(xid: u32, Body { head: result, tail }: Body) -> Vec<Bytes> {
    let tail_bytes: usize = tail.iter().map(Bytes::len).sum();
    let padding = padding(tail_bytes);
    let length = SUCCESS_BYTES - MARK_BYTES + result.len() + tail_bytes + padding.len();
    let mut head = Vec::with_capacity(SUCCESS_BYTES + result.len());
    head.extend_from_slice(&sole_mark(length));
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

fn accepted(reply_data: accept_stat_data) -> reply_body<'static> {
    reply_body::MSG_ACCEPTED(accepted_reply { verf: opaque_auth::default(), reply_data })
}

fn refused(refusal: Refusal) -> reply_body<'static> {
    let denied = reply_body::MSG_DENIED;
    match refusal {
        Refusal::RpcVersion => denied(rejected_reply::rpc_mismatch(RPC_VERSION_2, RPC_VERSION_2)),
        Refusal::Authentication(why) => denied(rejected_reply::auth_error(why)),
        Refusal::NoProgram => accepted(accept_stat_data::PROG_UNAVAIL),
        Refusal::ProgramVersion(low, high) => {
            accepted(accept_stat_data::PROG_MISMATCH { low, high })
        }
        Refusal::Fault(Fault::NoProcedure) => accepted(accept_stat_data::PROC_UNAVAIL),
        Refusal::Fault(Fault::GarbageArguments) => accepted(accept_stat_data::GARBAGE_ARGS),
        Refusal::Fault(Fault::System) => accepted(accept_stat_data::SYSTEM_ERR),
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn parse(bytes: Vec<u8>) -> Result<Call, Violation> {
        Call::parse(Record { head: bytes.into(), rest: Vec::new() })
    }

    fn question(bytes: Vec<u8>) -> Result<Question, Refusal> {
        parse(bytes).unwrap().question
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
    fn a_call_is_taken_apart() {
        let call = parse(call(&sys(&[4, 5]), b"args")).unwrap();
        let question = call.question.unwrap();
        assert_eq!(call.xid, 9);
        assert_eq!((question.program, question.version, question.procedure), (100_003, 3, 1));
        assert_eq!(question.claim, Claim::User { uid: 1000, gid: 100, groups: vec![4, 5] });
        assert_eq!(question.arguments.head(), b"args");
    }

    #[test]
    fn who_asks_again_is_told_by_all_of_the_credential_but_its_stamp() {
        let caller = |stamp, user| {
            let body = words(&[stamp, 0, user, 100, 0]);
            let credential = [words(&[AUTH_SYS, body.len() as u32]), body, words(&[0, 0])].concat();
            question(call(&credential, &[])).unwrap().caller
        };
        assert_eq!(caller(1, 1000), caller(2, 1000));
        assert_ne!(caller(1, 1000), caller(1, 1001));
    }

    #[test]
    fn no_authentication_is_nobody() {
        let question = question(call(&words(&[0, 0, 0, 0]), &[])).unwrap();
        assert_eq!(question.claim, Claim::Nobody);
    }

    #[test]
    fn what_is_no_call_breaks_the_stream() {
        for bytes in [vec![], words(&[1]), words(&[1, 1]), words(&[1, 0xffff_ffff, 2])] {
            assert_eq!(parse(bytes).unwrap_err(), Violation::NotACall);
        }
    }

    #[test]
    fn each_bad_head_has_its_refusal() {
        let bad = |why| Refusal::Authentication(why);
        let cases = [
            (words(&[9, 0, 3]), Refusal::RpcVersion),
            (words(&[9, 0]), Refusal::Fault(Fault::GarbageArguments)),
            (words(&[9, 0, 2, 100_003]), Refusal::Fault(Fault::GarbageArguments)),
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
            assert_eq!(question(bytes).unwrap_err(), refusal, "case {index}");
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
        assert_eq!(reply(Err(Refusal::NoProgram)), accepted(&[1]));
        assert_eq!(reply(Err(Refusal::ProgramVersion(3, 4))), accepted(&[2, 3, 4]));
        assert_eq!(reply(Err(Fault::NoProcedure.into())), accepted(&[3]));
        assert_eq!(reply(Err(Fault::GarbageArguments.into())), accepted(&[4]));
        assert_eq!(reply(Err(Fault::System.into())), accepted(&[5]));
        assert_eq!(reply(Err(Refusal::RpcVersion)), denied(&[0, 2, 2]));
        let weak = Refusal::Authentication(auth_stat::AUTH_TOOWEAK);
        assert_eq!(reply(Err(weak)), denied(&[1, 5]));
        let body = Body { head: words(&[0, 5]), tail: vec!["abc".into(), "de".into()] };
        let mut expected = [&accepted(&[0, 0, 5])[..], b"abcde\0\0\0"].concat();
        expected[3] += 8;
        assert_eq!(reply(Ok(body)), expected);
    }

    #[test]
    fn data_are_sent_from_where_they_are() {
        let data = Bytes::from(vec![7; 1000]);
        let body = Body { head: words(&[0]), tail: vec![data.clone()] };
        let parts = reply(1, Ok(body));
        assert!(parts.iter().any(|part| part.as_ptr() == data.as_ptr() && part.len() == 1000));
    }
}
