//! What a pool takes of the host's memory. Alone in its process, whose memory it measures.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test looks at its process, and panics where it fails"
)]

use runtime::buffer::{Buffer, Pool};

/// The usual stripe.
const STRIPE: usize = 64 << 10;

/// What the pool asks the host for at a time.
const SLAB_BYTES: usize = 2 << 20;

/// Of the memory of this process, what the host has found (kB of `/proc/self/status`).
fn resident_kb() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// One test: others would change what the process has.
#[test]
fn memory_is_found_early_if_that_is_asked_for_and_given_back_where_others_need_it() {
    memory_is_there_before_it_is_taken();
    slabs_give_back_what_others_need();
}

fn memory_is_there_before_it_is_taken() {
    let pool = Pool::new(8 * SLAB_BYTES);
    let before_kb = resident_kb();
    pool.prefault(STRIPE, 6 * SLAB_BYTES);
    assert_eq!((pool.used_bytes(), pool.kept_bytes()), (0, 6 * SLAB_BYTES));
    let found_kb = resident_kb() - before_kb;
    assert!(found_kb << 10 >= 6 * SLAB_BYTES, "{found_kb} kB");
    let per_slab = SLAB_BYTES / STRIPE;
    let all: Vec<Buffer> = (0..6 * per_slab).map(|_| pool.take(STRIPE).unwrap()).collect();
    assert_eq!((pool.used_bytes(), pool.kept_bytes()), (6 * SLAB_BYTES, 0));
    // Never more than the limit lets be used, and nothing where there are no slabs for it.
    pool.prefault(STRIPE, 1 << 30);
    pool.prefault(3, 1 << 30);
    assert_eq!(pool.kept_bytes(), 2 * SLAB_BYTES);
    drop(all);
    let larger = pool.take(7 * SLAB_BYTES).unwrap();
    assert!(larger.len() + pool.kept_bytes() <= pool.limit_bytes());
}

fn slabs_give_back_what_others_need() {
    let pool = Pool::new(16 * SLAB_BYTES);
    let before_kb = resident_kb();
    let per_slab = SLAB_BYTES / STRIPE;
    let mut all: Vec<Buffer> = (0..16 * per_slab).map(|_| pool.take(STRIPE).unwrap()).collect();
    assert_eq!((pool.used_bytes(), pool.kept_bytes()), (16 * SLAB_BYTES, 0));
    assert!(pool.take(1).is_none());
    // One stripe of each slab stays, and all of the last.
    let mut at = 0;
    all.retain(|_| {
        at += 1;
        at > 15 * per_slab || at % per_slab == 0
    });
    assert_eq!(pool.kept_bytes(), 15 * (SLAB_BYTES - STRIPE));
    let mut other = pool.take(10 * SLAB_BYTES).unwrap();
    other.fill(1);
    assert!(pool.used_bytes() + pool.kept_bytes() <= pool.limit_bytes());
    let grown_kb = resident_kb().saturating_sub(before_kb);
    assert!(grown_kb << 10 < pool.limit_bytes() + 4 * SLAB_BYTES, "{grown_kb} kB for 32 MiB");
    drop(other);
    // And takes it again, now or then in small pages.
    while let Some(mut buffer) = pool.take(STRIPE) {
        buffer.fill(2);
        all.push(buffer);
    }
    assert_eq!((pool.used_bytes(), pool.kept_bytes()), (16 * SLAB_BYTES, 0));
    let beyond = pool.take_beyond(STRIPE);
    drop(all);
    drop(beyond);
    assert!(pool.used_bytes() == 0 && pool.kept_bytes() <= pool.limit_bytes());
}
