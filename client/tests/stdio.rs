//! A stream behaves as the C library's `FILE` does.
//!
//! Method: the same random calls on a stream over the model and on `FILE` over a local file;
//! returns, positions, indicators and, in the end, the bytes must be the same. The C library is the
//! oracle because a model of stdio written here would share this project's misunderstandings.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod c_file;

use std::io::{Read as _, Seek, SeekFrom, Write as _};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use c_file::CFile;
use client::blocking::{BlockingFile, Volume};
use client::stream::{UNREAD_MAX, Whence};
use client::{Cause, Credentials, Stream};
use fileio::model::{Model, machine};
use fileio::protocol::{Error as FileIoError, FileIo, Reply, Request};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::seed::{Rng, with_seed};
use runtime::{Caller, Server};

fn volume() -> Volume {
    let machine = machine::start().unwrap();
    Volume::holding(machine.client_handle(), Credentials::root(), machine)
}

/// What the last call was, since C forbids some calls straight after others.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    Read,
    Write,
    Unread,
    Neither,
}

const MODES: [&str; 6] = ["r", "w", "a", "r+", "w+", "a+"];
const CALLS: u64 = 400;

#[test]
fn a_stream_does_what_the_c_library_does() {
    let volume = volume();
    let directory = tempfile::tempdir().unwrap();
    with_seed(|rng| {
        for round in 0..60 {
            let mode = MODES[rng.index(MODES.len())];
            let local = directory.path().join(format!("f{round}"));
            let path = format!("/f{round}");
            let mut content = vec![0; rng.index(20_000)];
            rng.fill(&mut content);
            std::fs::write(&local, &content).unwrap();
            volume.create(&path).unwrap().write_at(0, content).unwrap();

            let mut ours = volume.stream(&path, mode.parse().unwrap()).unwrap();
            let mut theirs = CFile::open(&local, mode).unwrap();
            if rng.chance(2, 3) {
                let size = [0, 1, 100, 4096, 5000][rng.index(5)];
                ours.set_buffer(size).unwrap();
                theirs.set_buffer(size);
            }
            let mut last = Last::Neither;
            for call in 0..CALLS {
                last = same_call(rng, &mut ours, &mut theirs, last);
                let what = format!("round {round}, mode {mode}, call {call}");
                assert_eq!((ours.is_at_end(), ours.has_failed()), theirs.indicators(), "{what}");
                assert_eq!(i64::try_from(ours.tell()).unwrap(), theirs.tell(), "{what}");
            }
            ours.close().unwrap();
            drop(theirs);
            let file = volume.open(&path, client::OpenOptions::new().read(true)).unwrap();
            let stored = file.read_bytes_at(0, 1 << 24).unwrap().concat();
            assert!(stored == std::fs::read(&local).unwrap(), "round {round}, mode {mode}");
        }
    });
}

/// Does one random call on both and compares what it returns.
fn same_call(
    rng: &mut Rng,
    ours: &mut Stream<BlockingFile>,
    theirs: &mut CFile,
    last: Last,
) -> Last {
    match rng.below(12) {
        0..4 if last != Last::Write => {
            let length = length(rng);
            let (mut our_bytes, mut their_bytes) = (vec![0; length], vec![0; length]);
            let our_count = ours.read(&mut our_bytes).unwrap_or(0);
            assert_eq!(our_count, theirs.read(&mut their_bytes), "read {length}");
            assert_eq!(our_bytes[..our_count], their_bytes[..our_count]);
            // After the end of the file, or after a refusal, a write may follow.
            match our_count {
                0 if length == 0 => last,
                0 => Last::Neither,
                _ => Last::Read,
            }
        }
        4..8 if matches!(last, Last::Write | Last::Neither) => {
            let mut data = vec![0; length(rng)];
            rng.fill(&mut data);
            let our_count = ours.write(&data).map_or(0, |()| data.len());
            assert_eq!(our_count, theirs.write(&data), "write {}", data.len());
            Last::Write
        }
        8 if last == Last::Read && ours.tell() > 0 && !ours.has_failed() => {
            let byte = rng.bits() as u8;
            assert_eq!(ours.unread(byte).is_ok(), theirs.unread(byte));
            Last::Unread
        }
        9 => {
            ours.clear_error();
            theirs.clear_error();
            last
        }
        10 if last != Last::Unread => {
            assert_eq!(ours.flush().is_ok(), theirs.flush());
            if last == Last::Write { Last::Neither } else { last }
        }
        _ => {
            let (mut whence, mut offset) = (Whence::Set, rng.below(30_000).cast_signed() - 10_000);
            if last == Last::Unread {
                // C does not say whether a seek that fails takes back an unread.
                offset = offset.abs();
            } else {
                whence = [Whence::Set, Whence::Current, Whence::End][rng.index(3)];
            }
            let sought = ours.seek(offset, whence).is_ok();
            assert_eq!(sought, theirs.seek(offset, whence), "seek {offset} {whence:?}");
            if sought { Last::Neither } else { last }
        }
    }
}

/// Mostly short, sometimes longer than any buffer.
fn length(rng: &mut Rng) -> usize {
    let bound = [1, 10, 300, 6000][rng.index(4)];
    rng.index(bound) + usize::from(rng.chance(9, 10))
}

/// A model whose volume is full for as long as the test says.
struct Full {
    model: Rc<Model>,
    full: &'static AtomicBool,
}

impl Server<FileIo> for Full {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let no_space = FileIoError::NoSpace {};
        let reply = match request {
            Request::Write(_) if self.full.load(SeqCst) => Reply::Write(Err(no_space)),
            Request::Append(_) if self.full.load(SeqCst) => Reply::Append(Err(no_space)),
            request => self.model.answer(&request),
        };
        futures::future::ready(reply).boxed_local()
    }
}

