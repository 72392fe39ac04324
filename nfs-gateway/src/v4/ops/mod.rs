//! The operations, one file per family.

mod access;
mod attributes;
mod back_channel;
mod copy;
mod create;
mod data;
mod delegations;
mod handles;
mod holes;
mod locks;
mod names;
mod open;
mod readdir;
mod security;
mod session;
mod stateids;
mod xattrs;

use super::compound::{Compound, OperationXdr};
use super::operation::{Nfs4Operation, with_operations};
use super::status::OperationResult;

macro_rules! dispatch {
    ($($number:literal $name:ident $minor:literal $class:ident, $($function:ident)::+ $how:ident;)+) => {
        /// Processes `operation`: takes its arguments, and encodes its result.
        pub(super) async fn serve(
            compound: &mut Compound<'_>,
            operation: Nfs4Operation,
            xdr: &mut OperationXdr,
        ) -> OperationResult {
            match operation {
                $(Nfs4Operation::$name => dispatch!($how $($function)::+ (compound, xdr)),)+
            }
        }
    };
    (now $($function:ident)::+ ($($argument:ident),+)) => { $($function)::+($($argument),+) };
    (waits $($function:ident)::+ ($($argument:ident),+)) => { $($function)::+($($argument),+).await };
    // So that the future of a call is small.
    (boxed $($function:ident)::+ ($($argument:ident),+)) => { Box::pin($($function)::+($($argument),+)).await };
}
with_operations!(dispatch);
