//! What an open grants, and what it does not.

use fileio::protocol::*;

use super::cluster::Cluster;

#[test]
fn who_may_only_search_a_directory_cannot_list_it() {
    let cluster = Cluster::new(80);
    let world = cluster.world.clone();
    world.run(async {
        let root = Credentials::root();
        let user = Credentials { uid: 7, gid: 7, groups: Vec::new() };
        let name = Name::new("d").expect("a name");
        let change = Change { mode: Some(0o711), ..Change::default() };
        let made = cluster
            .ask(MakeNode {
                who: root,
                call: CallId { client: 3, number: 1 },
                directory: ROOT,
                name,
                node: NewNode::Directory {},
                change,
                durable: false,
            })
            .await;
        let directory = Handle { ino: made.ino, generation: made.generation };
        let list = ReadDirectory {
            who: user.clone(),
            directory,
            after: 0,
            count_max: 10,
            attributes: false,
        };
        assert_eq!(cluster.ask_for(list.clone()).await.map(drop), Err(Error::AccessDenied {}));
        for (number, access) in [(2, access::EXECUTE), (3, access::EXECUTE | access::WRITE)] {
            let call = CallId { client: 3, number };
            let open = OpenHandle { who: user.clone(), call, file: directory, access };
            // Refused or not: it is no open to list it.
            let _ = cluster.ask_for(open).await;
        }
        assert_eq!(cluster.ask_for(list).await.map(drop), Err(Error::AccessDenied {}));
    });
}
