//! (to come)

pub mod sim;
