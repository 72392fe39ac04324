//! Pages over HTTP.

use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt as _;
use machine_emu::{World, WorldShape};
use runtime::NodeId;
use runtime::http::{HttpPage, answer};
use runtime::net::Address;

fn address() -> Address {
    Address::Tcp("localhost:9100".into())
}

/// A world in which `/here` has a page.
fn world() -> World {
    let world = World::new(1, WorldShape { fs_nodes: 1, disk_nodes: 0 });
    let context = world.context(NodeId::fs(0));
    let serving = context.clone();
    context.task(async move {
        let listener = serving.listen(&address()).await.unwrap();
        let here = |path: &str| {
            let page = HttpPage { kind: "text/plain", body: "found\n".into() };
            let found = (path == "/here").then_some(page);
            async move { found }.boxed_local()
        };
        answer(serving, listener, Rc::new(here)).await;
    });
    world.advance(Duration::from_micros(1));
    world
}

async fn ask(world: &World, request: &str) -> String {
    let mut stream = world.connect(&address()).unwrap();
    stream.writer.write(vec![request.to_owned().into()]).await.unwrap();
    let mut answer = BytesMut::new();
    while stream.reader.read(&mut answer).await.unwrap_or(0) > 0 {}
    String::from_utf8(answer.to_vec()).unwrap()
}

#[test]
fn a_page_is_found_by_its_path() {
    let world = world();
    world.run(async {
        let answer = ask(&world, "GET /here?now HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n"), "{head}");
        assert!(head.contains("Content-Length: 6\r\n"), "{head}");
        assert_eq!(body, "found\n");
        let answer = ask(&world, "GET /elsewhere HTTP/1.0\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");
        let answer = ask(&world, "PUT /here HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.0 405"), "{answer}");
    });
}

#[test]
fn who_asks_without_end_or_says_nothing_is_hung_up_on() {
    let world = world();
    let silent: Vec<_> = (0..20).map(|_| world.connect(&address()).unwrap()).collect();
    world.run(async {
        assert_eq!(ask(&world, &"G".repeat(20_000)).await, "");
    });
    world.advance(Duration::from_secs(6));
    world.run(async {
        for mut stream in silent {
            let mut nothing = BytesMut::new();
            assert_eq!(stream.reader.read(&mut nothing).await.unwrap_or(0), 0);
        }
        let answer = ask(&world, "GET /here HTTP/1.0\r\n\r\n").await;
        assert!(answer.ends_with("found\n"), "{answer}");
    });
}
