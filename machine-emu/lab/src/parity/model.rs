//! What closed formulas predict, in links' worth of data per writer: 1 is the writer's whole link.
//!
//! `nodes` store data and one parity; `writers` write at the same time.

fn at_most_the_link(rate: f64) -> f64 {
    rate.min(1.0)
}

/// Without parity, striped over `nodes`.
pub(super) fn striped(nodes: usize, writers: usize) -> f64 {
    at_most_the_link(nodes as f64 / writers as f64)
}

/// The writer sends parity as well.
pub(super) fn writer(nodes: usize, writers: usize) -> f64 {
    let data = nodes as f64 - 1.0;
    (data / nodes as f64).min(data / writers as f64)
}

/// Each byte enters storage nodes twice: as data and in partial parity. The same holds if one
/// process encodes a stripe and sends its blocks on.
pub(super) fn ring(nodes: usize, writers: usize) -> f64 {
    at_most_the_link(nodes as f64 / (2.0 * writers as f64))
}

/// Partial parity has links of its own.
pub(super) fn dedicated_ring(nodes: usize, writers: usize) -> f64 {
    at_most_the_link(nodes as f64 / writers as f64)
}

/// The switch takes each byte once.
pub(super) fn switch(nodes: usize, writers: usize) -> f64 {
    at_most_the_link((nodes as f64 - 1.0) / writers as f64)
}

/// Does the ring beat the writer on a shared network? As long as w < n^2 / (2 (n - 1)).
pub(super) fn is_ring_better(nodes: usize, writers: usize) -> bool {
    2 * writers * (nodes - 1) < nodes * nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_that_of_the_better_formula() {
        for nodes in 3..20 {
            for writers in 1..20 {
                let (ring, writer) = (ring(nodes, writers), writer(nodes, writers));
                assert!(is_ring_better(nodes, writers) == (ring > writer + 1e-12));
            }
        }
    }
}
