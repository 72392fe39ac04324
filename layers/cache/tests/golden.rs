//! The bytes of the protocol: once released they change only with the table's version.

use bytes::Bytes;
use cache::protocol::{
    Extent, Placed, Read, ReadList, Reply, Request, Unsynced, Write, WriteBack, WriteList,
};
use runtime::wire::{Encoder, Wire};

fn encode(request: impl Into<Request>) -> (Vec<u8>, Vec<u8>) {
    form(&request.into())
}

fn form(value: &impl Wire) -> (Vec<u8>, Vec<u8>) {
    let mut out = Encoder::new();
    value.put(&mut out);
    let (head, bulk) = out.finish();
    (head, bulk.concat())
}

#[test]
fn a_read_has_these_bytes() {
    let read =
        Read { stripe: 0x0102_0304, offset: 4096, length: 8192, expect: vec![7, 0xFFFF_FFFE] };
    let head = [
        &[1][..],                  // tag
        &[4, 3, 2, 1, 0, 0, 0, 0], // stripe
        &[0, 0x10, 0, 0],          // offset
        &[0, 0x20, 0, 0],          // length
        &[2, 0, 0, 0],             // two checksums
        &[7, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF],
    ];
    assert_eq!(encode(read), (head.concat(), Vec::new()));
}

#[test]
fn a_write_has_these_bytes_and_its_data_beside_them() {
    let data = vec![Bytes::from_static(b"check"), Bytes::from_static(b"point")];
    let head = [
        &[2][..],                  // tag
        &[9, 0, 0, 0, 0, 0, 0, 0], // stripe
        &[3, 0, 0, 0],             // offset
        &[2, 0, 0, 0],             // two pieces
        &[5, 0, 0, 0, 5, 0, 0, 0], // their lengths
    ];
    let write = Write { stripe: 9, offset: 3, data };
    assert_eq!(encode(write), (head.concat(), b"checkpoint".to_vec()));
}

#[test]
fn a_write_back_names_lives_and_is_answered_with_lives() {
    let unsynced = |stripe, boot_id| Unsynced { stripe, boot_id };
    let write_back =
        WriteBack { written: vec![unsynced(9, 0x0102)], restarted: Some(unsynced(7, 3)) };
    let head = [
        &[4][..],                  // tag
        &[1, 0, 0, 0],             // one stripe
        &[9, 0, 0, 0, 0, 0, 0, 0], // it
        &[2, 1, 0, 0, 0, 0, 0, 0], // the life in which it was written
        &[1, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(encode(write_back), (head.concat(), Vec::new()));
    let reply = [&[4, 1][..], &[1, 0, 0, 0], &[9, 0, 0, 0, 0, 0, 0, 0], &[5, 0, 0, 0, 0, 0, 0, 0]];
    assert_eq!(form(&Reply::WriteBack(Ok(vec![unsynced(9, 5)]))), (reply.concat(), Vec::new()));
    assert_eq!(form(&Reply::Write(Ok(5))).0, [2, 1, 5, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn lists_have_these_bytes() {
    let extents = vec![Extent { offset: 16, length: 8 }, Extent { offset: 0x2000, length: 0x1000 }];
    let head = [
        &[7][..],                                          // tag
        &[9, 0, 0, 0, 0, 0, 0, 0],                         // stripe
        &[2, 0, 0, 0],                                     // two parts
        &[16, 0, 0, 0, 8, 0, 0, 0],                        // their offsets and lengths
        &[0, 0x20, 0, 0, 0, 0x10, 0, 0],                   //
        &[2, 0, 0, 0, 7, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF], // a checksum for each block
        &[1, 0, 0, 0],                                     // of one hardware block
    ];
    let read = ReadList { stripe: 9, extents, expect: vec![7, 0xFFFF_FFFE], unit: 1 };
    assert_eq!(encode(read), (head.concat(), Vec::new()));
    let placed = |offset, data| Placed { offset, data: Bytes::from_static(data) };
    let parts = vec![placed(3, b"check"), placed(0x0102, b"point")];
    let head = [
        &[8][..],                  // tag
        &[9, 0, 0, 0, 0, 0, 0, 0], // stripe
        &[2, 0, 0, 0],             // two parts
        &[3, 0, 0, 0, 5, 0, 0, 0], // offset, and length of the data
        &[2, 1, 0, 0, 5, 0, 0, 0], //
    ];
    assert_eq!(encode(WriteList { stripe: 9, parts }), (head.concat(), b"checkpoint".to_vec()));
    assert_eq!(form(&Reply::WriteList(Ok(5))).0, [8, 1, 5, 0, 0, 0, 0, 0, 0, 0]);
    let pieces = vec![Bytes::from_static(b"check"), Bytes::from_static(b"point")];
    let head = [7, 1, 2, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0];
    assert_eq!(form(&Reply::ReadList(Ok(pieces))), (head.to_vec(), b"checkpoint".to_vec()));
}
