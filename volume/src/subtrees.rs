//! Keeps clients inside of the subtrees to which they are limited (ADR 88).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fileio::client::ask;
use fileio::protocol::{
    CallId, Credentials, Error, FileIo, GetAttributes, Handle, Kind, Lookup, Name, Parent, ROOT,
    Reply, Request, handle_of,
};
use fileio::root_keys::SUBTREE_KEYS;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::identity::SubtreePath;
use runtime::protocol::Undelivered;
use runtime::seal::{HandleSeal, SECRET_BYTES};
use runtime::{Context, NodeId};
use transport::{Subtree, SubtreeRefused, Subtrees};

/// A directory that was found inside counts as that for this time. One that is moved out of the
/// subtree is refused that much later.
const INSIDE_MAX: Duration = Duration::from_secs(1);
/// Handles of one link whose place is remembered, at most.
const KNOWN_MAX: usize = 4096;
/// Directories on the way from one to the root of the volume, at most.
const DEPTH_MAX: usize = 4096;

/// Lets clients into subtrees of the volume.
pub struct VolumeSubtrees {
    /// Drawn from the operating system: the key of the volume, if it has none.
    entropy: [u8; SECRET_BYTES],
}

impl VolumeSubtrees {
    /// A volume without a key gets one that is made of `entropy`, which is drawn for this.
    pub fn new(entropy: [u8; SECRET_BYTES]) -> Self {
        Self { entropy }
    }

    /// With entropy of the operating system.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_this_host() -> Self {
        Self::new(runtime::seed::fresh_bytes())
    }
}

impl Subtrees<FileIo> for VolumeSubtrees {
    fn enter(
        &self,
        context: &Context,
        path: SubtreePath,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Subtree<FileIo>>, SubtreeRefused>> {
        let (context, entropy) = (context.clone(), self.entropy);
        async move {
            let entered = enter(&context, &path, entropy).await;
            entered.map(|it| it as Rc<dyn Subtree<FileIo>>).map_err(|error| SubtreeRefused {
                is_final: !matches!(error, Error::Undelivered { .. }),
                why: format!("the directory {path}, to which it is limited: {error}"),
            })
        }
        .boxed_local()
    }
}

/// The directory with this path. No symbolic link is followed: it could lead anywhere.
async fn enter(
    context: &Context,
    path: &SubtreePath,
    entropy: [u8; SECRET_BYTES],
) -> Result<Rc<LimitedClient>, Error> {
    let mut root = ROOT;
    for name in path.names() {
        let name = Name::new(name.to_vec()).map_err(|_| Error::NotFound {})?;
        let lookup = Lookup { who: Credentials::root(), directory: root, name };
        let found = ask(context, lookup).await?;
        if found.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        root = handle_of(&found);
    }
    let client = context.random();
    let next = Cell::new(0);
    let call = || CallId { client, number: next.replace(next.get() + 1) };
    let keys = SUBTREE_KEYS.valid_or_first(context, |_| entropy.to_vec(), call).await?;
    let secret = keys.first().and_then(|key| key.value.as_slice().try_into().ok());
    let secret: [u8; SECRET_BYTES] = secret.ok_or(Error::Damaged {})?;
    let seal = Arc::new(HandleSeal::new(&secret, (root.ino, root.generation)));
    Ok(Rc::new(LimitedClient { root, seal, known: RefCell::default() }))
}

/// What is known of a handle.
#[derive(Clone, Copy)]
enum KnownPlace {
    /// No directory: it was reached, and that suffices, wherever its names are now.
    File,
    /// A directory that was inside at this time.
    Inside(Duration),
}

/// One link of a client.
struct LimitedClient {
    root: Handle,
    seal: Arc<HandleSeal>,
    known: RefCell<BTreeMap<Handle, KnownPlace>>,
}

impl Subtree<FileIo> for LimitedClient {
    fn seal(&self) -> &Arc<HandleSeal> {
        &self.seal
    }

    fn root(&self) -> (u64, u64) {
        (self.root.ino, self.root.generation)
    }

    fn answer(
        self: Rc<Self>,
        context: &Context,
        handles: Vec<(u64, u64)>,
        to: NodeId,
        request: Request,
    ) -> LocalBoxFuture<'static, Reply> {
        let context = context.clone();
        async move {
            for (ino, generation) in handles {
                if let Err(error) = self.check(&context, Handle { ino, generation }).await {
                    return refusal(&request, error);
                }
            }
            match &request {
                // Above it is nothing that the client may know of.
                Request::Parent(Parent { directory, .. }) if *directory == self.root => {
                    Reply::Parent(ask(&context, GetAttributes { file: self.root }).await)
                }
                _ => context.request::<FileIo>(to, request).await,
            }
        }
        .boxed_local()
    }
}

/// The answer to a request that was not done because of what a check has found.
fn refusal(request: &Request, error: Error) -> Reply {
    match error {
        // Only the check is lost.
        Error::Undelivered { why } if why.is_lost() => Undelivered::Busy.into(),
        Error::Undelivered { why } => why.into(),
        error => request.refused(error),
    }
}

impl LimitedClient {
    /// Is this handle, which the client has reached once, still inside?
    async fn check(&self, context: &Context, handle: Handle) -> Result<(), Error> {
        let now = context.now();
        let mut above = Vec::new();
        let mut here = handle;
        while !self.is_inside(here, now) {
            if here == ROOT || above.len() == DEPTH_MAX {
                return Err(Undelivered::Refused.into());
            }
            let parent = Parent { who: Credentials::root(), directory: here };
            match ask(context, parent).await {
                Err(Error::NotDirectory {}) if above.is_empty() => {
                    self.note([handle], KnownPlace::File);
                    return Ok(());
                }
                found => {
                    above.push(here);
                    here = handle_of(&found?);
                }
            }
        }
        self.note(above, KnownPlace::Inside(now));
        Ok(())
    }

    fn is_inside(&self, handle: Handle, now: Duration) -> bool {
        let known = self.known.borrow();
        handle == self.root
            || known.get(&handle).is_some_and(|place| match place {
                KnownPlace::File => true,
                KnownPlace::Inside(since) => now.saturating_sub(*since) < INSIDE_MAX,
            })
    }

    fn note(&self, handles: impl IntoIterator<Item = Handle>, place: KnownPlace) {
        let mut known = self.known.borrow_mut();
        for handle in handles {
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(handle, place);
        }
    }
}
