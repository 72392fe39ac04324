//! Clients that are limited to a subtree of the volume (ADR 88).
//!
//! Such a client has each handle sealed, for the directory at which it begins: it can name what it
//! has reached from there, and nothing else. The ingress opens the seals of a request before
//! anything looks at it. A directory may have been moved out of the subtree since the client has
//! reached it: what the handles of a request name is checked by who knows the table.

use std::rc::Rc;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use runtime::context::Context;
use runtime::identity::SubtreePath;
use runtime::ids::NodeId;
use runtime::protocol::Protocol;
use runtime::seal::HandleSeal;

/// Lets clients into subtrees.
pub trait Subtrees<P: Protocol> {
    /// The directory that has the path now, for a client that comes in at the node of `context`.
    fn enter(
        &self,
        context: &Context,
        path: SubtreePath,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn Subtree<P>>, SubtreeRefused>>;
}

/// A subtree, for one link of a client that is limited to it.
pub trait Subtree<P: Protocol> {
    /// Seals and opens the handles of the client.
    fn seal(&self) -> &Arc<HandleSeal>;
    /// The directory at which the client begins: inode number and generation.
    fn root(&self) -> (u64, u64);
    /// Has the node `to` answer a request of the client, if all of the `handles` in it, which were
    /// opened already, are inside.
    fn answer(
        self: Rc<Self>,
        context: &Context,
        handles: Vec<(u64, u64)>,
        to: NodeId,
        request: P::Request,
    ) -> LocalBoxFuture<'static, P::Reply>;
}

/// A client is not let into its subtree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SubtreeRefused {
    /// It will not be let in later either.
    pub is_final: bool,
    /// The reason, for people.
    pub why: String,
}
