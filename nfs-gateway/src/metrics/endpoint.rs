//! The counts over HTTP, for whoever collects them: any request gets the text, and then the end.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use futures::future::{Either, select};
use runtime::Context;
use runtime::net::{Listener, Stream};

use crate::signal::Signal;

/// Requests that are answered at a time, at most; further ones are hung up on.
const REQUESTS_MAX: usize = 8;
/// Bytes of a request, at most.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// A request and its answer take so long, at most.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a stream could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers who connects to `listener` with what `text` makes, until `stopping`.
pub(crate) async fn answer(
    ctx: Context,
    mut listener: Box<dyn Listener>,
    stopping: Rc<Signal>,
    text: Rc<dyn Fn() -> String>,
) {
    let mut stopped = pin!(stopping.wait());
    let running = Rc::new(Cell::new(0));
    loop {
        let stream = match select(listener.accept(), &mut stopped).await {
            Either::Left((Ok(stream), _)) => stream,
            Either::Left((Err(error), _)) => {
                tracing::warn!(target: "mdfs::nfs", "cannot accept a request for metrics: {error}");
                ctx.sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Either::Right(_) => return,
        };
        if running.get() >= REQUESTS_MAX {
            continue;
        }
        running.set(running.get() + 1);
        let (patience, text, running) = (ctx.sleep(PATIENCE), text.clone(), running.clone());
        ctx.task(async move {
            select(pin!(answer_one(stream, &*text)), patience).await;
            running.set(running.get() - 1);
        });
    }
}

async fn answer_one(mut stream: Stream, text: &dyn Fn() -> String) {
    let mut request = BytesMut::with_capacity(1 << 10);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let is_long = request.len() > REQUEST_BYTES_MAX;
        if is_long || !matches!(stream.reader.read(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let (status, body) = if request.starts_with(b"GET ") {
        ("200 OK", text())
    } else {
        ("405 Method Not Allowed", "only GET\n".to_owned())
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // Whoever has hung up does not want it.
    let _ = stream.writer.write(vec![head.into(), body.into()]).await;
}
