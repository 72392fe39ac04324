//! Placement of requests (thesis section 2.5.4): by handle for files, by name for directory work.

pub use meta::hash::{ino_node, is_owner, name_node, owner};
pub use meta::partition::partition_of;

#[cfg(test)]
mod tests {
    use runtime::RequestInfo as _;
    use runtime::seed::Rng;
    use runtime::wire::Wire as _;

    use super::owner;
    use crate::protocol::Request;

    #[test]
    fn the_owners_of_sampled_requests_are_frozen() {
        let mut rng = Rng::new(1);
        let owners: Vec<u8> =
            (0..10_000).map(|_| owner(Request::sample(&mut rng).route(), 64).0 as u8).collect();
        assert_eq!(runtime::hash::xxh3(&owners), 6_583_162_683_127_459_203);
    }
}
