//! The operations, one file per family.

mod access;
mod attributes;
mod create;
mod data;
mod handles;
mod holes;
mod locks;
mod names;
mod open;
mod readdir;
mod security;
mod session;
mod stateids;

use super::compound::Compound;
use super::operation::Nfs4Operation;
use super::status::OperationError;
use crate::xdr::{CallArguments, XdrEncoder};

/// Processes `operation`: takes its arguments, and encodes its result after the status.
pub(super) async fn serve(
    compound: &mut Compound<'_>,
    operation: Nfs4Operation,
    arguments: &mut CallArguments,
    out: &mut XdrEncoder,
) -> Result<(), OperationError> {
    use Nfs4Operation as Op;
    // Large futures are boxed, so that the future of a call is small.
    match operation {
        Op::Access => access::serve(compound, arguments, out).await,
        Op::Close => Box::pin(open::close(compound, arguments, out)).await,
        Op::Commit => Box::pin(data::commit(compound, arguments, out)).await,
        Op::Create => Box::pin(create::serve(compound, arguments, out)).await,
        Op::Getattr => attributes::get(compound, arguments, out).await,
        Op::Getfh => handles::get(compound, out),
        Op::Link => Box::pin(names::link(compound, arguments, out)).await,
        Op::Lock => Box::pin(locks::lock(compound, arguments, out)).await,
        Op::Lockt => Box::pin(locks::test(compound, arguments)).await,
        Op::Locku => Box::pin(locks::unlock(compound, arguments, out)).await,
        Op::Lookup => handles::look_up(compound, arguments).await,
        Op::Lookupp => Box::pin(handles::look_up_parent(compound)).await,
        Op::Nverify => Box::pin(attributes::verify(compound, arguments, false)).await,
        Op::Open => Box::pin(open::serve(compound, arguments, out)).await,
        Op::OpenDowngrade => open::downgrade(compound, arguments, out),
        Op::Putfh => handles::put(compound, arguments).await,
        Op::Putpubfh | Op::Putrootfh => Box::pin(handles::put_root(compound)).await,
        Op::Read => Box::pin(data::read(compound, arguments, out)).await,
        Op::Readdir => Box::pin(readdir::serve(compound, arguments, out)).await,
        Op::Readlink => Box::pin(names::read_link(compound, out)).await,
        Op::Remove => Box::pin(names::remove(compound, arguments, out)).await,
        Op::Rename => Box::pin(names::rename(compound, arguments, out)).await,
        Op::Restorefh => handles::restore(compound),
        Op::Savefh => handles::save(compound),
        Op::Secinfo => Box::pin(security::of_name(compound, arguments, out)).await,
        Op::Setattr => Box::pin(attributes::set(compound, arguments, out)).await,
        Op::Verify => Box::pin(attributes::verify(compound, arguments, true)).await,
        Op::Write => Box::pin(data::write(compound, arguments, out)).await,
        Op::BindConnToSession => session::bind(compound, arguments, out),
        Op::ExchangeId => session::exchange_id(compound, arguments, out),
        Op::CreateSession => session::create(compound, arguments, out),
        Op::DestroySession => session::destroy(compound, arguments),
        Op::FreeStateid => stateids::free(compound, arguments),
        Op::SecinfoNoName => Box::pin(security::of_current(compound, arguments, out)).await,
        Op::Sequence => session::sequence(compound, arguments, out),
        Op::TestStateid => stateids::test(compound, arguments, out),
        Op::DestroyClientid => session::destroy_client(compound, arguments),
        Op::ReclaimComplete => session::reclaim_complete(compound, arguments),
        Op::Allocate => Box::pin(holes::allocate(compound, arguments)).await,
        Op::Deallocate => Box::pin(holes::deallocate(compound, arguments)).await,
        Op::Seek => Box::pin(holes::seek(compound, arguments, out)).await,
    }
}
