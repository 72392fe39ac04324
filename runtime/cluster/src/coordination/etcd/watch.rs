//! A watch: one request whose answer never ends, a line of JSON for each batch of changes.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use super::http::{Http, HttpConnection};
use super::{Etcd, error_of, nonsense, number, record_in};
use crate::coordination::{
    CoordinationError as Error, CoordinationFuture, RecordChange, Version, Watch,
};

/// Bytes of one line, at most: changes of a few records.
const LINE_LENGTH_MAX: usize = 64 << 20;

/// Adds to a range from which revision on it is watched.
pub(super) fn from(mut range: Value, after: Version) -> Value {
    range["start_revision"] = (after.0 + 1).to_string().into();
    range
}

pub(super) struct EtcdWatch {
    http: Rc<Http>,
    prefix: Rc<str>,
    request: Bytes,
    open: Option<(HttpConnection, Incoming)>,
    /// Received, and not yet a line.
    rest: Vec<u8>,
    told: VecDeque<RecordChange>,
}

impl EtcdWatch {
    pub(super) fn new(http: Rc<Http>, prefix: Rc<str>, request: Bytes) -> Self {
        Self { http, prefix, request, open: None, rest: Vec::new(), told: VecDeque::new() }
    }

    async fn begin(&mut self) -> Result<(), Error> {
        let mut connection = self.http.connect().await?;
        let response = connection.send("/v3/watch", self.request.clone()).await?;
        if !response.status().is_success() {
            return Err(Error::Refused(format!("a watch is answered with {}", response.status())));
        }
        self.open = Some((connection, response.into_body()));
        Ok(())
    }

    async fn next_change(&mut self) -> Result<RecordChange, Error> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Ok(change);
            }
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.read_line(&line)?;
                continue;
            }
            match &self.open {
                None => self.begin().await?,
                // A frozen endpoint says nothing, and keeps its connections.
                Some((connection, _)) if !self.http.is_current(connection) => {
                    let told = "calls go to another endpoint now, and the watch has to";
                    return Err(Error::Unreachable(told.to_owned()));
                }
                Some(_) => {}
            }
            let Some((connection, body)) = &mut self.open else { return Err(nonsense()) };
            let piece = connection.piece(body).await?;
            let ended = || Error::Unreachable("the watch was ended by the other side".to_owned());
            self.rest.extend_from_slice(&piece.ok_or_else(ended)?);
            if self.rest.len() > LINE_LENGTH_MAX {
                return Err(nonsense());
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), Error> {
        let line: Value = serde_json::from_slice(line).map_err(|_| nonsense())?;
        let result = line.get("result").ok_or_else(|| error_of(&line))?;
        if result["canceled"] == true {
            // The changes from which it was to begin are gone, or etcd has a reason of its own.
            self.told.push_back(RecordChange::Missed {});
            return Ok(());
        }
        for event in result["events"].as_array().into_iter().flatten() {
            let entry = &event["kv"];
            let Some(key) = Etcd::decode_key(&self.prefix, &entry["key"]) else { continue };
            self.told.push_back(if event["type"] == "DELETE" {
                let version = number(&entry["mod_revision"]).map(Version);
                RecordChange::Removed { key, version: version.ok_or_else(nonsense)? }
            } else {
                RecordChange::Put { key, record: record_in(entry)? }
            });
        }
        Ok(())
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> CoordinationFuture<'_, RecordChange> {
        self.next_change().boxed_local()
    }
}
