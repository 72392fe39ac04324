//! Requests to etcd's JSON gateway: HTTP/1.1, one at a time on each connection, with or without
//! TLS.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, LocalBoxFuture, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{EtcdConfig, Tls};
use crate::coordination::CoordinationError as Error;

/// Connections that are kept for the next request, at most.
const IDLE_MAX: usize = 4;
/// Time limit for connecting to one endpoint, TLS included.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
/// Time limit for one request. A caller with a shorter limit drops the call earlier.
const CALL_TIME_MAX: Duration = Duration::from_secs(5);
/// A call that may be done twice goes to the next endpoint, too, if there is no answer after this.
const HEDGE_AFTER: Duration = Duration::from_millis(150);
/// Endpoints that one call waits for at a time, at most.
const HEDGED_MAX: usize = 2;
/// Bytes of one answer, at most: a list of a thousand members and a map fit a hundred times.
const ANSWER_LENGTH_MAX: usize = 64 << 20;

/// A byte stream of either kind.
trait EtcdSocket: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> EtcdSocket for S {}

/// Where etcd is, and connections to it.
pub(super) struct Http {
    endpoints: Vec<Endpoint>,
    tls: Option<TlsConnector>,
    /// The endpoint that answered last, or the next one if it failed since.
    current: Cell<usize>,
    idle: RefCell<Vec<HttpConnection>>,
}

#[derive(Clone, Debug)]
struct Endpoint {
    /// Host and port.
    authority: String,
    /// The name in its certificate.
    name: String,
    secure: bool,
}

impl Endpoint {
    fn parse(url: &str) -> Result<Self, Error> {
        let bad = || {
            let told =
                format!("{url:?} is no endpoint; write http://HOST:PORT or https://HOST:PORT");
            Error::Refused(told)
        };
        let (scheme, authority) = url.split_once("://").ok_or_else(bad)?;
        let authority = authority.trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
        let secure = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(bad()),
        };
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        let name = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { authority: authority.to_owned(), name, secure })
    }
}

fn connector(tls: &Tls) -> Result<TlsConnector, Error> {
    let bad = |what: &str, error: &dyn std::fmt::Display| {
        Error::Refused(format!("the {what} cannot be used: {error}"))
    };
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&tls.authorities_pem) {
        let authority = authority.map_err(|error| bad("file of authorities", &error))?;
        roots.add(authority).map_err(|error| bad("file of authorities", &error))?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match &tls.identity_pem {
        None => config.with_no_client_auth(),
        Some((certificates, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
            let chain = chain.map_err(|error| bad("own certificate", &error))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad("own key", &error))?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| bad("own certificate with its key", &error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[allow(clippy::disallowed_methods, reason = "an engine of the machine has its timers")]
async fn within<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(limit, work).await.ok()
}

impl Http {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, Error> {
        let endpoints = config.endpoints.iter().map(|url| Endpoint::parse(url));
        let endpoints: Vec<Endpoint> = endpoints.collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::Refused("no endpoint of etcd is named".to_owned()));
        }
        let secure = endpoints.iter().any(|endpoint| endpoint.secure);
        let tls = match &config.tls {
            Some(tls) => Some(connector(tls)?),
            None if secure => {
                let told = "an https endpoint needs the certificates of its authorities";
                return Err(Error::Refused(told.to_owned()));
            }
            None => None,
        };
        Ok(Self { endpoints, tls, current: Cell::new(0), idle: RefCell::default() })
    }

    #[allow(clippy::disallowed_methods, reason = "an engine of the machine has its sockets")]
    async fn connect_to(&self, index: usize) -> Result<HttpConnection, String> {
        let endpoint = &self.endpoints[index];
        let tcp =
            TcpStream::connect(&endpoint.authority).await.map_err(|error| error.to_string())?;
        // Small requests, each waited for.
        tcp.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream: Box<dyn EtcdSocket> = match &self.tls {
            Some(connector) if endpoint.secure => {
                let name = ServerName::try_from(endpoint.name.clone());
                let name = name.map_err(|error| error.to_string())?;
                let secured = connector.connect(name, tcp).await;
                Box::new(secured.map_err(|error| error.to_string())?)
            }
            _ => Box::new(tcp),
        };
        let made = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| error.to_string())?;
        let work = connection.map(|_| ()).boxed_local();
        let authority = endpoint.authority.clone();
        Ok(HttpConnection { sender, work: Some(work), authority, endpoint: index })
    }

    fn next_after(&self, index: usize) -> usize {
        (index + 1) % self.endpoints.len()
    }

    /// The next call tries another endpoint first.
    fn avoid(&self, index: usize) {
        self.idle.borrow_mut().retain(|connection| connection.endpoint != index);
        if self.current.get() == index {
            self.current.set(self.next_after(index));
        }
    }

    /// Is a connection to the endpoint that calls go to?
    pub(super) fn is_current(&self, connection: &HttpConnection) -> bool {
        connection.endpoint == self.current.get()
    }

    async fn connect_within(&self, index: usize) -> Result<HttpConnection, Error> {
        let trial = EndpointTrial { http: self, index, answered: false };
        let endpoint = &self.endpoints[index];
        let told = match within(CONNECT_TIME_MAX, self.connect_to(index)).await {
            Some(Ok(connection)) => {
                trial.answered();
                return Ok(connection);
            }
            Some(Err(error)) => error,
            None => "no answer".to_owned(),
        };
        Err(Error::Unreachable(format!("{}: {told}", endpoint.authority)))
    }

    /// A connection to the endpoint that answered last, or to the next one that can be reached.
    pub(super) async fn connect(&self) -> Result<HttpConnection, Error> {
        let (first, mut troubles) = (self.current.get(), Vec::new());
        for offset in 0..self.endpoints.len() {
            match self.connect_within((first + offset) % self.endpoints.len()).await {
                Ok(connection) => {
                    self.current.set(connection.endpoint);
                    return Ok(connection);
                }
                Err(Error::Unreachable(told)) => troubles.push(told),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unreachable(troubles.join("; ")))
    }

    /// A connection to an endpoint that was kept and still stands.
    fn kept(&self, index: usize) -> Option<HttpConnection> {
        loop {
            let mut idle = self.idle.borrow_mut();
            let at = idle.iter().position(|connection| connection.endpoint == index)?;
            let mut connection = idle.swap_remove(at);
            drop(idle);
            if connection.stands() {
                return Some(connection);
            }
        }
    }

    /// Sends `body` to `path`; the answer, whether good or bad. `Unknown` once the request may have
    /// reached etcd. A call that fails, or is dropped before its answer, makes the next call try
    /// another endpoint: connecting to one that is frozen succeeds.
    pub(super) async fn call(&self, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), Error> {
        let connection = match self.kept(self.current.get()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        self.exchange(connection, path, body).await
    }

    async fn exchange(
        &self,
        mut connection: HttpConnection,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let trial = EndpointTrial { http: self, index: connection.endpoint, answered: false };
        let exchange = async {
            let response = connection.send(path, body).await?;
            let status = response.status();
            Ok((status, connection.whole(response.into_body()).await?))
        };
        let answer = within(CALL_TIME_MAX, exchange).await;
        let answer = answer.unwrap_or_else(|| Err(Error::Unknown("no answer".to_owned())));
        // One without a leader answers, too.
        if answer.as_ref().is_ok_and(|(status, _)| !status.is_server_error()) {
            trial.answered();
            if self.idle.borrow().len() < IDLE_MAX {
                self.idle.borrow_mut().push(connection);
            }
        }
        answer
    }

    /// The same for a request that may be done twice: it goes to a second endpoint if the first one
    /// fails or is slow, and the first good answer counts.
    pub(super) async fn call_hedged(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let (first, mut running) = (self.current.get(), FuturesUnordered::new());
        let mut untried = (0..self.endpoints.len()).map(|at| (first + at) % self.endpoints.len());
        let mut last = Err(Error::Unreachable("no endpoint".to_owned()));
        loop {
            let next = if running.len() < HEDGED_MAX { untried.next() } else { None };
            let can_wait = next.is_some();
            if let Some(index) = next {
                let body = body.clone();
                running.push(async move {
                    let connection = match self.kept(index) {
                        Some(connection) => connection,
                        None => self.connect_within(index).await?,
                    };
                    self.exchange(connection, path, body).await
                });
            }
            let answer = if can_wait {
                let Some(answer) = within(HEDGE_AFTER, running.next()).await else { continue };
                answer
            } else {
                running.next().await
            };
            match answer {
                Some(Ok((status, body))) if !status.is_server_error() => return Ok((status, body)),
                Some(answer) => last = answer,
                None => return last,
            }
        }
    }
}

/// A trial of an endpoint. Dropped before an answer, it makes calls avoid the endpoint.
struct EndpointTrial<'a> {
    http: &'a Http,
    index: usize,
    answered: bool,
}

impl EndpointTrial<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for EndpointTrial<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.http.avoid(self.index);
        }
    }
}

