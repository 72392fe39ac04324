//! The classes of files change while clients work with them, disks come and go, and the power goes.
//! They are never weaker than that of the volume: the operator takes no more disks away than that
//! survives.

use std::collections::BTreeSet;
use std::time::Duration;

use blockio::volume_map::classes_of;
use blockio::{RedundancyClass, VolumeMap};
use fileio::protocol::{
    Change, ChangeDisks, Credentials, DiskChange, DiskRefusal, Error, GetAttributes, GetDisks,
    Handle, ROOT, SetAttributes,
};
use runtime::seed::Rng;

use super::harness::{CallFailure, Harness, PowerCut, WorkResult};

/// The client that changes them.
const CLIENT: u32 = 5;

/// Changes the classes of files.
#[derive(Debug)]
pub(super) struct ClassChanger;

impl ClassChanger {
    /// Changes them until the round is over.
    pub(super) async fn work(&self, harness: &Harness, files: &[Handle], mut rng: Rng) {
        while !harness.is_over() {
            harness.pass(Duration::from_millis(rng.below(300))).await;
            let file = files[rng.index(files.len())];
            let class = choose(&harness.cluster.map(), &mut rng);
            if let Err(PowerCut) = self.change(harness, file, class).await {
                return;
            }
        }
    }

    async fn change(&self, harness: &Harness, file: Handle, class: RedundancyClass) -> WorkResult {
        let who = Credentials::root();
        if !classes_of(&harness.cluster.map()).has(class) {
            let change = DiskChange::AllowClass { class: class.to_string() };
            match harness.ask(CLIENT, ChangeDisks { who: who.clone(), root: ROOT, change }).await {
                Ok(()) => {}
                // There are fewer disks in use now, or a host is away.
                Err(CallFailure::Refused(Error::DisksUnchanged {
                    why:
                        DiskRefusal::TooFewDisks { .. }
                        | DiskRefusal::TooFewDiskNodes { .. }
                        | DiskRefusal::NotReady {},
                })) => return Ok(()),
                Err(failure) => return failure.power_cut(),
            }
        }
        let change = Change { redundancy: Some(class), ..Change::default() };
        let call = SetAttributes { who, file, change, only_if_ctime: None, durable: true };
        let set = harness.ask(CLIENT, call).await.or_else(CallFailure::power_cut)?;
        assert_eq!(set.redundancy, Some(class));
        Ok(())
    }

    /// Once nothing goes wrong any more: what is stored in another way than its file wants is
    /// stored anew in bounded time. For a wide stripe there may be too few disks, or no room on
    /// some: all has copies then.
    pub(super) async fn finish(&self, harness: &Harness, files: &[Handle]) {
        let map = harness.cluster.map();
        let (mut classes, mut narrow) = (Vec::new(), BTreeSet::new());
        for file in files {
            let found = harness.ask(CLIENT, GetAttributes { file: *file }).await;
            let Ok(found) = found else { panic!("no crash was asked for") };
            let class = found.redundancy.unwrap_or_else(|| map.redundancy());
            if class.wide_stripes().is_none() {
                narrow.insert(file.ino);
            }
            classes.push(class);
        }
        let (who, root) = (Credentials::root(), ROOT);
        let unfit = async || -> BTreeSet<u64> {
            let audit = harness.audit().await.expect("it can be read");
            audit.unfit.intersection(&narrow).copied().collect()
        };
        loop {
            let before = unfit().await;
            if before.is_empty() {
                return;
            }
            let list = harness.ask(CLIENT, GetDisks { who: who.clone(), root }).await;
            let Ok(list) = list else { panic!("no crash was asked for") };
            if list.waiting_pieces == 0 && list.silent_nodes == 0 {
                let after = unfit().await;
                let mut stay = before.intersection(&after);
                assert!(stay.next().is_none(), "files {after:?} stay as they are, of {classes:?}");
            }
            harness.cluster.application(CLIENT).sleep(Duration::from_millis(500)).await;
        }
    }
}

/// One that survives the loss of as many disks as that of the volume.
fn choose(map: &VolumeMap, rng: &mut Rng) -> RedundancyClass {
    let volume = map.redundancy();
    let copies = volume.metadata_copies() as u8;
    let of_data = |data| RedundancyClass::Parity { data, parity: copies - 1 };
    let same = RedundancyClass::Copies { count: copies };
    let classes = [volume, same, of_data(2), of_data(3), of_data(2), of_data(4)];
    classes[rng.index(classes.len())]
}
