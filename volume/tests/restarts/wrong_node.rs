//! Requests whose header names a node that does not own their key: they change nothing.

use fileio::protocol::*;
use meta::protocol as metadata;
use runtime::{NodeId, Undelivered};

use super::cluster::{Cluster, FS_NODES};

#[test]
fn a_request_at_a_node_that_does_not_own_its_key_is_refused() {
    let cluster = Cluster::new(70);
    let world = cluster.world.clone();
    world.run(async {
        let owner = NodeId::fs(1);
        let file = cluster.create(owner).await;
        cluster.write(file, 0, &[7]).await;
        cluster.commit(file).await;
        let (client, wrong) = (cluster.application(0), NodeId::fs(2));
        let (who, name) = (Credentials::root(), Name::new("x").expect("a name"));
        let refused = Err(Error::from(Undelivered::ProtocolMismatch));

        let read = Read { who: who.clone(), file, offset: 0, length: 1 };
        assert_eq!(client.spawn(wrong, read).await.map(drop), refused);
        let look = GetAttributes { file };
        assert_eq!(client.spawn(wrong, look).await.map(drop), refused);
        let write = Write {
            who: who.clone(),
            file,
            offset: 0,
            data: vec![vec![1; 4096].into()],
            durable: true,
        };
        assert_eq!(client.spawn(wrong, write).await.map(drop), refused);
        let open = OpenHandle::unjudged(CallId { client: 3, number: 1 }, file);
        assert_eq!(client.spawn(wrong, open).await.map(drop), refused);

        let home = fileio::hash::name_node(ROOT.ino, &name, FS_NODES);
        let other = NodeId::fs((home.0 + 1) % FS_NODES);
        let create = Create {
            who: who.clone(),
            call: CallId { client: 3, number: 2 },
            directory: ROOT,
            name: name.clone(),
            existing: Existing::Refuse {},
            change: Change::default(),
            durable: true,
        };
        assert_eq!(client.spawn(other, create).await.map(drop), refused);
        let lookup = Lookup { who, directory: ROOT, name: name.clone() };
        assert_eq!(client.spawn(other, lookup).await.map(drop), refused);
        assert_eq!(cluster.find(&name).await, None);
        assert_eq!(cluster.read(file, 0, 1).await, [7]);
    });
}

#[test]
fn metadata_changes_at_a_node_that_does_not_own_their_key_are_refused() {
    let cluster = Cluster::new(71);
    let world = cluster.world.clone();
    world.run(async {
        let file = cluster.create(NodeId::fs(1)).await;
        let (other_node, wrong) = (world.context(NodeId::fs(0)), NodeId::fs(2));
        let refused = Err(metadata::Error::from(Undelivered::ProtocolMismatch));
        let (ino, generation) = (file.ino, file.generation);
        let get = metadata::GetInode { ino, generation: 0 };
        assert_eq!(other_node.spawn(wrong, get).await.map(drop), refused);
        let change = metadata::InodeChange { mode: Some(0), ..Default::default() };
        let call = metadata::ChangeInode {
            ino,
            generation,
            change,
            redundancy: None,
            only_if_ctime: None,
            durable: true,
        };
        assert_eq!(other_node.spawn(wrong, call).await.map(drop), refused);
        // An intent is sent to a node that is named in no key of the request's own.
        let intent = metadata::IntentId { node: 0, number: 1 << 40 };
        let effects = vec![metadata::Effect::ChangeParts { ino, generation, change }];
        let apply = metadata::ApplyIntent { intent, effects, durable: true, position: 0 };
        assert_eq!(other_node.spawn(wrong, apply).await.map(drop), refused);
        assert_ne!(cluster.ask(GetAttributes { file }).await.mode, 0);
    });
}
