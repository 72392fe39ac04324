//! Calls that are right: every procedure of version 3 and of MOUNT, every operation of version 4.

use runtime::seed::Rng;

use crate::Stage;

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// Bytes of a reply before its result: mark, number and the head of what was done.
const REPLY_HEAD: usize = 28;
/// SEQUENCE.
const SEQUENCE: u32 = 53;

/// Arguments in the making.
#[derive(Clone, Debug, Default)]
struct Words(Vec<u8>);

impl Words {
    fn words(mut self, words: &[u32]) -> Self {
        for word in words {
            self.0.extend_from_slice(&word.to_be_bytes());
        }
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn opaque(self, bytes: &[u8]) -> Self {
        let padding = vec![0; bytes.len().wrapping_neg() % 4];
        self.words(&[bytes.len() as u32]).raw(bytes).raw(&padding)
    }
}

fn start() -> Words {
    Words::default()
}

/// A call by root of this machine.
fn call(xid: u32, [program, version, procedure]: [u32; 3], arguments: &Words) -> Vec<u8> {
    let credential = start().words(&[0]).opaque(b"host").words(&[0, 0, 2, 4, 5]);
    let head = start().words(&[xid, 0, 2, program, version, procedure, 1]);
    head.opaque(&credential.0).words(&[0, 0]).raw(&arguments.0).0
}

/// All calls of one world.
pub(crate) struct Seeds {
    root: Vec<u8>,
    calls: Vec<([u32; 3], Words)>,
    /// Operations of version 4, to be put behind a SEQUENCE.
    operations: Vec<Words>,
    session: Vec<u8>,
    sequence: u32,
    xid: u32,
}

impl Seeds {
    /// With the handles of this world.
    pub(crate) fn new(stage: &Stage) -> Self {
        let mut seeds = Self {
            root: Vec::new(),
            calls: Vec::new(),
            operations: Vec::new(),
            session: Vec::new(),
            sequence: 0,
            xid: 0,
        };
        let handle_at = |result: Vec<u8>, at: usize| {
            let length = u32::from_be_bytes(result[at..at + 4].try_into().expect("a word"));
            result[at + 4..at + 4 + length as usize].to_vec()
        };
        seeds.root = handle_at(seeds.ask(stage, [MOUNT, 3, 1], &start().opaque(b"/")), 4);
        let create = start().opaque(&seeds.root).opaque(b"file").words(&[0, 0, 0, 0, 0, 0, 0]);
        let file = handle_at(seeds.ask(stage, [NFS, 3, 8], &create), 8);
        let exchange = start().opaque(b"").words(&[1, 1, 42, 0, 7]).opaque(b"fuzz");
        let told = seeds.ask(stage, [NFS, 4, 1], &exchange.words(&[0, 0, 0]));
        // Behind status, tag, count, number and status.
        let client = told[20..28].to_vec();
        let channel = [0, 1 << 20, 1 << 20, 4096, 12, 4, 0];
        let create = start().opaque(b"").words(&[1, 1, 43]).raw(&client).words(&[1, 0]);
        let create = create.words(&channel).words(&channel).words(&[0, 0]);
        seeds.session = seeds.ask(stage, [NFS, 4, 1], &create)[20..36].to_vec();
        seeds.calls = calls(&seeds.root, &file);
        seeds.operations = operations(&file, &client);
        seeds
    }

    /// The result of a call that is done.
    fn ask(&mut self, stage: &Stage, program: [u32; 3], arguments: &Words) -> Vec<u8> {
        self.xid += 1;
        let record = call(self.xid, program, arguments);
        let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
        let reply = stage.exchange(&[&mark[..], &record].concat(), 4096);
        assert!(reply.len() > REPLY_HEAD, "{program:?} is answered by {reply:?}");
        reply[REPLY_HEAD..].to_vec()
    }

    /// Any of them.
    pub(crate) fn any(&mut self, rng: &mut Rng) -> Vec<u8> {
        self.xid = self.xid.wrapping_add(1);
        if rng.chance(1, 2) {
            let (program, arguments) = &self.calls[rng.index(self.calls.len())];
            return call(self.xid, *program, arguments);
        }
        let count = 1 + rng.index(6);
        let mut body = start().opaque(b"").words(&[1 + rng.below(2) as u32, 1 + count as u32]);
        body = body.words(&[SEQUENCE]).raw(&self.session);
        body = body.words(&[self.sequence + 1, 0, 0, rng.below(2) as u32]);
        for _ in 0..count {
            body = body.raw(&self.operations[rng.index(self.operations.len())].0);
        }
        call(self.xid, [NFS, 4, 1], &body)
    }

    /// Looks how far the session has come: each SEQUENCE that was done is in a reply.
    pub(crate) fn learn(&mut self, received: &[u8]) {
        let mut rest = received;
        while let Some(mark) = rest.first_chunk().copied().map(u32::from_be_bytes) {
            let end = 4 + (mark & 0x7fff_ffff) as usize;
            let Some(reply) = rest.get(..end) else { return };
            rest = &rest[end..];
            // Number and status of the first operation, its session, its sequence.
            let begins = [SEQUENCE, 0].iter().flat_map(|word| word.to_be_bytes());
            let is_done = reply.get(40..48).is_some_and(|told| begins.eq(told.iter().copied()));
            if let Some(told) = reply.get(64..68).filter(|_| is_done) {
                let sequence = u32::from_be_bytes(told.try_into().expect("a word"));
                self.sequence = self.sequence.max(sequence);
            }
        }
    }

