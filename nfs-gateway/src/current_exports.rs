//! The table of exports, and where its nested exports are. A task looks them up again every two
//! seconds; calls do not wait for that.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use nfs3_types::nfs3::nfsstat3;
use runtime::Context;
use runtime::sync::KeyedLock;

use crate::exports::{ExportRoots, Exports};
use crate::translate;

/// How old the places of nested exports are, at most, while the nodes answer.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// The table of exports.
pub(crate) struct CurrentExports {
    ctx: Context,
    exports: RefCell<Rc<Exports>>,
    /// `None` until they are found for this table.
    roots: RefCell<Option<Rc<ExportRoots>>>,
    /// One look-up at a time.
    looking: KeyedLock<()>,
    /// Look-ups that failed.
    failures: Cell<u64>,
    /// The task runs.
    is_refreshing: Cell<bool>,
}

impl std::fmt::Debug for CurrentExports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CurrentExports").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl CurrentExports {
    /// The table of `exports`.
    pub(crate) fn new(ctx: Context, exports: Exports) -> Rc<Self> {
        let table = Rc::new(Self {
            ctx,
            exports: RefCell::new(Rc::new(Exports::new(Vec::new()))),
            roots: RefCell::default(),
            looking: KeyedLock::default(),
            failures: Cell::default(),
            is_refreshing: Cell::default(),
        });
        table.replace(exports);
        table
    }

    /// Replaces the exports from the next call on.
    pub(crate) fn replace(self: &Rc<Self>, exports: Exports) {
        let is_nested = exports.nested().next().is_some();
        *self.exports.borrow_mut() = Rc::new(exports);
        *self.roots.borrow_mut() = (!is_nested).then(Rc::default);
        if is_nested && !self.is_refreshing.replace(true) {
            self.ctx.task(refresh(self.ctx.clone(), Rc::downgrade(self)));
        }
    }

    /// The exports, and where the nested ones are: after a change of the table the first call waits
    /// until they are found.
    pub(crate) async fn current(&self) -> (Rc<Exports>, Result<Rc<ExportRoots>, nfsstat3>) {
        let exports = self.exports.borrow().clone();
        if let Some(roots) = self.roots.borrow().clone() {
            return (exports, Ok(roots));
        }
        // Boxed: what is rare would make the future of each call larger.
        Box::pin(self.wait_for_roots()).await
    }

    async fn wait_for_roots(&self) -> (Rc<Exports>, Result<Rc<ExportRoots>, nfsstat3>) {
        let failures = self.failures.get();
        let _alone = self.looking.exclusive(()).await;
        let exports = self.exports.borrow().clone();
        if let Some(roots) = self.roots.borrow().clone() {
            return (exports, Ok(roots));
        }
        // Calls that wait together fail together.
        let roots = if self.failures.get() == failures {
            self.find(&exports).await
        } else {
            Err(nfsstat3::NFS3ERR_JUKEBOX)
        };
        (exports, roots)
    }

    /// Looks the nested ones of `exports` up.
    async fn find(&self, exports: &Rc<Exports>) -> Result<Rc<ExportRoots>, nfsstat3> {
        let found = ExportRoots::find(&self.ctx, exports).await.map_err(|error| {
            tracing::warn!(target: "mdfs::nfs", %error, "the roots of exports cannot be looked up");
            self.failures.set(self.failures.get() + 1);
            translate::status(error)
        })?;
        let found = Rc::new(found);
        // The table may have changed meanwhile.
        if Rc::ptr_eq(exports, &self.exports.borrow()) {
            *self.roots.borrow_mut() = Some(found.clone());
        }
        Ok(found)
    }
}

/// Looks nested exports up again and again, as long as there are any. If that fails, the places
/// found before stay in force: the nodes that do not answer rename nothing either.
async fn refresh(ctx: Context, table: Weak<CurrentExports>) {
    loop {
        let Some(known) = table.upgrade() else { return };
        let exports = known.exports.borrow().clone();
        if exports.nested().next().is_none() {
            known.is_refreshing.set(false);
            return;
        }
        let alone = known.looking.exclusive(()).await;
        let _ = known.find(&exports).await;
        drop(alone);
        drop(known);
        ctx.sleep(REFRESH_INTERVAL).await;
    }
}
