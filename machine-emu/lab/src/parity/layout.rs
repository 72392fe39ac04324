//! Where the blocks of a stripe are, and in which order a writer sends them to the ring.

/// How blocks are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RaidLevel {
    /// Data on all nodes, no parity.
    Striped,
    /// Parity on the last node.
    Dedicated,
    /// Parity on nodes in turn: left-asymmetric RAID-5, as in the thesis.
    Rotated,
}

/// The layout of a volume. What makes the parity has no influence on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParityLayout {
    pub(super) level: RaidLevel,
    pub(super) nodes: usize,
}

impl ParityLayout {
    /// Blocks of data in a stripe.
    pub(super) fn data_blocks(self) -> usize {
        self.nodes - usize::from(self.level != RaidLevel::Striped)
    }

    /// Blocks of a stripe.
    pub(super) fn shards(self) -> usize {
        self.nodes
    }

    /// The node of a stripe's parity; without parity there is none, and the answer is past all.
    pub(super) fn parity_node(self, stripe: u64) -> usize {
        match self.level {
            RaidLevel::Striped => self.nodes,
            RaidLevel::Dedicated => self.nodes - 1,
            RaidLevel::Rotated => self.nodes - 1 - (stripe % self.nodes as u64) as usize,
        }
    }

    /// The node of a block. Data fills the nodes in ascending order.
    pub(super) fn node_of(self, stripe: u64, index: usize) -> usize {
        let parity = self.parity_node(stripe);
        if index == self.data_blocks() {
            return parity;
        }
        index + usize::from(index >= parity)
    }

    /// The block of a stripe that a node stores.
    pub(super) fn index_at(self, stripe: u64, node: usize) -> usize {
        let parity = self.parity_node(stripe);
        if node == parity {
            return self.data_blocks();
        }
        node - usize::from(node > parity)
    }

    /// The node at a place of a stripe's pipeline: it starts right of the node of the parity and
    /// ends there.
    pub(super) fn pipeline_node(self, stripe: u64, place: usize) -> usize {
        (self.parity_node(stripe) + 1 + place) % self.nodes
    }

    /// The place of a node in a stripe's pipeline.
    pub(super) fn place_of(self, stripe: u64, node: usize) -> usize {
        (node + 2 * self.nodes - self.parity_node(stripe) - 1) % self.nodes
    }

    /// The right neighbour in the ring.
    pub(super) fn right_of(self, node: usize) -> usize {
        (node + 1) % self.nodes
    }

    /// The data blocks of some stripes, given in ascending order, in the order of the thesis. First
    /// come the heads of the pipelines of a group of stripes, one for each node, then the blocks
    /// that the heads meet, and so on. One rotation of the parity makes a group.
    pub(super) fn waves(self, stripes: &[u64]) -> Vec<(u64, usize)> {
        let data = self.data_blocks();
        if self.level != RaidLevel::Rotated {
            return in_stripe_order(stripes, data);
        }
        let nodes = self.nodes as u64;
        let mut order = Vec::with_capacity(stripes.len() * data);
        for group in stripes.chunk_by(|a, b| a / nodes == b / nodes) {
            for place in 0..data {
                for node in 0..self.nodes {
                    let met = group.iter().find(|s| self.pipeline_node(**s, place) == node);
                    order.extend(met.map(|stripe| (*stripe, self.index_at(*stripe, node))));
                }
            }
        }
        order
    }
}

/// One stripe after the other.
pub(super) fn in_stripe_order(stripes: &[u64], blocks: usize) -> Vec<(u64, usize)> {
    stripes.iter().flat_map(|stripe| (0..blocks).map(|index| (*stripe, index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: ParityLayout = ParityLayout { level: RaidLevel::Rotated, nodes: 4 };

    /// Matrix 2.1 of the thesis: D0 to D11 and the parity of each stripe.
    #[test]
    fn the_layout_is_that_of_the_thesis() {
        let nodes = |stripe| (0..4).map(move |index| FOUR.node_of(stripe, index));
        let matrix: Vec<Vec<usize>> = (0..4).map(|stripe| nodes(stripe).collect()).collect();
        assert_eq!(matrix, [[0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 3, 1], [1, 2, 3, 0]]);
    }

    /// (D0, D9, D7, D5), (D3, D1, D10, D8), (D6, D4, D2, D11).
    #[test]
    fn the_waves_are_those_of_the_thesis() {
        let names: Vec<u64> = FOUR
            .waves(&[0, 1, 2, 3])
            .iter()
            .map(|(stripe, index)| stripe * 3 + *index as u64)
            .collect();
        assert_eq!(names, [0, 9, 7, 5, 3, 1, 10, 8, 6, 4, 2, 11]);
        assert_eq!(FOUR.waves(&[5, 9]).len(), 6);
    }

    #[test]
    fn places_and_blocks_are_each_others_inverse() {
        for nodes in 3..10 {
            for level in [RaidLevel::Striped, RaidLevel::Dedicated, RaidLevel::Rotated] {
                let layout = ParityLayout { level, nodes };
                for (stripe, node) in (0..20).flat_map(|s| (0..nodes).map(move |node| (s, node))) {
                    assert_eq!(layout.node_of(stripe, layout.index_at(stripe, node)), node);
                    if level != RaidLevel::Striped {
                        let place = layout.place_of(stripe, node);
                        assert_eq!(layout.pipeline_node(stripe, place), node);
                    }
                }
            }
        }
    }
}
