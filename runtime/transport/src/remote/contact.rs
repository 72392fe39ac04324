//! How a connection to a server is made, protected and greeted.

use std::io;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Either, LocalBoxFuture, select};
use runtime::net::{Address, ByteStream, StreamWriter};
use runtime::wire::{Malformed, from_bytes};

use super::{ClientEnvironment, ClientOptions, ClientSecurity};
use crate::frame::{
    ClientHello, ClientRefusal, FrameReader, SubtreeWelcome, Welcome, garbled, kind,
};

/// Time limit for a connection to be made, protected and greeted.
const CONTACT_TIME_MAX: Duration = Duration::from_secs(3);

/// A connection on which the client was let in.
pub(super) struct Contact {
    pub(super) frames: FrameReader,
    pub(super) writer: Box<dyn StreamWriter>,
    pub(super) welcome: Welcome,
    /// Where the client begins, if it is limited to a subtree.
    pub(super) root: Option<(u64, u64)>,
}

/// Connects to `address` as link `link` of `session`; `process` must be there, if it is given. The
/// error is `PermissionDenied` if the server will not let this client in, now or later.
pub(super) async fn contact(
    environment: &dyn ClientEnvironment,
    address: &Address,
    options: &ClientOptions,
    (session, link): (u128, u64),
    process: Option<u32>,
) -> io::Result<Contact> {
    let security = options.security.renewed();
    let hello = ClientHello {
        volume: options.volume.clone(),
        session,
        link,
        token: security.token(),
        program: options.program.clone(),
    };
    let dialling = environment.dial(address);
    let making = greet(dialling, &security, hello, process).boxed_local();
    match select(making, environment.sleep(CONTACT_TIME_MAX)).await {
        Either::Left((made, _)) => made,
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn greet(
    dialling: LocalBoxFuture<'static, io::Result<ByteStream>>,
    security: &ClientSecurity,
    hello: ClientHello,
    process: Option<u32>,
) -> io::Result<Contact> {
    let (stream, proven) = security.protect(dialling.await?).await?;
    let ByteStream { reader, mut writer, .. } = stream;
    writer.write(hello.frame()).await?;
    let mut frames = FrameReader::new(reader);
    let first = frames.next().await?.ok_or(io::ErrorKind::ConnectionReset)?;
    match first.header.kind {
        kind::WELCOME => {
            let (welcome, root) = read_welcome(&first.head).map_err(garbled)?;
            let is_other = |number: Option<u32>| number.is_some_and(|it| it != welcome.process);
            if is_other(process) || is_other(proven) {
                let text = "another process answers there than the node map says";
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
            }
            Ok(Contact { frames, writer, welcome, root })
        }
        kind::REFUSAL => {
            let refusal: ClientRefusal = from_bytes(&first.head).map_err(garbled)?;
            let is_final = refusal.is_final;
            let kind = if is_final {
                io::ErrorKind::PermissionDenied
            } else {
                io::ErrorKind::ResourceBusy
            };
            Err(io::Error::new(kind, refusal.why))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A welcome, and where a client of a subtree begins.
fn read_welcome(head: &[u8]) -> Result<(Welcome, Option<(u64, u64)>), Malformed> {
    if let Ok(SubtreeWelcome { welcome, ino, generation }) = from_bytes(head) {
        return Ok((welcome, Some((ino, generation))));
    }
    Ok((from_bytes(head)?, None))
}

impl ClientSecurity {
    /// With the token or certificate that its file holds now: a mount outlives those that it began
    /// with. A file that cannot be read changes nothing.
    fn renewed(&self) -> Self {
        match self {
            Self::None => Self::None,
            #[cfg(feature = "tls")]
            Self::Tls(keys) => Self::Tls(keys.reread().map_or_else(|_| keys.clone(), Arc::new)),
        }
    }

    /// What is shown to the server; it is sent over protected connections only.
    fn token(&self) -> Vec<u8> {
        match self {
            Self::None => Vec::new(),
            #[cfg(feature = "tls")]
            Self::Tls(keys) => keys.token().unwrap_or_default().to_vec(),
        }
    }

    /// Protects a connection to a process of the volume; gives the number that the process has
    /// proved, if it has.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_async, reason = "with tls it waits"))]
    async fn protect(&self, stream: ByteStream) -> io::Result<(ByteStream, Option<u32>)> {
        match self {
            Self::None => Ok((stream, None)),
            #[cfg(feature = "tls")]
            Self::Tls(keys) => {
                let (stream, process) = keys.connect(stream, None).await?;
                Ok((stream, Some(process)))
            }
        }
    }
}
