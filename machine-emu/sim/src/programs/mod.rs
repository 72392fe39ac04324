//! Programs that use the client: some files that all of them write and read, compared with
//! [`ExpectedContent`], and paths of each program's own, compared with the same client on the
//! reference.
//!
//! | file | holds |
//! | --- | --- |
//! | `retrying_client.rs` | how a program meets failures |
//! | `shared.rs` | the files that all programs use |
//! | `home.rs` | one program's own paths, and what of them is durable |
//! | `spawn.rs` | what a client runs on: the cluster, or the reference |

mod home;
mod retrying_client;
mod shared;
mod spawn;

use client::{Credentials, FileSystem};
use futures::FutureExt as _;
use runtime::seed::Rng;

use crate::cluster::OBSERVER;
use crate::files::Habits;
use crate::harness::{Harness, PowerCut, RoundEnd, WorkResult};
use crate::planted::Planted;
use home::{ProgramHome, perform};
pub(super) use retrying_client::{ClusterClient, OperationFailure, RetryingClient};
use shared::{Handles, SharedFiles};
pub(super) use spawn::ClusterSpawn;

/// One program: the client on an application node of its own.
struct ClientProgram<'a> {
    client: ClusterClient<'a>,
    /// Its files, as long as it keeps them open.
    handles: Handles,
    home: ProgramHome,
}

struct ClientWorkload<'a> {
    harness: &'a Harness,
    habits: Habits,
    shared: SharedFiles,
    planted: Option<Planted>,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, habits: Habits, planted: Option<Planted>) {
    harness.set_up().await;
    let group = 1 + harness.fork_rng().below(12);
    let shared = SharedFiles::new(habits, group);
    let workload = ClientWorkload { harness, habits, shared, planted };
    let observer = workload.client(OBSERVER);
    let made = workload.shared.create(&observer).await;
    assert!(made.is_ok(), "an empty volume has room for some files");
    for round in 0..habits.rounds {
        let mut programs = Vec::new();
        for client in 0..habits.clients {
            programs.push(workload.program(client, round).await);
        }
        let working = programs
            .iter_mut()
            .map(|program| workload.work(program, harness.fork_rng()).boxed_local());
        let ended = harness.round(working.collect(), habits.round_ms).await;
        let after_crash = ended == RoundEnd::PowerCut;
        // They end with the round: what they have not synced they do not send again.
        let homes: Vec<ProgramHome> = programs.into_iter().map(|program| program.home).collect();
        if after_crash {
            harness.recover().await;
        }
        let checking = workload.check(&observer, &homes, after_crash);
        harness.within_limit("a check", checking).await;
        if !after_crash && harness.fork_rng().chance(1, 2) {
            workload.shared.all_committed();
            harness.stop_and_recover().await;
            harness.within_limit("a check", workload.shared.check(&observer, true)).await;
            for home in &homes {
                harness.within_limit("a check", home.check(&observer, false)).await;
            }
        }
    }
}

impl<'a> ClientWorkload<'a> {
    fn client(&self, number: u32) -> ClusterClient<'a> {
        let context = self.harness.cluster.application(number);
        let mark = context.random();
        let system = FileSystem::new(
            ClusterSpawn { context, planted: self.planted },
            Credentials::root(),
            mark,
        );
        // Programs end with the power: nothing of them comes again.
        let system = system.retaining(0);
        RetryingClient { system, number, harness: Some(self.harness) }
    }

    async fn program(&self, client: u32, round: u32) -> ClientProgram<'a> {
        let handles = Handles::new(self.habits.files);
        let home = ProgramHome::new(format!("/home-{client}-{round}")).await;
        ClientProgram { client: self.client(client), handles, home }
    }

    async fn work(&self, program: &mut ClientProgram<'_>, mut rng: Rng) {
        let first = program.home.first();
        let mut done =
            perform(&program.client, &first).await.map(drop).or_else(OperationFailure::power_cut);
        while done.is_ok() && !self.harness.is_over() {
            done = self.step(program, &mut rng).await;
        }
    }

    async fn step(&self, program: &mut ClientProgram<'_>, rng: &mut Rng) -> WorkResult {
        let ClientProgram { client, handles, home } = program;
        match rng.below(100) {
            0..24 => {
                let step = home.draw(rng);
                client.log(|| format!("{step:?}"));
                let wanted = home.foresee(&step).await;
                match perform(client, &step).await {
                    Err(OperationFailure::PowerCut) => return Err(PowerCut),
                    Err(OperationFailure::Refused(cause)) => {
                        assert_eq!(Err(cause), wanted, "{step:?}");
                    }
                    Ok(outcome) => assert_eq!(Ok(outcome), wanted, "{step:?}"),
                }
                Ok(())
            }
            24..26 => {
                self.shared.sync_all(client).await?;
                home.made_durable().await;
                Ok(())
            }
            _ => self.shared.step(client, handles, rng).await,
        }
    }

    /// While nothing is under way, or after a power cut.
    async fn check(&self, observer: &ClusterClient<'_>, homes: &[ProgramHome], after_crash: bool) {
        self.shared.check(observer, after_crash).await;
        for home in homes {
            home.check(observer, after_crash).await;
        }
    }
}
