//! What is counted of requests, and how it is told.

use std::time::Duration;

use bytes::BytesMut;
use fileio::protocol::Request;
use nfs_gateway::Config;
use nfs3_types::nfs3::*;
use runtime::net::Address;
use runtime::seed::with_seed;

use crate::kit::{Act, Stage, VOLUME, config, status};

/// The answer to an HTTP request at `address`.
async fn ask(stage: &Stage, address: &Address, request: &str) -> String {
    let mut stream = stage.world.connect(address).expect("it listens");
    stream.writer.write(vec![request.to_owned().into()]).await.expect("it is read");
    let mut answer = BytesMut::new();
    while stream.reader.read(&mut answer).await.unwrap_or(0) > 0 {}
    String::from_utf8(answer.to_vec()).expect("text")
}

#[test]
fn what_is_asked_is_counted_and_told_over_http() {
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
        stage.world.run(async {
            let address = Address::Tcp("gateway:9100".into());
            let address =
                stage.gateway.tell_metrics(&address, || "more 1\n".to_owned()).await.unwrap();
            let told = ask(&stage, &address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
            let (head, text) = told.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
            assert!(head.contains(&format!("Content-Length: {}", text.len())), "{head}");
            for line in [
                "more 1",
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
            let refused = ask(&stage, &address, "PUT / HTTP/1.1\r\n\r\n").await;
            assert!(refused.starts_with("HTTP/1.0 405"), "{refused}");
        });
        drop((client, root));
    });
}

#[test]
fn who_asks_for_counts_without_end_or_says_nothing_is_hung_up_on() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let address = Address::Tcp("gateway:9100".into());
        let address = stage.world.run(stage.gateway.tell_metrics(&address, String::new)).unwrap();
        let silent: Vec<_> = (0..20).map(|_| stage.world.connect(&address).unwrap()).collect();
        stage.world.run(async {
            assert_eq!(ask(&stage, &address, &"G".repeat(20_000)).await, "");
        });
        stage.world.advance(Duration::from_secs(6));
        stage.world.run(async {
            for mut stream in silent {
                let mut nothing = BytesMut::new();
                assert_eq!(stream.reader.read(&mut nothing).await.unwrap_or(0), 0);
            }
            let told = ask(&stage, &address, "GET / HTTP/1.0\r\n\r\n").await;
            assert!(told.contains("mdfs_nfs_connections"), "{told}");
        });
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
