//! COMPOUND calls and their replies as bytes (RFC 8881, in the XDR of RFC 5662). Written here, so
//! that the gateway is not checked against the code that it is made of.

use bytes::{Buf as _, Bytes};

/// The program NFS, version 4, procedure COMPOUND.
pub(super) const COMPOUND: [u32; 3] = [100_003, 4, 1];
/// The minor version.
const MINOR: u32 = 1;

/// Operations.
pub(super) mod op {
    pub(in super::super) const CLOSE: u32 = 4;
    pub(in super::super) const COMMIT: u32 = 5;
    pub(in super::super) const CREATE: u32 = 6;
    pub(in super::super) const DELEGRETURN: u32 = 8;
    pub(in super::super) const GETATTR: u32 = 9;
    pub(in super::super) const GETFH: u32 = 10;
    pub(in super::super) const LINK: u32 = 11;
    pub(in super::super) const LOCK: u32 = 12;
    pub(in super::super) const LOCKT: u32 = 13;
    pub(in super::super) const LOCKU: u32 = 14;
    pub(in super::super) const LOOKUP: u32 = 15;
    pub(in super::super) const OPEN: u32 = 18;
    pub(in super::super) const OPEN_DOWNGRADE: u32 = 21;
    pub(in super::super) const PUTFH: u32 = 22;
    pub(in super::super) const PUTROOTFH: u32 = 24;
    pub(in super::super) const READ: u32 = 25;
    pub(in super::super) const READDIR: u32 = 26;
    pub(in super::super) const REMOVE: u32 = 28;
    pub(in super::super) const RENAME: u32 = 29;
    pub(in super::super) const SAVEFH: u32 = 32;
    pub(in super::super) const SETATTR: u32 = 34;
    pub(in super::super) const WRITE: u32 = 38;
    pub(in super::super) const BIND_CONN_TO_SESSION: u32 = 41;
    pub(in super::super) const EXCHANGE_ID: u32 = 42;
    pub(in super::super) const CREATE_SESSION: u32 = 43;
    pub(in super::super) const SEQUENCE: u32 = 53;
    pub(in super::super) const RECLAIM_COMPLETE: u32 = 58;
}

/// What came of an operation.
pub(super) mod status {
    pub(in super::super) const OK: u32 = 0;
    pub(in super::super) const NOENT: u32 = 2;
    pub(in super::super) const IO: u32 = 5;
    pub(in super::super) const EXIST: u32 = 17;
    pub(in super::super) const STALE: u32 = 70;
    pub(in super::super) const DELAY: u32 = 10_008;
    pub(in super::super) const DENIED: u32 = 10_010;
    pub(in super::super) const EXPIRED: u32 = 10_011;
    pub(in super::super) const GRACE: u32 = 10_013;
    pub(in super::super) const SHARE_DENIED: u32 = 10_015;
    pub(in super::super) const BAD_STATEID: u32 = 10_025;
    pub(in super::super) const DELEG_REVOKED: u32 = 10_087;
    pub(in super::super) const STALE_CLIENTID: u32 = 10_022;
    pub(in super::super) const NO_GRACE: u32 = 10_033;
    pub(in super::super) const RECLAIM_CONFLICT: u32 = 10_035;
    pub(in super::super) const BADSESSION: u32 = 10_052;
    pub(in super::super) const RETRY_UNCACHED_REP: u32 = 10_068;
    pub(in super::super) const SEQ_FALSE_RETRY: u32 = 10_076;
}

/// Stands for an open file, or for the locks of an owner there (`stateid4`).
pub(super) type WireStateid = [u8; 16];
/// The anonymous state id: access is decided by the file's mode (RFC 8881 section 8.2.3).
pub(super) const ANONYMOUS: WireStateid = [0; 16];
/// A session (`sessionid4`).
pub(super) type WireSessionId = [u8; 16];

/// Which of the files of a call.
const CHANGE: u32 = 1 << 3;
const SIZE: u32 = 1 << 4;
const MODE: u32 = 1 << (33 - 32);
const LINKS: u32 = 1 << (35 - 32);