/// One connection, and the task that drives it: a caller that waits for an answer polls it.
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    work: Option<LocalBoxFuture<'static, ()>>,
    authority: String,
    /// Which of the endpoints.
    endpoint: usize,
}

/// Waits for `wanted` and does the work of its connection meanwhile.
async fn drive<F: Future + Unpin>(
    work: &mut Option<LocalBoxFuture<'static, ()>>,
    wanted: F,
) -> F::Output {
    let Some(working) = work else { return wanted.await };
    match select(wanted, working).await {
        Either::Left((output, _)) => output,
        Either::Right(((), wanted)) => {
            *work = None;
            wanted.await
        }
    }
}

impl HttpConnection {
    /// The other side has not closed it.
    fn stands(&mut self) -> bool {
        let closed = self.work.as_mut().is_none_or(|work| work.now_or_never().is_some());
        !closed && !self.sender.is_closed()
    }

    /// Sends a request; the head of its answer.
    pub(super) async fn send(
        &mut self,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Error::Refused(error.to_string()))?;
        let ready = Pin::from(Box::new(self.sender.ready()));
        let ready = drive(&mut self.work, ready).await;
        ready.map_err(|error| Error::Unreachable(error.to_string()))?;
        let answer = Pin::from(Box::new(self.sender.send_request(request)));
        let answer = drive(&mut self.work, answer).await;
        answer.map_err(|error| {
            // Cancelled: it never left.
            let told = if error.is_canceled() { Error::Unreachable } else { Error::Unknown };
            told(error.to_string())
        })
    }

    /// The next piece of an answer, `None` at its end.
    pub(super) async fn piece(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        loop {
            match drive(&mut self.work, body.frame()).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::Unknown(error.to_string())),
                // Trailers say nothing.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    async fn whole(&mut self, mut body: Incoming) -> Result<Bytes, Error> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(&mut body).await? {
            if whole.len() + piece.len() > ANSWER_LENGTH_MAX {
                return Err(Error::Unknown("the answer is too long".to_owned()));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }
}
