//! The distributed stripe cache (thesis section 2.4).

pub mod protocol;