#[test]
fn a_failed_write_leaves_the_position_and_can_be_tried_again() {
    static FULL: AtomicBool = AtomicBool::new(false);
    let machine = machine::start_with(|model| Rc::new(Full { model, full: &FULL })).unwrap();
    let volume = Volume::holding(machine.client_handle(), Credentials::root(), machine);
    for mode in ["w", "a"] {
        let mut stream = volume.stream("/f", mode.parse().unwrap()).unwrap();
        stream.set_buffer(100).unwrap();
        let start = stream.tell();
        stream.write(&[1; 60]).unwrap();
        FULL.store(true, SeqCst);
        let no_space = Cause::FileIo(FileIoError::NoSpace {});
        assert_eq!(stream.write(&[2; 60]).unwrap_err().cause, no_space);
        assert_eq!(stream.write(&[3; 200]).unwrap_err().cause, no_space);
        assert_eq!(stream.seek(0, Whence::Set).unwrap_err().cause, no_space);
        assert_eq!((stream.tell(), stream.has_failed()), (start + 60, true));
        FULL.store(false, SeqCst);
        stream.clear_error();
        stream.write(&[2; 60]).unwrap();
        stream.sync().unwrap();
        assert_eq!((stream.tell(), stream.has_failed()), (start + 120, false));
        stream.close().unwrap();
    }
    let mut stored = Vec::new();
    volume.stream("/f", "r".parse().unwrap()).unwrap().read_to_end(&mut stored).unwrap();
    let half = [[1; 60], [2; 60]].concat();
    assert_eq!(stored, [half.clone(), half].concat());

    let mut lost = volume.stream("/f", "w".parse().unwrap()).unwrap();
    lost.write(b"lost").unwrap();
    FULL.store(true, SeqCst);
    assert_eq!(
        lost.close().unwrap_err().to_string(),
        "cannot write /f: no space left on the volume; remove what is no longer needed"
    );
}

#[test]
fn the_standard_traits_read_write_and_seek() {
    let volume = volume();
    let mut stream = volume.stream("/f", "wx+".parse().unwrap()).unwrap();
    writeln!(stream, "step {}", 7).unwrap();
    let mut text = String::new();
    stream.rewind().unwrap();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "step 7\n");
    assert_eq!(Seek::seek(&mut stream, SeekFrom::End(-2)).unwrap(), 5);
    let before = Seek::seek(&mut stream, SeekFrom::Current(-6)).unwrap_err();
    assert_eq!(before.kind(), std::io::ErrorKind::InvalidInput);
    assert!(Seek::seek(&mut stream, SeekFrom::Start(u64::MAX)).is_err());
    assert_eq!(stream.stream_position().unwrap(), 5);
    drop(stream);
    let refused = volume.stream("/f", "wx".parse().unwrap()).unwrap_err();
    assert_eq!(refused.cause, Cause::FileIo(FileIoError::Exists {}));
}

#[test]
fn switching_between_reading_and_writing_needs_no_seek() {
    let volume = volume();
    let mut stream = volume.stream("/f", "w+".parse().unwrap()).unwrap();
    stream.write(b"0123456789").unwrap();
    stream.seek(2, Whence::Set).unwrap();
    let mut two = [0; 2];
    stream.read(&mut two).unwrap();
    stream.write(b"xy").unwrap();
    stream.read(&mut two).unwrap();
    assert_eq!((&two, stream.tell()), (b"67", 8));
    stream.unread(b'7').unwrap();
    stream.write(b"z").unwrap();
    stream.seek(0, Whence::Set).unwrap();
    let all = stream.read_bytes(100).unwrap().concat();
    assert_eq!(all, b"0123xy6z89");
    assert!(stream.is_at_end());
}

#[test]
fn bytes_pushed_back_are_read_first_and_are_limited() {
    let volume = volume();
    let mut stream = volume.stream("/f", "w+".parse().unwrap()).unwrap();
    stream.write(b"end").unwrap();
    stream.seek(0, Whence::Set).unwrap();
    for byte in 0..UNREAD_MAX {
        stream.unread(byte as u8).unwrap();
    }
    assert_eq!(stream.unread(0).unwrap_err().cause, Cause::UnreadFull);
    assert_eq!((stream.tell(), stream.has_failed()), (0, false));
    let mut back: Vec<u8> = (0..UNREAD_MAX as u8).rev().collect();
    back.extend(b"end");
    assert_eq!(stream.read_bytes(1000).unwrap().concat(), back);
    assert_eq!(stream.tell(), 3);
}

#[test]
fn reading_up_to_a_byte_stops_there_and_takes_what_was_pushed_back_first() {
    let volume = volume();
    for buffer_size in [0, 3, 100] {
        let mut stream = volume.stream("/f", "w+".parse().unwrap()).unwrap();
        stream.set_buffer(buffer_size).unwrap();
        stream.write(b"one\ntwo\n\nlast").unwrap();
        stream.seek(0, Whence::Set).unwrap();
        stream.unread(b'>').unwrap();
        let mut next = |size| {
            let mut out = vec![0; size];
            let count = stream.read_until(b'\n', &mut out).unwrap();
            out.truncate(count);
            out
        };
        assert_eq!(next(10), b">one\n");
        assert_eq!(next(2), b"tw");
        assert_eq!(next(10), b"o\n");
        assert_eq!(next(10), b"\n");
        assert_eq!(next(0), b"");
        assert_eq!(next(10), b"last");
        assert_eq!(next(10), b"");
        assert!(stream.is_at_end());
    }
}
