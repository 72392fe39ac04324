//! Hard links.

use std::rc::Rc;

use meta::protocol::{CallOutcome, Dentry, Effect, Execute, InodeChange, LockedName};

use super::calls::{CallIdRequest, other_call};
use super::{FileServer, ParentDir, is_in_doubt};
use crate::hash::name_node;
use crate::protocol::{Attributes, Error, Handle, Kind, LINKS_MAX, Link, Time};
use crate::rules;

impl CallIdRequest for Link {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.link(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => {
                server.attributes_after_repeat(self.file, Kind::File {}, &self.who).await
            }
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored(_: &Self::Reply) -> bool {
        true
    }
}

impl FileServer {
    /// The file's node decides: a link is counted before a name can be seen that needs it.
    pub(super) async fn link(self: &Rc<Self>, request: &Link) -> Result<Attributes, Error> {
        let Link { file, directory, name, .. } = request;
        self.inode(*file).await?;
        let name_node = name_node(directory.ino, name, self.context.fs_nodes());
        self.retry_races(async || {
            self.with_dir_locked_at(*directory, name_node, async |above| {
                rules::check_search(&request.who, &above.attributes)?;
                let (found, claim) = self.lock_name(name_node, *directory, name).await?;
                let linked = self.link_claimed(request, found, above).await;
                match &linked {
                    Ok(_) => claim.finish(),
                    Err(error) if is_in_doubt(*error) => drop(claim),
                    Err(_) => self.unlock_name(claim, *directory, name).await,
                }
                let (attributes, time) = linked?;
                Ok((attributes, Some(time)))
            })
            .await
        })
        .await
    }

    async fn link_claimed(
        self: &Rc<Self>,
        request: &Link,
        found: LockedName,
        &ParentDir { attributes: ref above, made, since }: &ParentDir,
    ) -> Result<(Attributes, Time), Error> {
        let &Link { call, ref who, file, directory, ref name, durable } = request;
        if found.dentry.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        let linked = self.inode(file).await?.attributes;
        if linked.kind == (Kind::Directory {}) {
            return Err(Error::NotPermitted {});
        }
        if linked.links == 0 {
            // It lives for those who have it open, and gets no name again.
            return Err(Error::NotFound {});
        }
        if linked.links >= LINKS_MAX {
            return Err(Error::TooManyLinks {});
        }
        let now = self.now();
        let Handle { ino, generation } = file;
        let change = InodeChange { links: 1, ctime: Some(now), ..InodeChange::default() };
        let effects = vec![
            Effect::ChangeParts { ino, generation, change },
            Effect::SetName {
                directory: directory.ino,
                name: name.clone(),
                expect: None,
                set: Some(Dentry { ino, generation, kind: linked.kind }),
            },
        ];
        let after = vec![found.changed, made];
        self.execute(Execute { effects, claimed: true, since, durable, call, after }).await?;
        let attributes = match self.inode(file).await {
            // Removed again already.
            Err(Error::Stale {}) => Attributes { links: linked.links + 1, ctime: now, ..linked },
            inode => inode?.attributes,
        };
        Ok((attributes, now))
    }
}