/// Wishes for delegations in what a file is opened for: one to read, or none.
pub(super) const WANT_READ: u32 = 0x100;
const WANT_NONE: u32 = 0x400;
/// `open_delegation_type4`: to read, and none with the reason.
const READ_DELEGATION: u32 = 1;
const NONE_BECAUSE: u32 = 3;

/// How OPEN treats a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreateMode {
    /// The file is there.
    Existing,
    /// It is made unless it is there.
    Unchecked,
    /// It is made, and must not be there.
    Guarded,
    /// The same; who made it by this number may ask again.
    Exclusive(u64),
}

/// What OPEN opens.
#[derive(Clone, Copy, Debug)]
pub(super) enum WireOpenClaim<'a> {
    /// A name in the current directory.
    Name(&'a str, CreateMode),
    /// The current file.
    Here,
    /// The current file, which was open before the gateway started again.
    Again,
}

/// Operations, one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct CompoundOps {
    count: u32,
    bytes: Vec<u8>,
}

impl CompoundOps {
    /// Begins an operation.
    pub(super) fn op(mut self, number: u32) -> Self {
        self.count += 1;
        self.word(number)
    }

    pub(super) fn word(mut self, word: u32) -> Self {
        self.bytes.extend_from_slice(&word.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, long: u64) -> Self {
        self.bytes.extend_from_slice(&long.to_be_bytes());
        self
    }

    pub(super) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.word(bytes.len() as u32).fixed(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn root(self) -> Self {
        self.op(op::PUTROOTFH)
    }

    pub(super) fn put(self, handle: &[u8]) -> Self {
        self.op(op::PUTFH).opaque(handle)
    }

    pub(super) fn named(self, number: u32, name: &str) -> Self {
        self.op(number).opaque(name.as_bytes())
    }

    /// The only attribute that is set: the mode.
    pub(super) fn mode(self, mode: u32) -> Self {
        self.word(2).word(0).word(MODE).opaque(&mode.to_be_bytes())
    }

    /// SETATTR of the size.
    pub(super) fn cut(self, stateid: &WireStateid, size: u64) -> Self {
        let ops = self.op(op::SETATTR).fixed(stateid).word(1).word(SIZE);
        ops.opaque(&size.to_be_bytes())
    }

    /// GETATTR of size and links.
    pub(super) fn look(self) -> Self {
        self.op(op::GETATTR).word(2).word(SIZE).word(LINKS)
    }

    /// GETATTR of the number that stands for the state of a file.
    pub(super) fn look_for_change(self) -> Self {
        self.op(op::GETATTR).word(1).word(CHANGE)
    }

    /// OPEN by `owner`, with what it is to be opened for and what others may not do; without a
    /// delegation unless it is wanted.
    pub(super) fn open(
        self,
        owner: &[u8],
        (access, deny): (u32, u32),
        claim: WireOpenClaim<'_>,
    ) -> Self {
        let access = if access & WANT_READ == 0 { access | WANT_NONE } else { access };
        let ops = self.op(op::OPEN).word(0).word(access).word(deny).long(0).opaque(owner);
        match claim {
            WireOpenClaim::Name(name, how) => ops.how(how).word(0).opaque(name.as_bytes()),
            WireOpenClaim::Here => ops.word(0).word(4),
            WireOpenClaim::Again => ops.word(0).word(1).word(0),
        }
    }

    fn how(self, how: CreateMode) -> Self {
        match how {
            CreateMode::Existing => self.word(0),
            CreateMode::Unchecked => self.word(1).word(0).mode(0o644),
            CreateMode::Guarded => self.word(1).word(1).mode(0o644),
            CreateMode::Exclusive(mark) => self.word(1).word(3).long(mark).mode(0o644),
        }
    }

    /// The bytes alone.
    pub(super) fn encoded(self) -> Vec<u8> {
        self.bytes
    }

    /// The arguments of the call.
    pub(super) fn compound(&self) -> Vec<u8> {
        let head = Self::default().opaque(b"sim").word(MINOR).word(self.count);
        [head.bytes, self.bytes.clone()].concat()
    }

    /// The same behind a SEQUENCE.
    pub(super) fn in_sequence(
        &self,
        id: &WireSessionId,
        (slot, number): (usize, u32),
        kept: bool,
    ) -> Vec<u8> {
        let slot = slot as u32;
        let head = Self::default().op(op::SEQUENCE).fixed(id).word(number).word(slot).word(slot);
        let Self { count, bytes } = head.word(kept.into());
        Self { count: count + self.count, bytes: [bytes, self.bytes.clone()].concat() }.compound()
    }
}

/// The reply to a call, to be taken from the front.
#[derive(Clone, Debug)]
pub(super) struct ReplyReader {
    /// What came of the last operation that was done.
    pub(super) status: u32,
    /// How many have a result.
    pub(super) results: u32,
    rest: Bytes,
}

impl ReplyReader {
    /// Takes a reply apart.
    pub(super) fn of(mut reply: Bytes) -> Self {
        let status = reply.get_u32();
        let mut reader = Self { status, results: 0, rest: reply };
        assert_eq!(&reader.opaque()[..], b"sim", "the tag comes back");
        reader.results = reader.word();
        reader
    }

    pub(super) fn word(&mut self) -> u32 {
        self.rest.get_u32()
    }

    pub(super) fn long(&mut self) -> u64 {
        self.rest.get_u64()
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.rest.copy_to_slice(&mut bytes);
        bytes
    }

    pub(super) fn opaque(&mut self) -> Bytes {
        let length = self.word() as usize;
        let bytes = self.rest.split_to(length);
        self.rest.advance(length.next_multiple_of(4) - length);
        bytes
    }

    /// The result of the next operation is that of `number`, which was done; returns the reader of
    /// its results.
    pub(super) fn done(&mut self, number: u32) -> &mut Self {
        let (found, status) = (self.word(), self.word());
        assert_eq!((found, status), (number, status::OK), "the result of operation {number}");
        self
    }

    /// What SEQUENCE has said; the slot and its number come back.
    pub(super) fn sequence(&mut self, (slot, number): (usize, u32)) {
        let rest = self.done(op::SEQUENCE);
        let _id: WireSessionId = rest.fixed();
        assert_eq!((rest.word(), rest.word() as usize), (number, slot), "the slot of a request");
        let _limits_and_flags: [u8; 12] = rest.fixed();
    }

    /// The state id of an OPEN that wants no delegation.
    pub(super) fn opened(&mut self) -> WireStateid {
        let (stateid, delegation) = self.opened_or_delegated();
        assert_eq!(delegation, None, "it wants no delegation");
        stateid
    }

    /// The state id of an OPEN, and of the delegation that comes with it.
    pub(super) fn opened_or_delegated(&mut self) -> (WireStateid, Option<WireStateid>) {
        let rest = self.done(op::OPEN);
        let stateid = rest.fixed();
        let _directory: [u8; 20] = rest.fixed();
        let _flags = rest.word();
        for _ in 0..rest.word() {
            rest.word();
        }
        match rest.word() {
            READ_DELEGATION => {
                let delegation = rest.fixed();
                let _recalled_and_entry: [u8; 16] = rest.fixed();
                rest.opaque();
                (stateid, Some(delegation))
            }
            NONE_BECAUSE => {
                // Contention and a lack of resources say whether the client will be told.
                if matches!(rest.word(), 1 | 2) {
                    rest.word();
                }
                (stateid, None)
            }
            other => panic!("a delegation of type {other}"),
        }
    }

    /// The same behind a PUTFH.
    pub(super) fn done_then_looked(&mut self) -> (u64, u32) {
        self.done(op::PUTFH).looked()
    }

    /// What [`CompoundOps::look_for_change`] asks for, behind a PUTFH.
    pub(super) fn done_then_change(&mut self) -> u64 {
        self.done(op::PUTFH);
        let rest = self.done(op::GETATTR);
        assert_eq!([rest.word(), rest.word()], [1, CHANGE]);
        let _bytes = rest.word();
        rest.long()
    }

    /// Size and links, as [`CompoundOps::look`] asks for them.
    pub(super) fn looked(&mut self) -> (u64, u32) {
        let rest = self.done(op::GETATTR);
        assert_eq!([rest.word(), rest.word(), rest.word()], [2, SIZE, LINKS]);
        let _bytes = rest.word();
        (rest.long(), rest.word())
    }
}
