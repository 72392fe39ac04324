//! What it costs to protect a message between two processes (ADR 43): processor time of both sides,
//! without a network. Each message has a head of 56 bytes, as a frame, and a bulk; it is carried
//! through memory.
//!
//! `tls` is what the links do: records of TLS 1.3 under AES-128-GCM. The others leave the bytes
//! readable and add a code of authentication that the other side computes again: AES-128-GMAC,
//! HMAC-SHA-256, and keyed BLAKE3 as this workspace builds it. `nothing` is the carrying alone.
//!
//! `list_packed` and `list_by_segment` are the sender's side of a list over libfabric (ADR 89).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join, ready};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use runtime::net::{ByteStream, StreamReader, StreamWriter};
use transport::tls::{Authority, Keys};

const SIZES: [usize; 6] = [64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20];
const HEAD: usize = 56;

fn main() {
    divan::main();
}

/// One direction of a stream.
#[derive(Clone, Default)]
struct SealedPipe(Rc<RefCell<VecDeque<Bytes>>>);

impl StreamReader for SealedPipe {
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>> {
        poll_fn(move |context| {
            let Some(part) = self.0.borrow_mut().pop_front() else {
                context.waker().wake_by_ref();
                return Poll::Pending;
            };
            buffer.extend_from_slice(&part);
            Poll::Ready(Ok(part.len()))
        })
        .boxed_local()
    }
}

impl StreamWriter for SealedPipe {
    fn write(&mut self, parts: Vec<Bytes>) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.borrow_mut().extend(parts);
        ready(Ok(())).boxed_local()
    }
}

/// Both ends of a stream.
fn plain() -> (ByteStream, ByteStream) {
    let (there, back) = (SealedPipe::default(), SealedPipe::default());
    let end = |reader: &SealedPipe, writer: &SealedPipe| {
        let (reader, writer) = (Box::new(reader.clone()), Box::new(writer.clone()));
        ByteStream { reader, writer, peer: String::new(), user: None }
    };
    (end(&back, &there), end(&there, &back))
}

fn protected() -> (ByteStream, ByteStream) {
    #[allow(clippy::disallowed_methods, reason = "certificates are of this day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (authority, root) = Authority::make(now).expect("keys can be made");
    let keys = |number| {
        let identity =
            authority.certify(number, now, Duration::from_hours(1)).expect("so too here");
        Keys::new(number, root.certificate.as_bytes(), &identity).expect("they are good")
    };
    let (near, far) = plain();
    let (one, two) = (keys(1), keys(2));
    let (near, far) = block_on(join(one.greet(near, 2), two.receive(far)));
    (near.expect("they know each other"), far.expect("both of them").0)
}

/// Carries messages, with what `tag` computes at both ends.
fn carry(
    bencher: Bencher<'_, '_>,
    size: usize,
    ends: (ByteStream, ByteStream),
    tag: impl Fn(&[u8]) -> Tag,
) {
    let (mut near, mut far) = ends;
    let (head, bulk) = (Bytes::from(vec![1; HEAD]), Bytes::from(vec![2; size]));
    bencher.counter(BytesCount::new(size)).bench_local(move || {
        block_on(async {
            let sent = tag(&bulk);
            near.writer.write(vec![head.clone(), bulk.clone()]).await.expect("memory holds it");
            let mut buffer = BytesMut::with_capacity(HEAD + size);
            while buffer.len() < HEAD + size {
                far.reader.read(&mut buffer).await.expect("what was sent is there");
            }
            assert!(sent == tag(&buffer[HEAD..]), "it came as it was sent");
            black_box(buffer)
        })
    });
}

type Tag = [u8; 16];

fn cut(tag: &[u8]) -> Tag {
    tag[..16].try_into().expect("all tags are as long")
}

#[divan::bench(args = SIZES)]
fn nothing(bencher: Bencher<'_, '_>, size: usize) {
    carry(bencher, size, plain(), |_| Tag::default());
}

#[divan::bench(args = SIZES)]
fn tls(bencher: Bencher<'_, '_>, size: usize) {
    carry(bencher, size, protected(), |_| Tag::default());
}

#[divan::bench(args = SIZES)]
fn gmac(bencher: Bencher<'_, '_>, size: usize) {
    let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key has 16 bytes");
    let key = LessSafeKey::new(key);
    carry(bencher, size, plain(), move |bytes| {
        let nonce = Nonce::assume_unique_for_key([3; 12]);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []);
        cut(tag.expect("nothing is sealed").as_ref())
    });
}

#[divan::bench(args = SIZES)]
fn hmac_sha256(bencher: Bencher<'_, '_>, size: usize) {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
    carry(bencher, size, plain(), move |bytes| cut(hmac::sign(&key, bytes).as_ref()));
}

#[divan::bench(args = SIZES)]
fn blake3_keyed(bencher: Bencher<'_, '_>, size: usize) {
    carry(bencher, size, plain(), |bytes| cut(blake3::keyed_hash(&[7; 32], bytes).as_bytes()));
}

/// Bytes of a list.
const LIST: usize = 4 << 20;
/// Bytes of each of its segments.
const SEGMENTS: [usize; 4] = [1 << 10, 4 << 10, 32 << 10, 256 << 10];
const TAG: usize = 16;

/// Brings the segments into a buffer and seals them there, each `piece` with its tag. They lie in
/// memory that is shared, so they cannot be sealed where they are.
fn seal_list(bencher: Bencher<'_, '_>, segment: usize, piece: usize) {
    let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key has 16 bytes");
    let key = LessSafeKey::new(key);
    let memory = vec![5; 2 * LIST];
    let mut sealed = vec![0; LIST + LIST / piece * TAG];
    bencher.counter(BytesCount::new(LIST)).bench_local(move || {
        let mut segments = memory.chunks_exact(2 * segment).map(|both| &both[..segment]);
        for (number, out) in (0u64..).zip(sealed.chunks_exact_mut(piece + TAG)) {
            let (content, tag) = out.split_at_mut(piece);
            for part in content.chunks_exact_mut(segment) {
                part.copy_from_slice(segments.next().expect("the list is as long"));
            }
            let mut nonce = [3; 12];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let made = key.seal_in_place_separate_tag(nonce, Aad::empty(), content);
            tag.copy_from_slice(made.expect("it is short").as_ref());
        }
        black_box(sealed[0])
    });
}

#[divan::bench(args = SEGMENTS)]
fn list_packed(bencher: Bencher<'_, '_>, segment: usize) {
    seal_list(bencher, segment, LIST);
}

#[divan::bench(args = SEGMENTS)]
fn list_by_segment(bencher: Bencher<'_, '_>, segment: usize) {
    seal_list(bencher, segment, segment);
}