    /// Others are answered.
    pub(crate) fn still_serves(&mut self, stage: &Stage) {
        let attributes = start().opaque(&self.root);
        let told = self.ask(stage, [NFS, 3, 1], &attributes);
        assert_eq!(told[..4], [0; 4], "GETATTR of the root");
        assert_eq!(told.len(), 88);
    }
}

/// Each procedure of version 3 and of MOUNT.
fn calls(root: &[u8], file: &[u8]) -> Vec<([u32; 3], Words)> {
    let of = |handle: &[u8]| start().opaque(handle);
    let place = || of(root).opaque(b"name");
    let set = |words: Words| words.words(&[1, 0o644, 0, 0, 1, 0, 7, 1, 2, 5, 6]);
    let nfs = vec![
        start(),
        of(root),
        set(of(file)).words(&[0]),
        of(root).opaque(b"file"),
        of(root).words(&[63]),
        of(file),
        of(file).words(&[0, 0, 4096]),
        of(file).words(&[0, 3, 100, 2]).opaque(&[7; 100]),
        set(place().words(&[1])),
        set(place()),
        set(place()).opaque(b"target"),
        set(place().words(&[7])),
        place(),
        place(),
        place().raw(&of(root).opaque(b"other").0),
        of(file).raw(&place().0),
        of(root).words(&[0, 0, 0, 0, 4096]),
        of(root).words(&[0, 0, 0, 0, 4096, 8192]),
        of(root),
        of(root),
        of(root),
        of(file).words(&[0, 0, 0]),
    ];
    let mount = [start(), start().opaque(b"/"), start(), start().opaque(b"/"), start(), start()];
    let numbered = |program: u32, version: u32| {
        move |(procedure, words): (usize, Words)| ([program, version, procedure as u32], words)
    };
    let nfs = nfs.into_iter().enumerate().map(numbered(NFS, 3));
    nfs.chain(mount.into_iter().enumerate().map(numbered(MOUNT, 3))).collect()
}

/// Each operation of version 4.
fn operations(file: &[u8], client: &[u8]) -> Vec<Words> {
    let op = |number: u32| start().words(&[number]);
    let stateid = [0; 16];
    let attributes = |words: Words| words.words(&[2, 1 << 4, 1 << 1, 12, 0, 5, 0o644]);
    let open = op(18).words(&[0, 3, 0]).raw(client).opaque(b"owner");
    let lock = op(12).words(&[2, 0, 0, 0, 0, 9, 1, 0]).raw(&stateid).words(&[0]);
    vec![
        op(3).words(&[63]),
        op(4).words(&[0]).raw(&stateid),
        op(5).words(&[0, 0, 0]),
        attributes(op(6).words(&[2]).opaque(b"made")),
        op(6).words(&[5]).opaque(b"to").opaque(b"link").words(&[0, 0]),
        op(9).words(&[3, 0x0010_011a, 0x00b0_a23a, 0]),
        op(10),
        op(11).opaque(b"linked"),
        lock.raw(client).opaque(b"locker"),
        op(13).words(&[1, 0, 0, 0, 9]).raw(client).opaque(b"locker"),
        op(14).words(&[1, 1]).raw(&stateid).words(&[0, 0, 0, 9]),
        op(15).opaque(b"file"),
        op(16),
        attributes(op(17)),
        attributes(open.clone().words(&[1, 0])).words(&[0]).opaque(b"opened"),
        open.clone().words(&[1, 2, 1, 2, 0]).opaque(b"exclusive"),
        open.words(&[0, 1, 0]),
        op(21).raw(&stateid).words(&[1, 1, 0]),
        op(22).opaque(file),
        op(23),
        op(24),
        op(25).raw(&stateid).words(&[0, 0, 4096]),
        op(26).words(&[0, 0, 0, 0, 4096, 8192, 1, 0x0010_011a]),
        op(27),
        op(28).opaque(b"made"),
        op(29).opaque(b"opened").opaque(b"renamed"),
        op(31),
        op(32),
        op(33).opaque(b"file"),
        attributes(op(34).raw(&stateid)),
        attributes(op(37)),
        op(38).raw(&stateid).words(&[0, 0, 2]).opaque(&[9; 64]),
        op(45).raw(&stateid),
        op(52).words(&[0]),
        op(55).words(&[2]).raw(&stateid).raw(&stateid),
        op(58).words(&[0]),
        op(59).raw(&stateid).words(&[0, 0, 0, 4096]),
        op(60).raw(&stateid).raw(&stateid).words(&[0, 0, 0, 9, 0, 5, 1, 1, 0]),
        op(62).raw(&stateid).words(&[0, 0, 0, 4096]),
        op(63).raw(&stateid).words(&[0, 0, 0, 4096, 1, 16]),
        op(68).raw(&stateid).words(&[0, 0, 8192]),
        op(69).raw(&stateid).words(&[0, 0, 1]),
        op(72).opaque(b"mark"),
        op(73).words(&[0]).opaque(b"mark").opaque(b"value"),
        op(74).words(&[0, 0, 4096]),
        op(75).opaque(b"mark"),
        op(42).words(&[0, 8]).opaque(b"other").words(&[0, 0, 0]),
        op(50),
    ]
}
