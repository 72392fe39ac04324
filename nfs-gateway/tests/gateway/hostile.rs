//! Bytes that no good client sends: answered or hung up on, never a panic, never unbounded.

use std::time::Duration;

use nfs_gateway::{Config, limits};
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::*;
use runtime::net::{Address, ByteStream, Listener};
use runtime::seed::{Rng, with_seed};

use crate::kit::{
    Client, Stage, VOLUME, Verdict, at, config, encode, mode, status, write_arguments,
};

/// The gateway still serves others.
async fn still_serves(stage: &Stage) {
    let mut client = stage.client();
    let root = client.mount("/").await;
    assert_eq!(status(&client.getattr(&root).await), nfsstat3::NFS3_OK);
}

#[test]
fn random_bytes_are_hung_up_on() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        for _ in 0..50 {
            let mut bytes = vec![0; 5000];
            rng.fill(&mut bytes);
            bytes[0] |= 0x40; // a mark beyond the limit
            let mut client = stage.client();
            stage.world.run(async {
                client.send_raw(&bytes).await;
                assert!(client.receive().await.is_none());
            });
        }
        stage.world.run(still_serves(&stage));
        assert_eq!(stage.gateway.connections(), 1);
    });
}

#[test]
fn records_of_garbage_end_the_connection_or_are_answered() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        for _ in 0..200 {
            let mut record = vec![0; rng.index(300)];
            rng.fill(&mut record);
            if rng.chance(1, 2) && record.len() >= 12 {
                record[4..8].fill(0); // a call
                record[8..12].copy_from_slice(&2_u32.to_be_bytes());
            }
            let mut client = stage.client();
            stage.world.run(async {
                client.send_record(&record).await;
                let sleep = stage.world.context(runtime::NodeId::fs(0)).sleep(limits::IDLE * 2);
                let answer = std::pin::pin!(client.receive());
                futures::future::select(answer, sleep).await;
            });
        }
        stage.world.run(still_serves(&stage));
    });
}

#[test]
fn a_call_to_something_else_is_told_so() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            assert_eq!(client.call([100_000, 2, 0], &[]).await, Verdict::NoProgram);
            for version in [2, 5] {
                let verdict = client.call([PROGRAM, version, 0], &[]).await;
                assert_eq!(verdict, Verdict::ProgramMismatch(3, 4));
            }
            let (xid, mut record) = client.record([PROGRAM, VERSION, 0], &[]);
            record[11] = 3;
            client.send_record(&record).await;
            assert_eq!(client.receive().await, Some((xid, Verdict::RpcMismatch(2, 2))));
            let (xid, mut record) = client.record([PROGRAM, VERSION, 0], &[]);
            record[27] = 6; // RPCSEC_GSS
            client.send_record(&record).await;
            assert_eq!(client.receive().await, Some((xid, Verdict::BadAuthentication(2))));
        });
    });
}

#[test]
fn a_record_larger_than_the_limit_is_hung_up_on_at_its_mark() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        for length in [limits::RECORD_BYTES as u32 + 1, u32::MAX >> 1] {
            let mut client = stage.client();
            stage.world.run(async {
                client.send_raw(&(length | 1 << 31).to_be_bytes()).await;
                assert!(client.receive().await.is_none());
            });
            assert!(stage.world.now() < limits::IDLE);
        }
    });
}

#[test]
fn endless_fragments_are_hung_up_on() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut client = stage.client();
        stage.world.run(async { while client.send_raw(&[0; 4 * 100]).await {} });
        stage.world.advance(Duration::from_secs(1));
        assert_eq!(stage.gateway.connections(), 0);
        assert!(stage.world.now() < limits::IDLE);
    });
}

#[test]
fn half_a_record_and_then_silence_is_reaped() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut clients: Vec<Client> = (0..20).map(|_| stage.client()).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            let half = [&(0x400_u32 | 1 << 31).to_be_bytes()[..], &[0; 500]].concat();
            stage.world.run(client.send_raw(&half[..index * 20]));
        }
        stage.world.advance(limits::IDLE / 2);
        assert_eq!(stage.gateway.connections(), 20);
        stage.world.advance(limits::IDLE);
        assert_eq!(stage.gateway.connections(), 0);
    });
}

