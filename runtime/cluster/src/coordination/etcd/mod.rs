//! etcd, the engine of a cluster, by the JSON gateway that each of its servers has beside gRPC
//! (etcd documentation, "gRPC gateway", version 3.4). ADR 36 says why not by gRPC.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | calls as JSON |
//! | `http.rs` | connections |
//! | `watch.rs` | a stream of changes |
//!
//! A [`Version`] is a revision of etcd's store, so it grows by what others keep there, too. Use it
//! from one thread that has tokio's timers and sockets.

mod http;
mod watch;

use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::FutureExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{
    Coordination, CoordinationError as Error, CoordinationFuture, Expect, LeaseId, Listing, Record,
    Version, Watch, WriteOutcome, check_lengths,
};
use http::Http;
use watch::EtcdWatch;

/// Where etcd is.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each server.
    pub endpoints: Vec<String>,
    /// Before all keys, such as `mdfs/VOLUME/`: several volumes share one etcd.
    pub prefix: String,
    /// For https.
    pub tls: Option<Tls>,
}

/// Certificates, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// Who may vouch for etcd's servers.
    pub authorities_pem: Vec<u8>,
    /// Our own certificate, with those between it and its authority, and its key.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is secret.
        f.debug_struct("Tls")
            .field("with_identity", &self.identity_pem.is_some())
            .finish_non_exhaustive()
    }
}

