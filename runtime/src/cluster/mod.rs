//! The machine of several processes (design D1): each hosts some nodes of the volume and reaches the
//! others by links. What crosses a link is a frame of [`remote`](crate::remote); this is the plain path,
//! over TCP, that every host has.
//!
//! Each thread of a process has a link of its own to each other process, so that a request leaves from
//! the thread on which it was made and the answer comes back to it.
//!
//! | file | holds |
//! | --- | --- |
//! | `routes.rs` | which process hosts which node, in one epoch |
//! | `links.rs` | the links of one thread |

mod links;
mod routes;

pub(crate) use links::Links;
pub(crate) use routes::first_application;
pub use routes::{Process, Routes};
