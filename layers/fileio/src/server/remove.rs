//! Removing names.

use meta::protocol::{CallOutcome, Execute};

use super::base::is_in_doubt;
use super::call_requests::{CallIdRequest, done};
use super::names::{Names, ParentDir, count_directories, drop_link, take_name};
use crate::protocol::{Error, Kind, Remove, RemoveDirectory, Time};
use crate::rules;

impl CallIdRequest for Remove {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<(), Error> {
        names.change_dir(self.directory, async |above| names.remove_in(self, above).await).await
    }

    async fn repeat(&self, _: &Names, outcome: CallOutcome) -> Result<(), Error> {
        done(outcome)
    }
}

impl CallIdRequest for RemoveDirectory {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<(), Error> {
        let remove = async |above: &ParentDir| names.remove_directory_in(self, above).await;
        names.change_dir(self.directory, remove).await
    }

    async fn repeat(&self, _: &Names, outcome: CallOutcome) -> Result<(), Error> {
        done(outcome)
    }
}

impl Names {
    async fn remove_in(
        &self,
        request: &Remove,
        &ParentDir { attributes: ref above, since, .. }: &ParentDir,
    ) -> Result<((), Option<Time>), Error> {
        let &Remove { call, ref who, ref directory, ref name, durable } = request;
        let execute = |effects, durable| {
            let after = Vec::new();
            self.execute(Execute { effects, claimed: false, since, durable, call, after })
        };
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let now = self.base.now();
        let file = match self.named(&found).await {
            Err(Error::Changed {}) if self.find(*directory, name).await? == Some(found) => {
                // A name goes before its inode, so this is damage, which can be removed.
                rules::check_add(who, above)?;
                let effects = vec![take_name(*directory, name, &found)];
                execute(effects, true).await?;
                return Ok(((), Some(now)));
            }
            file => file?,
        };
        rules::check_take(who, above, file.uid)?;
        if file.kind == (Kind::Directory {}) {
            return Err(Error::IsDirectory {});
        }
        let _change = self.begin_change(&found).await?;
        let effects = vec![take_name(*directory, name, &found), drop_link(&found, now)];
        execute(effects, durable).await?;
        Ok(((), Some(now)))
    }

    async fn remove_directory_in(
        &self,
        request: &RemoveDirectory,
        &ParentDir { attributes: ref above, since, .. }: &ParentDir,
    ) -> Result<((), Option<Time>), Error> {
        let &RemoveDirectory { call, ref who, ref directory, ref name, durable } = request;
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let removed = self.named(&found).await?;
        rules::check_take(who, above, removed.uid)?;
        if removed.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        self.base.partitions.check_take(directory.ino, found.ino).await?;
        let now = self.base.now();
        let (after, lock) = self.lock_empty_dir(&found).await?;
        let effects = vec![
            take_name(*directory, name, &found),
            drop_link(&found, now),
            count_directories(*directory, -1, now),
        ];
        let removed =
            self.execute(Execute { effects, claimed: false, since, durable, call, after }).await;
        match removed {
            Ok(()) => lock.finish(),
            Err(error) if is_in_doubt(error) => drop(lock),
            Err(_) => self.unlock_dir(lock, &found).await,
        }
        removed.map(|()| ((), None))
    }
}
