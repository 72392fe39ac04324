//! Hard links.

use meta::protocol::{CallOutcome, Dentry, Effect, Execute, InodeChange, LockedName};

use super::base::is_in_doubt;
use super::call_requests::{CallIdRequest, attributes_after_repeat, done};
use super::names::{Names, ParentDir, check_same_partition, retry_races};
use crate::hash::name_node;
use crate::protocol::{Attributes, Error, Handle, Kind, LINKS_MAX, Link, Time};
use crate::rules;

impl CallIdRequest for Link {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<Attributes, Error> {
        names.link(self).await
    }

    async fn repeat(&self, names: &Names, outcome: CallOutcome) -> Result<Attributes, Error> {
        done(outcome)?;
        attributes_after_repeat(&names.base, self.file, Kind::File {}, &self.who).await
    }
}

impl Names {
    /// The file's node decides: a link is counted before a name can be seen that needs it.
    async fn link(&self, request: &Link) -> Result<Attributes, Error> {
        let Link { file, directory, name, .. } = request;
        check_same_partition(file.ino, directory.ino)?;
        self.base.inode(*file).await?;
        let node = name_node(directory.ino, name, self.base.context.fs_nodes());
        let link = async |above: &ParentDir| {
            rules::check_search(&request.who, &above.attributes)?;
            let (found, lock) = self.lock_name(node, *directory, name).await?;
            let linked = self.link_locked(request, found, above).await;
            match &linked {
                Ok(_) => lock.finish(),
                Err(error) if is_in_doubt(*error) => drop(lock),
                Err(_) => self.unlock_name(lock, *directory, name).await,
            }
            let (attributes, time) = linked?;
            Ok((attributes, Some(time)))
        };
        retry_races(async || self.with_dir_locked_at(*directory, node, &link).await).await
    }

    async fn link_locked(
        &self,
        request: &Link,
        found: LockedName,
        &ParentDir { attributes: ref above, made, since }: &ParentDir,
    ) -> Result<(Attributes, Time), Error> {
        let &Link { call, ref who, file, directory, ref name, durable } = request;
        if found.dentry.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        self.base.partitions.check_make(directory.ino).await?;
        let linked = self.base.inode(file).await?.attributes;
        if linked.kind == (Kind::Directory {}) {
            return Err(Error::NotPermitted {});
        }
        if linked.links == 0 {
            // It exists only for clients that have it open, and gets no name again.
            return Err(Error::NotFound {});
        }
        if linked.links >= LINKS_MAX {
            return Err(Error::TooManyLinks {});
        }
        let now = self.base.now();
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
        let attributes = match self.base.inode(file).await {
            // It was removed already.
            Err(Error::Stale {}) => Attributes { links: linked.links + 1, ctime: now, ..linked },
            inode => inode?.attributes,
        };
        Ok((attributes, now))
    }
}
