//! The volume for those who watch it, over HTTP: a page for people, text for Prometheus, and JSON.
//!
//! | path | what |
//! | --- | --- |
//! | `/` | the page (`page.html`), which asks for the next two every second |
//! | `/figures.json` | all nodes as they are now |
//! | `/disks.json` | what `mdfs disk list --json` shows; `null` if the node that knows is down |
//! | `/metrics` | the same as Prometheus reads it, and what the other parts of the process count |

mod disk_metrics;
mod text;

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join};
use runtime::Context;
use runtime::http::{HttpPage, answer};
use runtime::net::Address;
use serde::Serialize;
use volume::{RunningVolume, VolumeMap, VolumeStatus, disk_list, volume_status};

use crate::disk_report::record;
use crate::exit::ServeError;

const PAGE: &str = include_str!("page.html");

/// Makes text of what a part of the process counts.
pub(crate) type MetricsSource = Box<dyn Fn() -> String + Send>;

/// The HTTP server of the status page and the metrics.
pub(crate) struct StatusServer {
    /// Port 0 lets the system choose one.
    pub(crate) address: SocketAddr,
    /// What the page says at its top.
    pub(crate) title: String,
    /// The volume as commands name it.
    pub(crate) volume: String,
    /// What others of this process count.
    pub(crate) counts: MetricsSource,
}

impl StatusServer {
    /// Serves from the node of `context`, of the volume with these disks, with the metrics of
    /// `more`; returns the address.
    pub(crate) async fn start(
        self,
        context: &Context,
        map: VolumeMap,
        more: impl Fn() -> String + 'static,
    ) -> Result<Address, ServeError> {
        let address = Address::Tcp(self.address.to_string());
        let listener = context.listen(&address).await;
        let listener = listener.map_err(|error| ServeError::Watch { address, error })?;
        let (address, asking) = (listener.address(), context.clone());
        let page = Bytes::from(PAGE.replace("{{title}}", &escaped(&self.title)));
        let counts = Rc::new(move || more() + &(self.counts)());
        let volume = self.volume;
        let pages = move |path: &str| -> LocalBoxFuture<'static, Option<HttpPage>> {
            let (context, map, counts) = (asking.clone(), map.clone(), counts.clone());
            let volume = volume.clone();
            match path {
                "/" => {
                    let page = HttpPage { kind: "text/html; charset=utf-8", body: page.clone() };
                    async move { Some(page) }.boxed_local()
                }
                "/figures.json" => {
                    async move { Some(json(&figures(&volume_status(&context, &map).await))) }
                        .boxed_local()
                }
                "/disks.json" => async move {
                    let list = disk_list(&context).await;
                    Some(json(&list.map(|list| record(volume, list))))
                }
                .boxed_local(),
                "/metrics" => async move {
                    let asked = join(volume_status(&context, &map), disk_list(&context));
                    let (status, list) = asked.await;
                    let disks = list.as_ref().map(disk_metrics::of).unwrap_or_default();
                    let counts = text::of_buffers(context.pool()) + &counts();
                    let text = text::of(&status) + &disks + &counts;
                    Some(HttpPage { kind: "text/plain; version=0.0.4", body: text.into() })
                }
                .boxed_local(),
                _ => async { None }.boxed_local(),
            }
        };
        context.task(answer(context.clone(), listener, Rc::new(pages)));
        Ok(address)
    }

    /// The same from a node of its own.
    pub(crate) fn start_in(self, running: &RunningVolume) -> Result<Address, ServeError> {
        let map = running.map().clone();
        block_on(
            running.on_application(|context| async move {
                self.start(&context, map, String::new).await
            }),
        )?
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// A file-system node; counters since it started.
#[derive(Debug, Serialize)]
struct NodeFigures {
    lines: u64,
    dirty_lines: u64,
    hits: u64,
    misses: u64,
    write_backs: u64,
}

/// A disk; counters since its node started.
#[derive(Debug, Serialize)]
struct DiskFigures {
    healthy: bool,
    /// Why the host file system below it takes no writes: full, or read-only.
    obstacle: Option<String>,
    /// Unix time in seconds; 0 if there is none.
    obstacle_since: u64,
    path: String,
    queued: u32,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    read_p99_ns: u64,
    write_p99_ns: u64,
}

#[derive(Debug, Serialize)]
struct VolumeFigures {
    /// By their numbers; null for those that are down.
    nodes: Vec<Option<NodeFigures>>,
    /// By disk node, then by disk.
    disks: Vec<Option<Vec<DiskFigures>>>,
    /// The process that has each node; null if none has it, or if there is one process only.
    node_processes: Vec<Option<u32>>,
    /// The same for each disk node.
    disk_processes: Vec<Option<u32>>,
}

fn figures(volume_status: &VolumeStatus) -> VolumeFigures {
    let nodes = volume_status.caches.iter().map(|cache| {
        cache.map(|cache| NodeFigures {
            lines: cache.lines,
            dirty_lines: cache.dirty_lines,
            hits: cache.hits,
            misses: cache.misses,
            write_backs: cache.write_backs,
        })
    });
    let disks = volume_status.disks.iter().map(|disks| {
        let disks = disks.as_ref()?.iter().map(|disk| DiskFigures {
            healthy: disk.healthy,
            obstacle: disk.obstacle.map(|obstacle| obstacle.to_string()),
            obstacle_since: disk.obstacle_since,
            path: disk.path.clone(),
            queued: disk.queued,
            reads: disk.reads,
            writes: disk.writes,
            read_bytes: disk.read_bytes,
            written_bytes: disk.written_bytes,
            read_p99_ns: disk.read_latency.p99_ns,
            write_p99_ns: disk.write_latency.p99_ns,
        });
        Some(disks.collect())
    });
    VolumeFigures {
        nodes: nodes.collect(),
        disks: disks.collect(),
        node_processes: volume_status.cache_processes.clone(),
        disk_processes: volume_status.disk_processes.clone(),
    }
}

fn json(figures: &impl Serialize) -> HttpPage {
    // Numbers, texts and lists are always JSON.
    let body = serde_json::to_vec(figures).unwrap_or_default();
    HttpPage { kind: "application/json", body: body.into() }
}
