//! A few pages over HTTP, for those who watch: each connection is one GET, its answer, and the end.
//!
//! No more of HTTP/1.0 (RFC 1945) than that, since nothing here is ever sent to the machine.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::{LocalBoxFuture, select};

use crate::Context;
use crate::net::{ByteStream, Listener};

/// Requests that are answered at a time, at most; further ones are hung up on.
const REQUESTS_MAX: usize = 8;
/// Bytes of a request, at most.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time limit for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a stream could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is found at a path.
#[derive(Clone, Debug)]
pub struct HttpPage {
    /// Its media type, as `text/plain`.
    pub kind: &'static str,
    /// Its content.
    pub body: Bytes,
}

/// Finds what is at a path, as `/metrics`; `None` if nothing is.
pub type HttpPages = dyn Fn(&str) -> LocalBoxFuture<'static, Option<HttpPage>>;

/// Answers all connections to `listener`, as long as the machine lives. There is no authentication.
pub async fn answer(context: Context, mut listener: Box<dyn Listener>, pages: Rc<HttpPages>) {
    let running = Rc::new(Cell::new(0));
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of HTTP");
                context.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if running.get() >= REQUESTS_MAX {
            continue;
        }
        running.set(running.get() + 1);
        let (patience, pages, running) = (context.sleep(PATIENCE), pages.clone(), running.clone());
        context.task(async move {
            select(pin!(answer_one(stream, &*pages)), pin!(patience)).await;
            running.set(running.get() - 1);
        });
    }
}

async fn answer_one(mut stream: ByteStream, pages: &HttpPages) {
    let mut request = BytesMut::with_capacity(1 << 10);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let is_long = request.len() > REQUEST_BYTES_MAX;
        if is_long || !matches!(stream.reader.read(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let plain = |text: &'static str| HttpPage { kind: "text/plain", body: text.into() };
    let (status, page) = match path(&request) {
        None => ("405 Method Not Allowed", plain("only GET\n")),
        Some(path) => match pages(path).await {
            Some(page) => ("200 OK", page),
            None => ("404 Not Found", plain("nothing is here; look at /\n")),
        },
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
        page.kind,
        page.body.len()
    );
    // A client that has hung up does not want it.
    let _ = stream.writer.write(vec![head.into(), page.body]).await;
}

/// The path of a GET, without what comes after a `?`.
fn path(request: &[u8]) -> Option<&str> {
    let target = request.strip_prefix(b"GET ")?.split(|byte| b" ?\r".contains(byte)).next()?;
    std::str::from_utf8(target).ok()
}
