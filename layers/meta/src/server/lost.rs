//! In the place of the metadata of a node that cannot be read, in a volume that is only read.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::{Caller, Server};

use crate::protocol::{Error, Meta, Reply, Request};
use crate::store::StoreError;

/// Answers every request with why nothing is known.
#[derive(Debug)]
pub struct LostMetadata(Error);

impl LostMetadata {
    /// The metadata cannot be read for this reason.
    pub fn new(why: StoreError) -> Rc<Self> {
        Rc::new(Self(why.into()))
    }

    /// Why, as an answer.
    pub fn error(&self) -> Error {
        self.0
    }
}

impl Server<Meta> for LostMetadata {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        ready(request.refused(self.0)).boxed_local()
    }
}
