//! The control plane of a volume: small records that all processes agree on ([`coordination`]), and
//! the node map that says which process serves which node ([`membership`]).
//!
//! It runs on the node context like a layer, so that the simulator drives the same code
//! (`machine-emu/sim/src/members`); only the engines of [`coordination`] do input and output.

pub mod coordination;
pub mod membership;
