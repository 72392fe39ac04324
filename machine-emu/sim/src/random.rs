//! Drawing one of several values.

use runtime::seed::Rng;

/// One element of `from`, which is not empty.
pub(super) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.index(from.len())].clone()
}
