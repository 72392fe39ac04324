//! What the world promises, by the behaviour of small servers in it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod determinism;
mod disks;
mod gate;
mod http;
mod jmachine;
mod kit;
mod mesh;
mod meshed;
mod messages;
mod nodes;
mod replay;
mod streams;
mod time;
