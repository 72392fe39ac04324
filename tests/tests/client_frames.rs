//! Frames that no good client sends, on the port of clients: valid requests at wrong nodes, of
//! another user, with forged credentials, with bytes changed, and frames that are none. The server
//! does not panic, takes no memory to speak of, and leaves a volume in which `mdfs check` finds
//! nothing.
//!
//! `MDFS_FRAMES=10000000 cargo test -p tests --release --test client_frames -- --nocapture` sends
//! ten million.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fileio::protocol::{
    Allocate, Append, ByteRange, CallId, Change, CloseHandle, Commit, Create, Credentials,
    Existing, FileIo, Flush, GetAttributes, GetSpace, GetXattr, Handle, Link, ListXattrs, Lock,
    LockKind, LockOwner, Lookup, MakeNode, Name, NewNode, Open, OpenHandle, OpenNew, Parent,
    PunchHole, ROOT, Read, ReadDirectory, ReadLink, ReadList, Regions, Remove, RemoveDirectory,
    RemoveXattr, Rename, Renew, ReplayPunch, ReplayWrite, Reply, Request, Seek, SeekTarget,
    SetAttributes, SetXattr, SyncDirectory, TestLock, Trim, Unlock, WasDone, Write, WriteList,
    XattrMode, XattrName,
};
use runtime::VolumeId;
use runtime::hash::Crc32c;
use runtime::seed::{Rng, with_seed};
use runtime::wire::{Decoder, Encoder, Wire as _, from_bytes, to_bytes};
use runtime::{Protocol as _, RequestInfo as _};
use tests::{Content, Served, Site};
use transport::{ClientHello, FRAME_HEADER_SIZE, FrameHeader};

/// Frames of the usual run.
const FRAMES: u64 = 20_000;
/// Frames of one link, if none of them ends it.
const FRAMES_OF_LINK: u64 = 2_000;
/// One frame of this many is no frame: it ends its link.
const GARBLED_EVERY: u64 = 500;
/// What all of it may cost the server in memory, besides its caches.
const MEMORY_BYTES: u64 = 512 << 20;
/// Nodes of the volume.
const NODES: u32 = 8;
/// Numbers of inodes that requests name, from 1 on, mostly.
const INODES: u64 = 400;
/// Files that are remembered.
const FILES_MAX: usize = 256;
/// A user who is not the owner of the volume.
const STRANGER: u32 = 4711;

const KEPT: Content = Content { seed: 1, length: 300_000 };
const SILENCE_MAX: Duration = Duration::from_mins(2);

/// Kinds of frames.
const REQUEST: u8 = 2;
const REPLY: u8 = 3;
const WELCOME: u8 = 10;

fn frame(mut header: FrameHeader, head: &[u8], bulk: &[u8]) -> Vec<u8> {
    header.magic = u32::from_le_bytes(*b"MDFS");
    header.version = transport::FRAME_VERSION;
    header.head_length = head.len() as u32;
    header.bulk_length = bulk.len() as u32;
    let mut checksum = Crc32c::new();
    checksum.update(&to_bytes(&header)[..FRAME_HEADER_SIZE - 8]);
    checksum.update(head);
    checksum.update(bulk);
    header.checksum = checksum.finish();
    [&to_bytes(&header), head, bulk].concat()
}

/// What a good client would send, of all that it could.
struct RequestMaker<'a> {
    rng: &'a mut Rng,
    client: u64,
    /// Files of which replies told.
    files: &'a [Handle],
    number: u64,
}

