//! The gateway as a client sees it: real bytes over an emulated stream, file I/O's executable
//! reference below, virtual time. No sockets, no threads.

#![allow(clippy::wildcard_imports, reason = "the words of the protocol are many and prefixed")]

mod callbacks4;
mod clients4;
mod content;
mod delegations4;
mod directories;
mod exactly_once;
mod exports;
mod flow;
mod groups;
mod hostile;
mod kit;
mod metrics;
mod mount;
mod names;
mod nested_exports;
mod objects;
mod sparse4;
mod v4;
mod xattrs;
