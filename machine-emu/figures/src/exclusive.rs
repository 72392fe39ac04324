//! The allocator of 1996: free list and directory blocks are held by one client at a time (thesis
//! 2.5.1 and 4.5). Today's file system has no such thing; this one stands before it.

use std::cell::RefCell;
use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::sync::{KeyGuard, KeyedLock};
use runtime::{Caller, Undelivered as Error};

runtime::protocol! {
    /// The one that may allocate.
    Allocator id 7 version 1;

    /// Wait for the free list and the directory; the caller holds them once it is answered.
    1 Control Take {} -> (), by caller, retry never, from any, after recovery;
    /// Give them back.
    2 Control Give {} -> (), by caller, retry never, from any, after recovery;
}

/// The node with the free list.
#[derive(Debug, Default)]
pub(crate) struct AllocationServer {
    lock: KeyedLock<()>,
    guard: RefCell<Option<KeyGuard<()>>>,
}

impl runtime::Server<Allocator> for AllocationServer {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move {
            match request {
                Request::Take(_) => {
                    let guard = self.lock.exclusive(()).await;
                    *self.guard.borrow_mut() = Some(guard);
                    Reply::Take(Ok(()))
                }
                Request::Give(_) => {
                    let guard = self.guard.borrow_mut().take();
                    drop(guard);
                    Reply::Give(Ok(()))
                }
            }
        }
        .boxed_local()
    }
}