impl RequestMaker<'_> {
    fn who(&mut self) -> Credentials {
        match self.rng.below(4) {
            0 => Credentials::root(),
            _ => Credentials { uid: STRANGER, gid: self.rng.below(9) as u32, groups: vec![5, 6] },
        }
    }

    fn file(&mut self) -> Handle {
        match self.rng.below(8) {
            0 => ROOT,
            1 => Handle { ino: self.rng.bits(), generation: self.rng.below(3) },
            2 => Handle { ino: 1 + self.rng.below(INODES), generation: 1 + self.rng.below(3) },
            _ if self.files.is_empty() => ROOT,
            _ => self.files[self.rng.index(self.files.len())],
        }
    }

    fn call(&mut self) -> CallId {
        self.number += self.rng.below(2);
        let client = if self.rng.chance(1, 16) { self.rng.bits() } else { self.client };
        CallId { client, number: self.number }
    }

    fn name(&mut self) -> Name {
        Name::new(vec![b'a' + self.rng.below(20) as u8]).unwrap()
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => self.rng.bits(),
            1 => self.rng.below(1 << 40),
            _ => self.rng.below(1 << 17),
        }
    }

    fn data(&mut self) -> Bytes {
        let most = if self.rng.chance(1, 64) { 1 << 20 } else { 6000 };
        let length = self.rng.index(most);
        Bytes::from(vec![7; length])
    }

    fn regions(&mut self) -> Regions {
        let (start, count) = (self.rng.below(1 << 16), 1 + self.rng.below(64));
        Regions::strided(start, 1 + self.rng.below(100), count, 1 + self.rng.below(500)).unwrap()
    }

    fn change(&mut self) -> Change {
        let size = self.rng.chance(1, 2).then(|| self.offset());
        Change { mode: self.rng.chance(1, 3).then_some(0o700), size, ..Change::default() }
    }

    fn xattr(&mut self) -> XattrName {
        XattrName::new(if self.rng.chance(1, 8) { &b"trusted.x"[..] } else { b"user.x" }).unwrap()
    }

    fn request(&mut self) -> Request {
        let (who, call, file, directory) = (self.who(), self.call(), self.file(), self.file());
        let (name, offset, length) = (self.name(), self.offset(), self.offset());
        let durable = self.rng.chance(1, 64);
        let owner = LockOwner { client: call.client, id: self.rng.below(4) };
        let (range, kind) = (ByteRange { first: offset, last: length }, LockKind::Exclusive {});
        let (sequence, change) = (self.rng.below(1 << 20), self.change());
        let existing = Existing::Use {};
        match self.rng.below(42) {
            0 => Lookup { who, directory, name }.into(),
            1 => Parent { who, directory }.into(),
            2 => GetAttributes { file }.into(),
            3 => SetAttributes { who, file, change, only_if_ctime: None, durable }.into(),
            4 | 5 => Create { who, call, directory, name, existing, change, durable }.into(),
            6 => {
                let node = NewNode::Directory {};
                MakeNode { who, call, directory, name, node, change, durable }.into()
            }
            7 => {
                let node = NewNode::Symlink { target: vec![b'/'; self.rng.index(5000)] };
                MakeNode { who, call, directory, name, node, change, durable }.into()
            }
            8 => Remove { who, call, directory, name, durable }.into(),
            9 => RemoveDirectory { who, call, directory, name, durable }.into(),
            10 => {
                let (to_directory, to_name, replace) = (self.file(), self.name(), true);
                let (from_directory, from_name) = (directory, name);
                Rename {
                    who,
                    call,
                    from_directory,
                    from_name,
                    to_directory,
                    to_name,
                    replace,
                    durable,
                }
                .into()
            }
            11 => Link { who, call, file, directory, name, durable }.into(),
            12 => {
                let (after, count_max) = (self.rng.bits() >> 2, self.rng.below(5000) as u32);
                let attributes = true;
                ReadDirectory { who, directory, after, count_max, attributes }.into()
            }
            13 => ReadLink { file }.into(),
            14 => Read { who, file, offset, length: self.rng.below(5 << 20) as u32 }.into(),
            15 | 16 => Write { who, file, offset, data: vec![self.data()], durable }.into(),
            17 => Commit { file }.into(),
            18 => GetSpace { partition: 0 }.into(),
            19 if self.rng.chance(1, 50) => Flush {}.into(),
            20 => Trim { ino: file.ino }.into(),
            21 => PunchHole { who, file, offset, length, durable }.into(),
            22 => Allocate { who, file, offset, length, keep_size: durable, durable }.into(),
            23 => Seek { who, file, offset, target: SeekTarget::Data {} }.into(),
            24 => GetXattr { who, file, name: self.xattr() }.into(),
            25 => {
                let (name, mode) = (self.xattr(), XattrMode::Either {});
                let value = vec![1; self.rng.index(70_000)];
                SetXattr { who, call, file, name, value, mode, durable }.into()
            }
            26 => ListXattrs { who, file }.into(),
            27 => RemoveXattr { who, call, file, name: self.xattr(), durable }.into(),
            28 => OpenHandle { who, call, file, access: self.rng.below(8) as u32 }.into(),
            29 => CloseHandle { call, file }.into(),
            30 => Renew { client: call.client, lease: sequence }.into(),
            31 => Open { who, call, directory, name }.into(),
            32 => OpenNew { who, call, directory, name, existing, change, durable }.into(),
            33 => Lock { file, owner, range, kind, lease: sequence, reclaim: durable }.into(),
            34 => TestLock { file, owner, range, kind }.into(),
            35 => Unlock { file, owner, range }.into(),
            36 => SyncDirectory { directory }.into(),
            37 => {
                let (regions, length) = (self.regions(), self.rng.below(1 << 16) as u32);
                ReadList { who, file, regions, skip: self.rng.below(100), length }.into()
            }
            38 => {
                let (regions, data) = (self.regions(), self.data());
                WriteList { who, file, regions, skip: self.rng.below(100), data, durable }.into()
            }
            39 => {
                let (data, acknowledged) = (vec![self.data()], self.number / 2);
                let only_if_verifier = durable.then_some(sequence);
                let again = durable;
                Append { who, call, again, acknowledged, only_if_verifier, file, data }.into()
            }
            40 => {
                let (data, order, is_append) = (vec![self.data()], offset, durable);
                ReplayWrite { who, file, offset, data, order, sequence, is_append }.into()
            }
            41 => ReplayPunch { who, file, offset, length, order: sequence, sequence }.into(),
            _ => WasDone { call }.into(),
        }
    }
}

