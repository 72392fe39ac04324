//! Groups that the host of the gateway knows, where an export says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use nfs_gateway::{Config, GroupLookup, Settings};
use nfs3_types::nfs3::nfsstat3::*;
use nfs3_types::nfs3::*;
use runtime::seed::with_seed;

use crate::kit::{Client, Stage, VOLUME, config, mode};

/// A user in a hundred groups, one that is unknown, and one whose look-up never ends.
const IN_MANY: u32 = 500;
const UNKNOWN: u32 = 501;
const HANGING: u32 = 502;
const LAST_GROUP: u32 = 1_099;

const TABLE: &str = r#"
[[export]]
path = "/"
[[export.client]]
network = "10.0.0.0/24"
access = "rw"
squash = "no_root_squash"
manage_gids = true
[[export.client]]
network = "10.1.0.0/24"
access = "rw"
squash = "no_root_squash"
"#;

#[derive(Default)]
struct ManyGroups(AtomicU32);

impl GroupLookup for ManyGroups {
    fn groups(&self, uid: u32) -> BoxFuture<'static, Option<Vec<u32>>> {
        self.0.fetch_add(1, SeqCst);
        match uid {
            IN_MANY => async { Some((1_000..=LAST_GROUP).collect()) }.boxed(),
            HANGING => futures::future::pending().boxed(),
            _ => async { None }.boxed(),
        }
    }
}

fn stage(rng: &mut runtime::seed::Rng) -> (Stage, Arc<ManyGroups>) {
    let lookup = Arc::new(ManyGroups::default());
    let exports = Settings::parse(TABLE, "table").expect("a good table").exports;
    let config = Config { exports, groups: Some(lookup.clone()), ..config(VOLUME) };
    (Stage::with(rng, config), lookup)
}

/// A file that only group `gid` may read.
async fn made(admin: &mut Client, gid: u32) -> nfs_fh3 {
    let root = admin.mount("/").await;
    admin.setattr(&root, mode(0o755)).await.unwrap();
    let file = admin.file(&root, &format!("of-{gid}")).await;
    let change = sattr3 { gid: Nfs3Option::Some(gid), ..mode(0o040) };
    admin.setattr(&file, change).await.unwrap();
    file
}

async fn may_read(client: &mut Client, file: &nfs_fh3) -> bool {
    match client.read(file, 0, 1).await {
        Nfs3Result::Ok(_) => true,
        Nfs3Result::Err((NFS3ERR_ACCES, _)) => false,
        Nfs3Result::Err((status, _)) => panic!("{status:?}"),
    }
}

#[test]
fn a_user_in_a_hundred_groups_reads_by_the_last_of_them() {
    with_seed(|rng| {
        let (stage, lookup) = stage(rng);
        let mut admin = stage.client_at("10.0.0.1:700");
        let mut managed = stage.client_at("10.0.0.2:700");
        let mut other = stage.client_at("10.1.0.2:700");
        stage.world.run(async {
            let file = made(&mut admin, LAST_GROUP).await;
            let before = lookup.0.load(SeqCst);
            managed.be(IN_MANY, 9);
            for _ in 0..3 {
                assert!(may_read(&mut managed, &file).await);
            }
            assert_eq!(lookup.0.load(SeqCst), before + 1, "the answer is kept");
            other.be(IN_MANY, 9);
            assert!(!may_read(&mut other, &file).await);
            // The first group is that of the caller, and the others that it sends do not count.
            let of_nine = made(&mut admin, 9).await;
            assert!(may_read(&mut managed, &of_nine).await);
            managed.be_in(IN_MANY, 9, &[10]);
            let of_ten = made(&mut admin, 10).await;
            assert!(!may_read(&mut managed, &of_ten).await);
            stage.world.context(runtime::NodeId::application(0)).sleep(AGE).await;
            // Silent connections are closed before.
            let mut managed = stage.client_at("10.0.0.3:700");
            managed.be(IN_MANY, 9);
            assert!(may_read(&mut managed, &file).await);
            assert!(lookup.0.load(SeqCst) > before + 1, "answers grow old");
        });
    });
}

const AGE: Duration = Duration::from_mins(6);

#[test]
fn of_users_whom_the_host_does_not_know_the_groups_count_that_they_send() {
    with_seed(|rng| {
        let (stage, _) = stage(rng);
        let mut admin = stage.client_at("10.0.0.1:700");
        let mut client = stage.client_at("10.0.0.2:700");
        stage.world.run(async {
            let file = made(&mut admin, 77).await;
            for uid in [UNKNOWN, HANGING] {
                client.be_in(uid, 9, &[77]);
                assert!(may_read(&mut client, &file).await, "user {uid}");
                client.be_in(uid, 9, &[78]);
                assert!(!may_read(&mut client, &file).await);
            }
        });
    });
}
