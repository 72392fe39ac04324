//! The `mdfs` program.
fn main() {}