/// Files of which replies told, most of them once.
type Files = Arc<Mutex<Vec<Handle>>>;

/// A link whose replies are read and thrown away.
struct FrameLink {
    stream: UnixStream,
    files: Files,
    client: u64,
    reader: JoinHandle<u64>,
}

impl FrameLink {
    /// As the user of this process, or another one.
    fn connect(socket: &Path, rng: &mut Rng, files: &Files) -> Self {
        let is_stranger = rustix::process::geteuid().is_root() && rng.chance(1, 2);
        let stream = if is_stranger {
            connect_as_stranger(socket)
        } else {
            UnixStream::connect(socket).unwrap()
        };
        stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        stream.set_write_timeout(Some(SILENCE_MAX)).unwrap();
        let session = u128::from(rng.bits()) << 64 | u128::from(rng.bits());
        let (volume, token, program) = (String::new(), Vec::new(), "frames".to_owned());
        let hello = ClientHello { volume, session, link: 1, token, program }.frame().concat();
        (&stream).write_all(&hello).unwrap();
        let (header, head) = read_frame(&mut &stream).unwrap();
        assert_eq!(header.kind, WELCOME);
        let client = client_of_welcome(&head);
        let mut replies = stream.try_clone().unwrap();
        let (files, told) = (files.clone(), files.clone());
        let reader = thread::spawn(move || {
            let mut count = 0;
            while let Some((header, head)) = read_frame(&mut replies) {
                count += 1;
                if header.kind == REPLY {
                    learn(&head, &told);
                }
            }
            count
        });
        Self { stream, files, client, reader }
    }

    /// Waits for the end of the link; returns the number of replies.
    fn end(self) -> u64 {
        // The server may have hung up.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.reader.join().unwrap()
    }
}

/// The number by which the nodes know the client, in the head of a welcome.
fn client_of_welcome(head: &[u8]) -> u64 {
    let mut input = Decoder::new(head, Bytes::new());
    VolumeId::take(&mut input).unwrap();
    u32::take(&mut input).unwrap();
    u64::take(&mut input).unwrap();
    bool::take(&mut input).unwrap();
    u64::take(&mut input).unwrap()
}

/// The socket shows the user of the thread that connects.
fn connect_as_stranger(socket: &Path) -> UnixStream {
    let socket = socket.to_owned();
    let connecting = thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).unwrap();
        UnixStream::connect(socket).unwrap()
    });
    connecting.join().unwrap()
}

/// Remembers the file that a reply made or found.
fn learn(head: &[u8], files: &Files) {
    let mut input = Decoder::new(head, Bytes::new());
    let found = match Reply::take(&mut input) {
        Ok(Reply::Create(Ok(created))) => created.attributes,
        Ok(Reply::OpenNew(Ok(opened))) => opened.created.attributes,
        Ok(Reply::MakeNode(Ok(attributes)) | Reply::Lookup(Ok(attributes))) => attributes,
        _ => return,
    };
    let file = Handle { ino: found.ino, generation: found.generation };
    let mut files = files.lock().unwrap();
    if files.len() < FILES_MAX {
        files.push(file);
    } else {
        let at = file.generation as usize ^ file.ino as usize;
        files[at % FILES_MAX] = file;
    }
}

fn read_frame(stream: &mut impl std::io::Read) -> Option<(FrameHeader, Vec<u8>)> {
    let mut header = [0; FRAME_HEADER_SIZE];
    stream.read_exact(&mut header).ok()?;
    let header: FrameHeader = from_bytes(&header).unwrap();
    let mut body = vec![0; header.head_length as usize + header.bulk_length as usize];
    stream.read_exact(&mut body).ok()?;
    body.truncate(header.head_length as usize);
    Some((header, body))
}

