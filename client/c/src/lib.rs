//! `libmdfs`: the file system for C, C++ and Fortran (thesis section 2.6).
//!
//! # Promise
//!
//! - The stdio functions do what ANSI C says of theirs, and the others what POSIX says; a program
//!   with `fopen` and `fwrite` needs only the prefix and the volume.
//! - A function that fails says so by its value, sets `errno`, and leaves the whole story for
//!   `mdfs_error`. The position of a file does not move if an operation fails.
//! - Every function may be called by several threads at once; one stream serves one call at a time.
//! - After `fork` the child can use nothing that the parent had opened: it gets `ENOTCONN`, and
//!   mounts anew. It never writes out what the parent has in its buffers.
//! - At `exit` open streams are flushed, as C demands, and volumes that this process has opened
//!   itself are made durable.
//! - A bug in the library is `EIO` with a message, not the end of the program.
//!
//! # Asks below
//!
//! Only `client`.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `mount.rs` | volumes; `tables.rs` what is open; `fork.rs` whose it is |
//! | `stream/` | stdio: `fopen` to `fclose` |
//! | `descriptor/` | POSIX: `open` to `close`, and requests that go on in the background |
//! | `paths.rs`, `attributes.rs`, `directory.rs` | names, `stat`, listing |
//! | `failure.rs`, `arguments.rs` | errors and pointers at the border |
//!
//! `include/mdfs.h` is made from these files; the test `header` compares them.

#![allow(
    unsafe_code,
    reason = "C hands over bare pointers; `arguments.rs` says what it vouches for"
)]
#![allow(clippy::missing_safety_doc, reason = "said once, in `arguments.rs`, for all functions")]
#![allow(clippy::doc_markdown, reason = "these comments go into the header, for readers of C")]

// In the order of the header.
pub mod mount;

pub mod failure;

pub mod stream;

pub mod descriptor;

pub mod paths;

pub mod attributes;

pub mod directory;

mod arguments;
mod fork;
mod tables;
