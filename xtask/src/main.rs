//! The development commands.
fn main() {}