/// A frame with a request, valid or not.
fn request_frame(rng: &mut Rng, link: &FrameLink, call_id: u64) -> Vec<u8> {
    let request = if rng.chance(1, 8) {
        Request::sample(rng)
    } else {
        let files = &link.files.lock().unwrap();
        RequestMaker { rng, client: link.client, files, number: call_id }.request()
    };
    let right = fileio::hash::owner(request.route(), NODES).0;
    let to = if rng.chance(1, 4) { rng.below(u64::from(NODES)) as u32 } else { right };
    let mut out = Encoder::new();
    request.put(&mut out);
    let (mut head, bulk) = out.finish();
    let mut bulk = bulk.concat();
    // All calls but the last ones are answered or given up.
    let epoch = call_id.saturating_sub(1000);
    let mut header = FrameHeader {
        kind: REQUEST,
        protocol: FileIo::ID,
        protocol_version: FileIo::VERSION,
        class: 1 + rng.below(2) as u8,
        to,
        call_id,
        epoch,
        ..FrameHeader::default()
    };
    match rng.below(8) {
        0..=2 => {}
        3 | 4 => {
            for _ in 0..=rng.below(3) {
                let at = rng.index(head.len());
                head[at] = rng.bits() as u8;
            }
        }
        5 => head.truncate(rng.index(head.len() + 1)),
        6 => {
            let more = rng.index(100);
            head.extend(std::iter::repeat_n(0xff, more));
            bulk.truncate(rng.index(bulk.len() + 1));
        }
        _ => match rng.below(7) {
            0 => header.protocol = rng.below(9) as u8,
            1 => header.protocol_version = rng.below(4) as u16,
            2 => header.class = rng.bits() as u8,
            3 => header.to = rng.bits() as u32,
            4 => header.from = rng.bits() as u32,
            // Signs of life, kinds that only servers send, and none.
            5 => header.kind = [1, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11, 77][rng.index(12)],
            _ => header.call_id = call_id / 2,
        },
    }
    frame(header, &head, &bulk)
}

/// No frame: the link ends.
fn garble(rng: &mut Rng, frame: &mut Vec<u8>) {
    match rng.below(3) {
        0 => frame.truncate(rng.index(frame.len())),
        1 => rng.fill(frame),
        _ => {
            let at = rng.index(FRAME_HEADER_SIZE);
            frame[at] ^= 1 << rng.below(8);
        }
    }
}

/// Sends frames until the link ends or has had enough; returns how many.
fn send(link: &FrameLink, rng: &mut Rng, most: u64) -> u64 {
    let mut sent = 0;
    while sent < most {
        let mut batch = Vec::new();
        let mut ends = false;
        for _ in 0..32.min(most - sent) {
            sent += 1;
            let mut frame = request_frame(rng, link, sent);
            if rng.chance(1, GARBLED_EVERY) {
                garble(rng, &mut frame);
                ends = true;
            }
            batch.extend(frame);
            if ends {
                break;
            }
        }
        if (&link.stream).write_all(&batch).is_err() || ends {
            break;
        }
    }
    sent
}

fn frames() -> u64 {
    let told = std::env::var("MDFS_FRAMES").ok();
    told.map_or(FRAMES, |told| told.parse().unwrap())
}

/// What was measured.
#[derive(Debug, Default)]
struct Tally {
    frames: u64,
    links: u64,
    replies: u64,
    memory_max: u64,
}

fn storm(rng: &mut Rng, served: &Served, socket: &Path, tally: &mut Tally, told: &Instant) {
    let wanted = frames();
    let mut told_at = Duration::ZERO;
    let files = Files::default();
    while tally.frames < wanted {
        let link = FrameLink::connect(socket, rng, &files);
        tally.frames += send(&link, rng, FRAMES_OF_LINK.min(wanted - tally.frames));
        tally.replies += link.end();
        tally.links += 1;
        tally.memory_max = tally.memory_max.max(served.memory_bytes());
        if told.elapsed().saturating_sub(told_at) > Duration::from_mins(1) {
            told_at = told.elapsed();
            println!("{told_at:?}: {tally:?}");
        }
    }
}

#[test]
fn frames_that_no_good_client_sends_do_no_harm() {
    with_seed(|rng| {
        let site = Site::formatted(512, NODES);
        fs::set_permissions(site.path(""), Permissions::from_mode(0o711)).unwrap();
        KEPT.write(&site.path("kept"));
        let served = site.serve();
        site.ok(&["put", "kept", "VOL:/kept"]);
        let open_to_all = Change { mode: Some(0o777), ..Change::default() };
        site.open().set_attributes("/", open_to_all).unwrap();
        let mut tally = Tally::default();
        let before = served.memory_bytes();
        storm(rng, &served, &site.path("VOL/mdfs.sock"), &mut tally, &Instant::now());
        println!("{tally:?}, at first {before}");
        assert!(tally.replies > tally.frames / 2, "most were answered: {tally:?}");
        // It still serves.
        site.ok(&["df", "VOL"]);
        served.stop();
        let report = site.ok(&["check", "VOL"]);
        println!("{report}");
        assert!(tally.memory_max < before + MEMORY_BYTES, "{before} {tally:?}");
    });
}
