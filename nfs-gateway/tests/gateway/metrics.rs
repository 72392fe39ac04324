//! What is counted of requests, and how it is told.

use std::time::Duration;

use fileio::protocol::Request;
use nfs_gateway::Config;
use nfs3_types::nfs3::*;
use runtime::seed::with_seed;

use crate::kit::{Act, Stage, VOLUME, config, status};

#[test]
fn what_is_asked_is_counted() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let (client, root) = stage.run(async |mut client, root| {
            for _ in 0..3 {
                client.getattr(&root).await.unwrap();
            }
            let missing = client.lookup(&root, b"missing").await;
            assert_eq!(status(&missing), nfsstat3::NFS3ERR_NOENT);
            (client, root)
        });
        let text = stage.gateway.metrics();
        for line in [
            "mdfs_nfs_connections 1",
            "mdfs_nfs_outstanding_calls 0",
            "mdfs_nfs_requests_total{operation=\"nfs3.getattr\"} 3",
            "mdfs_nfs_failures_total{operation=\"nfs3.getattr\"} 0",
            "mdfs_nfs_failures_total{operation=\"nfs3.lookup\"} 1",
            "mdfs_nfs_requests_total{operation=\"mount3.mnt\"} 1",
            "mdfs_nfs_sent_bytes_total{operation=\"nfs3.getattr\"} 264",
            "mdfs_nfs_request_seconds_count{operation=\"nfs3.getattr\"} 3",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in {text}");
        }
        drop((client, root));
    });
}

#[test]
fn what_takes_long_is_counted_where_it_belongs() {
    with_seed(|rng| {
        let stage = Stage::with(rng, Config { slow: Duration::from_millis(5), ..config(VOLUME) });
        stage.service.rule(|request| match request {
            Request::GetAttributes(_) => Act::After(Duration::from_millis(10)),
            _ => Act::Answer,
        });
        stage.run(async |mut client, root| client.getattr(&root).await.unwrap());
        let text = stage.gateway.metrics();
        let bucket = |bound: &str, count: u32| {
            let line = format!(
                "mdfs_nfs_request_seconds_bucket{{operation=\"nfs3.getattr\",le=\"{bound}\"}} {count}"
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        };
        bucket("0.008192", 0);
        bucket("0.016384", 1);
    });
}
