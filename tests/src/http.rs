//! A page over HTTP, as a browser asks for it.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test of whole processes uses the host, and panics where it fails"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// The head and the body of the page at `path`.
pub fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}
