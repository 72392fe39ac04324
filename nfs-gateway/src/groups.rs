//! The groups of users as the host of the gateway knows them, for exports with `manage_gids`: a
//! caller sends sixteen at most (RFC 5531 appendix A).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fileio::protocol::GROUPS_MAX;
use futures::future::{BoxFuture, Either, select};
use runtime::Context;
use runtime::sync::{KeyedLock, Limit};

/// How long an answer counts.
const AGE_MAX: Duration = Duration::from_mins(5);
/// How long one is waited for. The groups that the caller sent count then.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);
/// Users that are known, at most.
const USERS_MAX: usize = 4096;
/// Look-ups at the same time, and that wait for their turn, at most.
const LOOKUPS_MAX: usize = 8;
const WAITING_LOOKUPS_MAX: usize = 1024;

/// Knows the groups of users.
pub trait GroupLookup: Send + Sync {
    /// The supplementary groups of a user; `None` if there is no such user, or no answer.
    fn groups(&self, uid: u32) -> BoxFuture<'static, Option<Vec<u32>>>;
}

/// The groups of a user, if they are known.
pub(crate) type HostGroups = Option<Rc<[u32]>>;

/// What was found lately.
pub(crate) struct GroupCache {
    ctx: Context,
    lookup: Option<Arc<dyn GroupLookup>>,
    /// The groups of each user, and until when they count.
    users: RefCell<BTreeMap<u32, (HostGroups, Duration)>>,
    /// One look-up of a user at a time.
    looking: KeyedLock<u32>,
    limit: Limit,
}

impl std::fmt::Debug for GroupCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let users = self.users.borrow().len();
        f.debug_struct("GroupCache").field("users", &users).finish_non_exhaustive()
    }
}

impl GroupCache {
    /// Without a `lookup` no user is known.
    pub(crate) fn new(ctx: Context, lookup: Option<Arc<dyn GroupLookup>>) -> Self {
        let limit = Limit::new(LOOKUPS_MAX, WAITING_LOOKUPS_MAX);
        Self { ctx, lookup, users: RefCell::default(), looking: KeyedLock::default(), limit }
    }

    /// The groups of a user.
    pub(crate) async fn of(&self, uid: u32) -> HostGroups {
        if let Some(known) = self.known(uid) {
            return known;
        }
        let lookup = self.lookup.as_ref()?;
        let _alone = self.looking.exclusive(uid).await;
        if let Some(known) = self.known(uid) {
            return known;
        }
        let _turn = self.limit.acquire().await?;
        let timeout = pin!(self.ctx.sleep(LOOKUP_TIME_MAX));
        let found = match select(lookup.groups(uid), timeout).await {
            Either::Left((found, _)) => found,
            Either::Right(_) => {
                tracing::warn!(
                    target: "mdfs::nfs", uid,
                    "the groups of a user are not found in time: those that the client sends count"
                );
                None
            }
        };
        let found: HostGroups = found.map(|mut groups| {
            groups.truncate(GROUPS_MAX);
            groups.into()
        });
        self.note(uid, found.clone());
        found
    }

    fn known(&self, uid: u32) -> Option<HostGroups> {
        let users = self.users.borrow();
        let (groups, until) = users.get(&uid)?;
        (self.ctx.now() < *until).then(|| groups.clone())
    }

    fn note(&self, uid: u32, groups: HostGroups) {
        let now = self.ctx.now();
        let mut users = self.users.borrow_mut();
        if users.len() >= USERS_MAX {
            users.retain(|_, (_, until)| now < *until);
        }
        if users.len() >= USERS_MAX {
            users.pop_first();
        }
        users.insert(uid, (groups, now + AGE_MAX));
    }
}
