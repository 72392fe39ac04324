//! A session of NFS version 4.1 over [`RawNfs`]: RFC 8881, no more than load tests need.

#![allow(clippy::unwrap_used, reason = "tests of whole processes panic where they fail")]

use crate::raw_nfs::{Args, RawNfs, Results, status};

const NFS_4: (u32, u32) = (100_003, 4);
const COMPOUND: u32 = 1;
const MINOR_VERSION: u32 = 1;

const OPEN: u32 = 18;
const PUTROOTFH: u32 = 24;
const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
const SEQUENCE: u32 = 53;
const RECLAIM_COMPLETE: u32 = 58;

/// Operations in one COMPOUND that opens files, SEQUENCE apart, at most.
const OPERATIONS_MAX: usize = 62;
/// Words of a session's number.
const SESSION_WORDS: usize = 4;

/// A client with one session, of which it uses one slot.
#[derive(Debug)]
pub struct Nfs4Session {
    nfs: RawNfs,
    session: [u32; SESSION_WORDS],
    sequence: u32,
}

/// Operations of one COMPOUND.
#[derive(Debug, Default)]
struct Operations {
    args: Args,
    count: u32,
}

impl Operations {
    fn add(self, number: u32, args: impl FnOnce(Args) -> Args) -> Self {
        Self { args: args(self.args.word(number)), count: self.count + 1 }
    }

    /// Opens a file of the root to be read and written, and makes it if it is not there.
    fn open(self, owner: &[u8], name: &[u8]) -> Self {
        self.add(PUTROOTFH, |args| args).add(OPEN, |args| {
            // Access 3, no deny; the owner; CREATE, UNCHECKED, mode 0644 alone; CLAIM_NULL.
            let args = args.word(0).word(3).word(0).long(0).opaque(owner);
            let args = args.word(1).word(0).word(2).word(0).word(2).word(4).word(0o644);
            args.word(0).opaque(name)
        })
    }

    /// Calls them; the status of the last one, and the results behind the count of them.
    fn call(self, nfs: &mut RawNfs) -> (u32, Results) {
        let head = Args::default().opaque(b"").word(MINOR_VERSION).word(self.count);
        let args = Args([head.0, self.args.0].concat());
        let (status, mut results) = nfs.ask(NFS_4, COMPOUND, &args);
        let (_tag, _count) = (results.opaque(), results.word());
        (status, results)
    }
}

impl Nfs4Session {
    /// A client by this name, with a new session.
    pub fn new(mut nfs: RawNfs, name: &[u8]) -> Self {
        let exchange = Operations::default()
            .add(EXCHANGE_ID, |args| args.long(7).opaque(name).word(0).word(0).word(0));
        let (told, mut results) = exchange.call(&mut nfs);
        assert_eq!(told, status::OK);
        // Number and status of the operation.
        results.long();
        let client = results.long();
        let channel = |args: Args| {
            let args = args.word(0).word(1 << 20).word(1 << 20).word(4096);
            args.word(OPERATIONS_MAX as u32 + 2).word(8).word(0)
        };
        let create = Operations::default().add(CREATE_SESSION, |args| {
            let args = channel(channel(args.long(client).word(1).word(0)));
            // The callback program, without a credential.
            args.word(0x4000_0000).word(1).word(0)
        });
        let (told, mut results) = create.call(&mut nfs);
        assert_eq!(told, status::OK);
        results.long();
        let session = std::array::from_fn(|_| results.word());
        let mut created = Self { nfs, session, sequence: 0 };
        let complete = created.sequence().add(RECLAIM_COMPLETE, |args| args.word(0));
        assert_eq!(complete.call(&mut created.nfs).0, status::OK);
        created
    }

    /// The first operation of the next COMPOUND.
    fn sequence(&mut self) -> Operations {
        self.sequence += 1;
        let (session, sequence) = (self.session, self.sequence);
        Operations::default().add(SEQUENCE, |args| {
            let args = session.into_iter().fold(args, Args::word);
            // Slot 0, which is the last one; the reply is not needed twice.
            args.word(sequence).word(0).word(0).word(0)
        })
    }

    /// Renews the lease; the status.
    pub fn renew(&mut self) -> u32 {
        self.sequence().call(&mut self.nfs).0
    }

    /// Opens files of the root by an owner, as many in one call as fit; the first status that is
    /// not success.
    pub fn open(&mut self, owner: &[u8], names: &[String]) -> u32 {
        for names in names.chunks(OPERATIONS_MAX / 2) {
            let operations = names
                .iter()
                .fold(self.sequence(), |opened, name| opened.open(owner, name.as_bytes()));
            match operations.call(&mut self.nfs).0 {
                status::OK => {}
                failed => return failed,
            }
        }
        status::OK
    }
}