/// A client of etcd. Clones share its connections.
#[derive(Clone)]
pub struct Etcd {
    http: Rc<Http>,
    prefix: Rc<str>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Etcd {
    /// A client; it connects when it is first asked.
    pub fn new(config: &EtcdConfig) -> Result<Self, Error> {
        let http = Rc::new(Http::new(config)?);
        Ok(Self { http, prefix: config.prefix.as_str().into() })
    }

    fn encode_key(&self, key: &str) -> String {
        BASE64.encode(format!("{}{key}", self.prefix))
    }

    /// From a key of etcd to one of ours; `None` if it is not.
    fn decode_key(prefix: &str, key: &Value) -> Option<String> {
        let key = String::from_utf8(BASE64.decode(key.as_str()?).ok()?).ok()?;
        key.strip_prefix(prefix).map(str::to_owned)
    }

    /// What is compared, for a change to be done.
    fn compare(&self, key: &str, expect: Expect) -> Vec<Value> {
        let revision = match expect {
            Expect::Any {} => return Vec::new(),
            // What is not there has revision 0.
            Expect::Absent {} => 0,
            Expect::Unchanged { since } => since.0,
        };
        vec![json!({
            "key": self.encode_key(key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": revision.to_string(),
        })]
    }

    async fn change(
        &self,
        key: &str,
        expect: Expect,
        change: Value,
    ) -> Result<WriteOutcome, Error> {
        let transaction = json!({
            "compare": self.compare(key, expect),
            "success": [change],
            "failure": [{ "request_range": { "key": self.encode_key(key) } }],
        });
        let answer = self.call("/v3/kv/txn", &transaction).await?;
        if answer["succeeded"] == true {
            return Ok(WriteOutcome::Done { version: revision_of(&answer)? });
        }
        let kvs = &answer["responses"][0]["response_range"]["kvs"];
        let found = kvs.get(0).map(record_in).transpose()?;
        Ok(WriteOutcome::Differs { found })
    }

    /// All of a prefix: from it to the first key that does not begin so.
    fn range(&self, prefix: &str) -> Value {
        let whole = format!("{}{prefix}", self.prefix);
        // Bytes of UTF-8 are below 0xff; after an empty prefix come all keys.
        let mut end = whole.clone().into_bytes();
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end.push(0),
        }
        let begin = if whole.is_empty() { vec![0] } else { whole.into_bytes() };
        json!({ "key": BASE64.encode(begin), "range_end": BASE64.encode(end) })
    }

    /// A call that changes nothing: one that may have reached etcd has done no harm.
    async fn read(&self, key_range: &Value) -> Result<Value, Error> {
        self.call_hedged("/v3/kv/range", key_range).await.map_err(|error| match error {
            Error::Unknown(what) => Error::Unreachable(what),
            error => error,
        })
    }

    async fn call(&self, path: &str, request: &Value) -> Result<Value, Error> {
        let answer = self.http.call(path, Bytes::from(request.to_string())).await?;
        Self::read_answer(answer)
    }

    /// A call that does no harm if it is done twice.
    async fn call_hedged(&self, path: &str, request: &Value) -> Result<Value, Error> {
        let answer = self.http.call_hedged(path, Bytes::from(request.to_string())).await?;
        Self::read_answer(answer)
    }

    fn read_answer((status, body): (StatusCode, Bytes)) -> Result<Value, Error> {
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        match answer {
            Some(answer) if status.is_success() && answer.get("error").is_none() => Ok(answer),
            Some(answer) => Err(error_of(&answer)),
            None => Err(Error::Unknown(format!("{status}, and no JSON"))),
        }
    }

    async fn list_now(&self, prefix: &str) -> Result<Listing, Error> {
        let answer = self.read(&self.range(prefix)).await?;
        let mut records = Vec::new();
        for entry in answer["kvs"].as_array().into_iter().flatten() {
            if let Some(key) = Self::decode_key(&self.prefix, &entry["key"]) {
                records.push((key, record_in(entry)?));
            }
        }
        Ok(Listing { version: revision_of(&answer)?, records })
    }

    async fn grant_now(&self, length: Duration) -> Result<LeaseId, Error> {
        let seconds = length.as_secs() + u64::from(length.subsec_nanos() > 0);
        let answer = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        number(&answer["ID"]).map(LeaseId).ok_or_else(nonsense)
    }

    async fn keep_alive_now(&self, lease: LeaseId) -> Result<(), Error> {
        let request = json!({ "ID": lease.0.to_string() });
        let answer = self.call_hedged("/v3/lease/keepalive", &request).await?;
        match number(&answer["result"]["TTL"]) {
            // JSON leaves out zeros: a lease that is over has no time to live.
            None | Some(0) => Err(Error::LeaseOver),
            Some(_) => Ok(()),
        }
    }

    async fn revoke_now(&self, lease: LeaseId) -> Result<(), Error> {
        match self.call("/v3/lease/revoke", &json!({ "ID": lease.0.to_string() })).await {
            Ok(_) | Err(Error::LeaseOver) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn nonsense() -> Error {
    Error::Unknown("the answer is not that of an etcd of version 3.4 or later".to_owned())
}

/// Numbers of 64 bits are texts in etcd's JSON.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

fn revision_of(answer: &Value) -> Result<Version, Error> {
    number(&answer["header"]["revision"]).map(Version).ok_or_else(nonsense)
}

fn record_in(entry: &Value) -> Result<Record, Error> {
    // An empty value is left out.
    let value = entry["value"].as_str().unwrap_or_default();
    let value = BASE64.decode(value).map_err(|_| nonsense())?;
    let version = number(&entry["mod_revision"]).map(Version).ok_or_else(nonsense)?;
    Ok(Record { value, version })
}

/// What a refusal means, by the code of gRPC (its documentation, "Status codes").
fn error_of(answer: &Value) -> Error {
    let inner = if answer["error"].is_object() { &answer["error"] } else { answer };
    let message =
        inner["message"].as_str().or(inner["error"].as_str()).unwrap_or("no reason given");
    let code = number(&inner["code"]).or(number(&inner["grpc_code"]));
    match code {
        Some(5) if message.contains("lease") => Error::LeaseOver,
        // Wrong argument, not found, exists, not allowed, exhausted, precondition, range,
        // unauthenticated.
        Some(3 | 5..=9 | 11 | 16) => Error::Refused(message.to_owned()),
        // Among them: no leader, timed out. It may have been proposed.
        _ => Error::Unknown(message.to_owned()),
    }
}

impl Coordination for Etcd {
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>> {
        async move {
            let answer = self.read(&json!({ "key": self.encode_key(key) })).await?;
            answer["kvs"].get(0).map(record_in).transpose()
        }
        .boxed_local()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing> {
        self.list_now(prefix).boxed_local()
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome> {
        async move {
            check_lengths(key, value)?;
            let lease = lease.map_or(0, |lease| lease.0).to_string();
            let (encoded, value) = (self.encode_key(key), BASE64.encode(value));
            let put = json!({ "request_put": { "key": encoded, "value": value, "lease": lease } });
            self.change(key, expect, put).await
        }
        .boxed_local()
    }

    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome> {
        let delete = json!({ "request_delete_range": { "key": self.encode_key(key) } });
        self.change(key, expect, delete).boxed_local()
    }

    fn grant(&self, length: Duration) -> CoordinationFuture<'_, LeaseId> {
        self.grant_now(length).boxed_local()
    }

    fn keep_alive(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        self.keep_alive_now(lease).boxed_local()
    }

    fn revoke(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        self.revoke_now(lease).boxed_local()
    }

    fn watch(&self, prefix: &str, after: Version) -> Box<dyn Watch> {
        let create = json!({ "create_request": watch::from(self.range(prefix), after) });
        let request = Bytes::from(create.to_string());
        Box::new(EtcdWatch::new(self.http.clone(), self.prefix.clone(), request))
    }
}