/// A valid call of each procedure.
fn calls(root: &nfs_fh3, file: &nfs_fh3) -> Vec<(NFS_PROGRAM, Vec<u8>)> {
    let only = encode(&GETATTR3args { object: root.clone() });
    let place = || at(root, b"name");
    let attributes = || sattr3 {
        atime: set_atime::SET_TO_CLIENT_TIME(nfstime3::default()),
        size: Nfs3Option::Some(1),
        ..mode(0o644)
    };
    let symlink = symlinkdata3 {
        symlink_attributes: attributes(),
        symlink_data: nfspath3::from(&b"target"[..]),
    };
    let (cookie, cookieverf, dir) = (0, cookieverf3::default(), root.clone());
    let plus = READDIRPLUS3args { dir, cookie, cookieverf, dircount: 4096, maxcount: 4096 };
    let device = devicedata3 { dev_attributes: attributes(), spec: specdata3::default() };
    let guard = Nfs3Option::Some(nfstime3::default());
    let set = SETATTR3args { object: file.clone(), new_attributes: attributes(), guard };
    vec![
        (NFSPROC3_GETATTR, only.clone()),
        (NFSPROC3_SETATTR, encode(&set)),
        (NFSPROC3_LOOKUP, encode(&place())),
        (NFSPROC3_ACCESS, encode(&ACCESS3args { object: root.clone(), access: 63 })),
        (NFSPROC3_READLINK, only.clone()),
        (NFSPROC3_READ, encode(&READ3args { file: file.clone(), offset: 0, count: 100 })),
        (NFSPROC3_WRITE, encode(&write_arguments(file, 0, b"hello", stable_how::UNSTABLE))),
        (
            NFSPROC3_CREATE,
            encode(&CREATE3args { where_: place(), how: createhow3::UNCHECKED(attributes()) }),
        ),
        (NFSPROC3_MKDIR, encode(&MKDIR3args { where_: place(), attributes: attributes() })),
        (NFSPROC3_SYMLINK, encode(&SYMLINK3args { where_: place(), symlink })),
        (NFSPROC3_MKNOD, encode(&MKNOD3args { where_: place(), what: mknoddata3::NF3CHR(device) })),
        (NFSPROC3_REMOVE, encode(&place())),
        (NFSPROC3_RMDIR, encode(&place())),
        (NFSPROC3_RENAME, encode(&RENAME3args { from: place(), to: at(root, b"other") })),
        (NFSPROC3_LINK, encode(&LINK3args { file: file.clone(), link: place() })),
        (
            NFSPROC3_READDIR,
            encode(&READDIR3args { dir: root.clone(), cookie, cookieverf, count: 4096 }),
        ),
        (NFSPROC3_READDIRPLUS, encode(&plus)),
        (NFSPROC3_FSSTAT, only.clone()),
        (NFSPROC3_FSINFO, only.clone()),
        (NFSPROC3_PATHCONF, only.clone()),
        (NFSPROC3_COMMIT, encode(&COMMIT3args { file: file.clone(), offset: 0, count: 0 })),
    ]
}

#[test]
fn arguments_cut_short_or_with_more_behind_are_garbage() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let calls = calls(&root, &file);
            assert_eq!(calls.len(), 21, "all but NULL");
            for (procedure, arguments) in calls {
                let program = [PROGRAM, VERSION, procedure as u32];
                for length in 0..arguments.len() {
                    let verdict = client.call(program, &arguments[..length]).await;
                    assert_eq!(verdict, Verdict::Garbage, "{procedure} cut to {length}");
                }
                let longer = [&arguments[..], &[0; 4]].concat();
                let verdict = client.call(program, &longer).await;
                assert_eq!(verdict, Verdict::Garbage, "{procedure} with more behind");
                let verdict = client.call(program, &arguments).await;
                assert!(matches!(verdict, Verdict::Done(_)), "{procedure}: {verdict:?}");
            }
        });
    });
}

/// Changes some bytes, mostly to values that lengths and numbers have trouble with.
fn damage(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..=rng.index(4) {
        let word = rng.index(bytes.len() / 4) * 4;
        let values = [0, 1, 3, 4, 64, 65, 255, 256, 1 << 31, u32::MAX - 3, u32::MAX];
        let value =
            if rng.chance(1, 2) { values[rng.index(values.len())] } else { rng.bits() as u32 };
        bytes[word..word + 4].copy_from_slice(&value.to_be_bytes());
    }
}

