//! What the links of a client need of their host: connections, time and tasks.

use std::io;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::embedded::stream;
use runtime::net::{Address, ByteStream};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

/// The host of a client: a real one, or one of the simulator.
pub trait ClientEnvironment: 'static {
    /// Connects to a server.
    fn dial(&self, address: &Address) -> LocalBoxFuture<'static, io::Result<ByteStream>>;
    /// Resolves after `duration`.
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()>;
    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;
    /// Runs `task` beside everything else.
    fn task(&self, task: LocalBoxFuture<'static, ()>);
}

/// A thread of tokio.
pub(super) struct TokioEnvironment {
    start: Instant,
}

impl TokioEnvironment {
    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself opens sockets and runs tasks")]
impl ClientEnvironment for TokioEnvironment {
    fn dial(&self, address: &Address) -> LocalBoxFuture<'static, io::Result<ByteStream>> {
        let address = address.clone();
        async move {
            match address {
                Address::Unix(path) => {
                    let (reader, writer) = UnixStream::connect(path).await?.into_split();
                    Ok(stream(reader, writer, "local".to_owned()))
                }
                Address::Tcp(address) => {
                    let socket = TcpStream::connect(&*address).await?;
                    socket.set_nodelay(true)?;
                    let (reader, writer) = socket.into_split();
                    Ok(stream(reader, writer, address))
                }
            }
        }
        .boxed_local()
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn task(&self, task: LocalBoxFuture<'static, ()>) {
        tokio::task::spawn_local(task);
    }
}
