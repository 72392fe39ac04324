//! Programs that use the client: some files that all of them write and read, compared with
//! [`Content`], and paths of each program's own, compared with the same client on the reference.
//!
//! | file | holds |
//! | --- | --- |
//! | `asker.rs` | how a program meets failures |
//! | `shared.rs` | the files that all programs use |
//! | `home.rs` | one program's own paths, and what of them is durable |
//! | `reach.rs` | what a client runs on: the cluster, or the reference |

mod asker;
mod home;
mod reach;
mod shared;

use client::{Credentials, FileSystem};
use futures::FutureExt as _;
use runtime::seed::Rng;

use crate::Planted;
use crate::cluster::OBSERVER;
use crate::files::Habits;
use crate::harness::{End, Harness};
use asker::{Asker, Stop};
use home::{Home, perform};
use reach::Reach;
use shared::{Handles, Shared};

/// The power went: the program ends.
struct PowerCut;

/// What stops a program: only the power may.
fn end<T>(stop: Stop) -> Result<T, PowerCut> {
    match stop {
        Stop::PowerCut => Err(PowerCut),
        Stop::Refused(cause) => panic!("refused: {cause}"),
    }
}

/// One program: the client on an application node of its own.
struct Program<'a> {
    asker: Asker<'a, Reach>,
    /// Its files, as long as it keeps them open.
    handles: Handles,
    home: Home,
}

struct Programs<'a> {
    harness: &'a Harness,
    habits: Habits,
    shared: Shared,
    planted: Option<Planted>,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, habits: Habits, planted: Option<Planted>) {
    harness.set_up().await;
    let group = 1 + harness.fork_rng().below(12);
    let shared = Shared::new(habits, group);
    let workload = Programs { harness, habits, shared, planted };
    let observer = workload.asker(OBSERVER);
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
        match harness.round(working.collect(), habits.round_ms).await {
            End::PowerCut => {
                harness.come_back().await;
                harness.lively("a check", workload.check_after_crash(&observer, &programs)).await;
            }
            End::Orderly => {
                harness.lively("a check", workload.check(&observer, &programs)).await;
                if harness.fork_rng().chance(1, 2) {
                    workload.shared.all_committed();
                    harness.stop_and_start().await;
                    harness.lively("a check", workload.shared.check_after_crash(&observer)).await;
                    for program in &programs {
                        harness.lively("a check", program.home.check(&observer)).await;
                    }
                }
            }
        }
    }
}

impl<'a> Programs<'a> {
    fn asker(&self, client: u32) -> Asker<'a, Reach> {
        let context = self.harness.cluster.application(client);
        let mark = context.random();
        let system =
            FileSystem::new(Reach { context, planted: self.planted }, Credentials::root(), mark);
        Asker { system, client, harness: Some(self.harness) }
    }

    async fn program(&self, client: u32, round: u32) -> Program<'a> {
        let handles = Handles::new(self.habits.files);
        let home = Home::new(format!("/home-{client}-{round}")).await;
        Program { asker: self.asker(client), handles, home }
    }

    async fn work(&self, program: &mut Program<'_>, mut rng: Rng) {
        let first = program.home.first();
        let mut done = perform(&program.asker, &first).await.map(drop).or_else(end);
        while done.is_ok() && !self.harness.is_over() {
            done = self.step(program, &mut rng).await;
        }
    }

    async fn step(&self, program: &mut Program<'_>, rng: &mut Rng) -> Result<(), PowerCut> {
        let Program { asker, handles, home } = program;
        match rng.below(100) {
            0..24 => {
                let step = home.draw(rng);
                asker.tell(|| format!("{step:?}"));
                let wanted = home.foresee(&step).await;
                match perform(asker, &step).await {
                    Err(Stop::PowerCut) => return Err(PowerCut),
                    Err(Stop::Refused(cause)) => assert_eq!(Err(cause), wanted, "{step:?}"),
                    Ok(told) => assert_eq!(Ok(told), wanted, "{step:?}"),
                }
                Ok(())
            }
            24..26 => {
                self.shared.sync_all(asker).await?;
                home.made_durable().await;
                Ok(())
            }
            _ => self.shared.step(asker, handles, rng).await,
        }
    }

    /// While nothing is under way.
    async fn check(&self, observer: &Asker<'_, Reach>, programs: &[Program<'_>]) {
        self.shared.check(observer).await;
        for program in programs {
            program.home.check(observer).await;
        }
    }

    async fn check_after_crash(&self, observer: &Asker<'_, Reach>, programs: &[Program<'_>]) {
        self.shared.check_after_crash(observer).await;
        for program in programs {
            program.home.check_after_crash(observer).await;
        }
    }
}