#[test]
fn damaged_calls_of_every_procedure_are_answered() {
    with_seed(|rng| {
        let seed = rng.bits();
        Stage::new(rng).run(async |mut client, root| {
            let mut rng = Rng::new(seed);
            let file = client.file(&root, "file").await;
            for (procedure, arguments) in calls(&root, &file) {
                for _ in 0..100 {
                    let mut damaged = arguments.clone();
                    damage(&mut damaged, &mut rng);
                    let verdict = client.call([PROGRAM, VERSION, procedure as u32], &damaged).await;
                    assert!(
                        matches!(verdict, Verdict::Done(_) | Verdict::Garbage),
                        "{procedure}: {verdict:?}"
                    );
                }
            }
        });
    });
}

#[test]
fn calls_with_a_damaged_head_are_answered_too() {
    with_seed(|rng| {
        let seed = rng.bits();
        Stage::new(rng).run(async |mut client, root| {
            let mut rng = Rng::new(seed);
            let file = client.file(&root, "file").await;
            for (procedure, arguments) in calls(&root, &file) {
                for _ in 0..100 {
                    let program = [PROGRAM, VERSION, procedure as u32];
                    let (xid, mut record) = client.record(program, &arguments);
                    // What comes before is the number, and that it is a call.
                    damage(&mut record[8..], &mut rng);
                    client.send_record(&record).await;
                    let (answered, _) = client.receive().await.expect("an answer");
                    assert_eq!(answered, xid);
                }
            }
        });
    });
}

#[test]
fn a_connection_too_many_is_closed_at_once() {
    with_seed(|rng| {
        let config = Config { connections_max: 3, ..config(VOLUME) };
        let stage = Stage::with(rng, config);
        let mut clients: Vec<Client> = (0..3).map(|_| stage.client()).collect();
        stage.world.run(async {
            for client in &mut clients {
                client.mount("/").await;
            }
        });
        let mut refused = stage.client();
        stage.world.run(async {
            refused.send_raw(&[0; 4]).await;
            assert!(refused.receive().await.is_none());
        });
        assert_eq!(stage.gateway.connections(), 3);
        drop(clients);
        stage.world.advance(Duration::from_secs(1));
        stage.world.run(still_serves(&stage));
    });
}

/// A listener whose peers all come from one host.
struct OneHost(Box<dyn Listener>, u16);

impl Listener for OneHost {
    fn accept(&mut self) -> futures::future::LocalBoxFuture<'_, std::io::Result<ByteStream>> {
        Box::pin(async {
            let stream = self.0.accept().await?;
            self.1 += 1;
            Ok(ByteStream { peer: format!("192.0.2.7:{}", self.1), ..stream })
        })
    }

    fn address(&self) -> Address {
        self.0.address()
    }
}

#[test]
fn one_host_cannot_take_all_connections() {
    with_seed(|rng| {
        let mut stage = Stage::new(rng);
        let ctx = stage.world.context(runtime::NodeId::application(1));
        let address = Address::Tcp("gateway:2050".into());
        let listener = stage.world.run(ctx.listen(&address)).unwrap();
        let config = Config { connections_per_peer_max: 2, ..config(VOLUME) };
        let gateway = nfs_gateway::Gateway::serve(&ctx, Box::new(OneHost(listener, 0)), config);
        stage.gateway = gateway.into();
        let mut clients: Vec<Client> = (0..2).map(|_| stage.client()).collect();
        stage.world.run(async {
            clients[0].mount("/").await;
            clients[1].mount("/").await;
        });
        let mut refused = stage.client();
        stage.world.run(async {
            refused.send_raw(&[0; 4]).await;
            assert!(refused.receive().await.is_none());
        });
        assert_eq!(stage.gateway.connections(), 2);
    });
}

#[test]
fn two_thousand_silent_connections_do_not_keep_others_out() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut working = stage.client_at("10.1.0.1:700");
        let root = stage.world.run(working.mount("/"));
        let silent: Vec<Client> = (0..2000)
            .map(|index| {
                let client = stage.client_at(&format!("10.2.{}.{}:7", index / 250, index % 250));
                stage.world.advance(Duration::from_millis(1));
                client
            })
            .collect();
        assert!(stage.gateway.connections() <= limits::CONNECTIONS);
        stage.world.run(async {
            let mut late = stage.client_at("10.3.0.1:700");
            late.mount("/").await;
            assert_eq!(status(&late.getattr(&root).await), nfsstat3::NFS3_OK);
            assert_eq!(status(&working.getattr(&root).await), nfsstat3::NFS3_OK, "not thrown out");
        });
        drop(silent);
    });
}
