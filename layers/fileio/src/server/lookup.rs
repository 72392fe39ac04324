//! Looking names up.

use std::time::Duration;

use meta::protocol::{Dentry, FindName, GetInode};
use runtime::protocol::Undelivered;

use super::names::{Names, RACES_MAX, handle_of};
use crate::protocol::{Attributes, Error, Handle, Lookup};
use crate::rules;

/// The first pause of a lookup that waits for a decision of another node.
const DECISION_PAUSE: Duration = Duration::from_millis(1);
/// Doublings of the pause: all pauses together take about two seconds.
const DECISION_PAUSE_DOUBLINGS: usize = 5;

impl Names {
    /// Answers [`Lookup`], if directory, name and inode are at hand on this thread.
    pub(super) fn try_look_up_now(&self, request: &Lookup) -> Option<Result<Attributes, Error>> {
        let &Lookup { ref who, directory, ref name } = request;
        let above = self.try_attributes_now(directory)?;
        if let Err(refused) = rules::check_search(who, &above) {
            return Some(Err(refused));
        }
        let find = FindName { directory: directory.ino, name: name.clone() };
        let found = self.base.context.try_now(self.base.context.node(), find)?.ok()?;
        match found {
            Some(dentry) => {
                self.base.information.show_name(directory.ino, name, dentry);
                self.try_attributes_now(handle_of(&dentry)).map(Ok)
            }
            None => Some(Err(Error::NotFound {})),
        }
    }

    /// The attributes of an inode that is in use at a node of this thread, or published by one of
    /// this process.
    fn try_attributes_now(&self, Handle { ino, generation }: Handle) -> Option<Attributes> {
        let node = self.base.node_of(ino);
        if node == self.base.context.node() {
            let known = self.base.information.attributes(ino, generation)?;
            self.base.information.show(ino);
            return Some(known);
        }
        self.base.shared_attributes(Handle { ino, generation }).or_else(|| {
            let inode = self.base.context.try_now(node, GetInode { ino, generation })?;
            inode.ok().map(|inode| inode.attributes)
        })
    }

    pub(super) async fn lookup(&self, request: Lookup) -> Result<Attributes, Error> {
        self.look_up(&request, async |found| {
            Ok(self.base.inode(handle_of(&found)).await?.attributes)
        })
        .await
    }

    /// The result of `get` for what a name names.
    pub(super) async fn look_up<T>(
        &self,
        request: &Lookup,
        get: impl AsyncFn(Dentry) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let &Lookup { ref who, directory, ref name } = request;
        let mut names_nothing = None;
        for race in 0..RACES_MAX {
            let above = match self.base.shared_attributes(directory) {
                Some(above) => above,
                None => self.base.inode(directory).await?.attributes,
            };
            rules::check_search(who, &above)?;
            let found = self.find(directory, name).await?.ok_or(Error::NotFound {})?;
            match get(found).await {
                // Removed between the two: look again.
                Err(Error::Stale {}) => {}
                got => return got,
            }
            names_nothing = self.find(directory, name).await?.filter(|now| *now == found);
            if names_nothing.is_some() {
                // A rename over it was decided at the node of the inode, and has not arrived here.
                self.base
                    .context
                    .sleep(DECISION_PAUSE * (1 << race.min(DECISION_PAUSE_DOUBLINGS)))
                    .await;
            }
        }
        let found = names_nothing.ok_or(Undelivered::Busy)?;
        // Until it arrives, the name is locked: this answers that it is busy.
        match self.make_name_durable(directory, name, found).await {
            Ok(()) => Err(Error::Damaged {}),
            Err(Error::Changed {}) => Err(Undelivered::Busy.into()),
            Err(error) => Err(error),
        }
    }
}
