//! How clients cut large writes, of which they leave parts at the processes that store them.

use blockio::VolumeMap;
use blockio::redundancy::WideStripeShape;
use runtime::delivery::DepositUnit;

use crate::protocol::TRANSFER_MAX;

/// The unit of such writes: a wide stripe, so that one process has all that its parity is made of;
/// the usual one where no file has wide stripes, or a write cannot have all of one.
pub fn deposit_unit(map: &VolumeMap) -> DepositUnit {
    let shape = map.redundancy().wide_stripes();
    let unit = shape.map(|WideStripeShape { data, parity }| DepositUnit {
        chunk: map.geometry().stripe_size,
        chunks: data,
        parity,
    });
    unit.filter(|unit| unit.bytes() <= u64::from(TRANSFER_MAX)).unwrap_or_default()
}
