//! One of three processes that reach each other.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::executor::block_on;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::Address;
use runtime::{Epoch, NodeId, Undelivered, VolumeId};

use transport::{Guard, LocalProcess, ProcessAddress, Router, Routes};

use crate::support::{self, echo};

pub const NODES: u32 = 9;
pub const VOLUME: VolumeId = VolumeId(77);
/// Processes.
pub const OF: u32 = 3;

/// One process: hosts each node whose number leaves its own as a rest.
pub struct Member {
    pub machine: Embedded,
    router: Arc<Router>,
    pub process: Arc<ProcessAddress>,
    pub guard: Arc<Guard>,
}

impl Member {
    pub fn start(number: u32, incarnation: u64, volume: VolumeId, guard: Arc<Guard>) -> Self {
        let config = Config {
            threads: 2,
            fs_nodes: NODES,
            disk_nodes: 1,
            epoch: Epoch(1),
            pool_bytes: 1 << 20,
            disk_access: DiskAccess::Best,
        };
        let router = Arc::<Router>::default();
        let machine = Embedded::start_part(config, number, Some(router.clone())).unwrap();
        for node in (0..NODES).filter(|node| node % OF == number).map(NodeId::fs) {
            machine.start_node(node);
            block_on(machine.on_node(node, support::serve)).unwrap();
        }
        let gate = machine.application();
        let guarded = guard.clone();
        let listening = machine.on_node(gate, move |context| async move {
            let listener = context.listen(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
            let address = listener.address().to_string();
            let incarnation = AtomicU64::new(incarnation);
            let me = Arc::new(LocalProcess { volume, number, incarnation, guard: guarded });
            let serving = context.clone();
            context.task(async move {
                transport::serve_processes::<support::echo::Echo>(serving, listener, me, None)
                    .await;
            });
            address
        });
        let address = block_on(listening).unwrap();
        let process = Arc::new(ProcessAddress { number, incarnation, address });
        Self { machine, router, process, guard }
    }

    /// Tells it where all nodes are.
    pub fn meet(&self, epoch: u64, others: &[&Arc<ProcessAddress>]) {
        let hosts = (0..NODES).filter_map(|node| {
            let host = others.iter().find(|other| node % OF == other.number)?;
            Some((NodeId::fs(node), Arc::clone(host)))
        });
        let (me, guard) = (ProcessAddress::clone(&self.process), self.guard.clone());
        let living = others.iter().copied().cloned().collect();
        self.router.set(Routes::new(VOLUME, Epoch(epoch), me, guard, living, hosts));
        self.machine.begin_epoch(Epoch(epoch));
    }

    pub fn say(&self, to: u32, hops: u32) -> Result<u32, Undelivered> {
        let call = echo::Say { text: Bytes::from_static(b"a word"), hops };
        let (text, node) = block_on(self.machine.client_handle().spawn(NodeId::fs(to), call))?;
        assert_eq!(&text[..], b"a word");
        Ok(node)
    }

    /// The same, once it has learnt what it was told.
    pub fn say_until<T>(
        &self,
        to: u32,
        is_it: impl Fn(Result<u32, Undelivered>) -> Option<T>,
    ) -> T {
        let begin = Instant::now();
        loop {
            let answer = self.say(to, 0);
            if let Some(it) = is_it(answer) {
                return it;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "still {answer:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Processes that know each other and protect nothing.
pub fn three() -> [Member; 3] {
    three_with(|_| Arc::default())
}

/// Processes that know each other, each with its guard.
pub fn three_with(guard: impl Fn(u32) -> Arc<Guard>) -> [Member; 3] {
    let members = [0, 1, 2].map(|number| Member::start(number, 1, VOLUME, guard(number)));
    let all = [&members[0].process, &members[1].process, &members[2].process];
    for member in &members {
        member.meet(1, &all);
    }
    members
}
