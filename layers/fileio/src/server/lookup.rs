//! Looking names up.

use std::time::Duration;

use meta::protocol::{Dentry, FindName, GetInode};
use runtime::protocol::Undelivered;

use super::{FileServer, RACES_MAX};
use crate::protocol::{Attributes, Error, Handle, Lookup, Name};
use crate::rules;

/// The first pause of a lookup that waits for the word of another node.
const WORD_PAUSE: Duration = Duration::from_millis(1);
/// Doublings of the pause: all pauses together take about two seconds.
const WORD_PAUSE_DOUBLINGS: usize = 5;

runtime::handlers! { FileServer;
    Lookup => |server, _, request| server.lookup(request).await;
}

impl FileServer {
    /// Answers [`Lookup`], if directory, name and inode are at hand on this thread.
    pub(super) fn try_look_up_now(&self, request: &Lookup) -> Option<Result<Attributes, Error>> {
        let &Lookup { ref who, directory, ref name } = request;
        let above = self.try_attributes_now(directory)?;
        if let Err(refused) = rules::check_search(who, &above) {
            return Some(Err(refused));
        }
        let find = FindName { directory: directory.ino, name: name.clone() };
        let found = self.context.try_now(self.context.node(), find)?.ok()?;
        match found {
            Some(dentry) => {
                self.information.show_name(directory.ino, name, dentry);
                self.try_attributes_now(handle_of(&dentry)).map(Ok)
            }
            None => Some(Err(Error::NotFound {})),
        }
    }

    /// The attributes of an inode that is in use at a node of this thread, or shown by one of this process.
    fn try_attributes_now(&self, Handle { ino, generation }: Handle) -> Option<Attributes> {
        let node = self.node_of(ino);
        if node == self.context.node() {
            let known = self.information.attributes(ino, generation)?;
            self.information.show(ino);
            return Some(known);
        }
        self.shown(Handle { ino, generation }).or_else(|| {
            let inode = self.context.try_now(node, GetInode { ino, generation })?;
            inode.ok().map(|inode| inode.attributes)
        })
    }

    /// The attributes of an inode that a node of this process shows.
    fn shown(&self, Handle { ino, generation }: Handle) -> Option<Attributes> {
        self.shared_attrs.as_ref()?.attributes(ino, generation)
    }

    pub(super) async fn lookup(&self, request: Lookup) -> Result<Attributes, Error> {
        self.look_up(&request, async |found| Ok(self.inode(handle_of(&found)).await?.attributes))
            .await
    }

    /// What `get` tells of that which a name names.
    pub(super) async fn look_up<T>(
        &self,
        request: &Lookup,
        get: impl AsyncFn(Dentry) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let &Lookup { ref who, directory, ref name } = request;
        let mut names_nothing = None;
        for race in 0..RACES_MAX {
            let above = match self.shown(directory) {
                Some(above) => above,
                None => self.inode(directory).await?.attributes,
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
                // A rename over it was decided where the inode was, and its word is on the way here.
                self.context.sleep(WORD_PAUSE * (1 << race.min(WORD_PAUSE_DOUBLINGS))).await;
            }
        }
        let found = names_nothing.ok_or(Undelivered::Busy)?;
        // As long as the word is on its way the name is claimed, so this is busy.
        match self.make_name_durable(directory, name, found).await {
            Ok(()) => Err(Error::Damaged {}),
            Err(Error::Changed {}) => Err(Undelivered::Busy.into()),
            Err(error) => Err(error),
        }
    }

    /// What a name of this node names.
    pub(super) async fn find(
        &self,
        directory: Handle,
        name: &Name,
    ) -> Result<Option<Dentry>, Error> {
        self.meta_here(FindName { directory: directory.ino, name: name.clone() }).await
    }
}

/// The handle of what a name names.
pub(super) fn handle_of(dentry: &Dentry) -> Handle {
    Handle { ino: dentry.ino, generation: dentry.generation }
}
