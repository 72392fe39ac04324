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

use super::compound::{Compound, OperationXdr};
use super::operation::Nfs4Operation;
use super::status::OperationResult;

/// Processes `operation`: takes its arguments, and encodes its result.
pub(super) async fn serve(
    compound: &mut Compound<'_>,
    operation: Nfs4Operation,
    xdr: &mut OperationXdr,
) -> OperationResult {
    use Nfs4Operation as Op;
    // Large futures are boxed, so that the future of a call is small.
    match operation {
        Op::Access => access::serve(compound, xdr).await,
        Op::Close => Box::pin(open::close(compound, xdr)).await,
        Op::Commit => Box::pin(data::commit(compound, xdr)).await,
        Op::Create => Box::pin(create::serve(compound, xdr)).await,
        Op::Getattr => attributes::get(compound, xdr).await,
        Op::Getfh => handles::get(compound, xdr),
        Op::Link => Box::pin(names::link(compound, xdr)).await,
        Op::Lock => Box::pin(locks::lock(compound, xdr)).await,
        Op::Lockt => Box::pin(locks::test(compound, xdr)).await,
        Op::Locku => Box::pin(locks::unlock(compound, xdr)).await,
        Op::Lookup => handles::look_up(compound, xdr).await,
        Op::Lookupp => Box::pin(handles::look_up_parent(compound)).await,
        Op::Nverify => Box::pin(attributes::verify(compound, xdr, false)).await,
        Op::Open => Box::pin(open::serve(compound, xdr)).await,
        Op::OpenDowngrade => open::downgrade(compound, xdr),
        Op::Putfh => handles::put(compound, xdr).await,
        Op::Putpubfh | Op::Putrootfh => Box::pin(handles::put_root(compound)).await,
        Op::Read => Box::pin(data::read(compound, xdr)).await,
        Op::Readdir => Box::pin(readdir::serve(compound, xdr)).await,
        Op::Readlink => Box::pin(names::read_link(compound, xdr)).await,
        Op::Remove => Box::pin(names::remove(compound, xdr)).await,
        Op::Rename => Box::pin(names::rename(compound, xdr)).await,
        Op::Restorefh => handles::restore(compound),
        Op::Savefh => handles::save(compound),
        Op::Secinfo => Box::pin(security::of_name(compound, xdr)).await,
        Op::Setattr => Box::pin(attributes::set(compound, xdr)).await,
        Op::Verify => Box::pin(attributes::verify(compound, xdr, true)).await,
        Op::Write => Box::pin(data::write(compound, xdr)).await,
        Op::BindConnToSession => session::bind(compound, xdr),
        Op::ExchangeId => session::exchange_id(compound, xdr),
        Op::CreateSession => session::create(compound, xdr),
        Op::DestroySession => session::destroy(compound, xdr),
        Op::FreeStateid => stateids::free(compound, xdr),
        Op::SecinfoNoName => Box::pin(security::of_current(compound, xdr)).await,
        Op::Sequence => session::sequence(compound, xdr),
        Op::TestStateid => stateids::test(compound, xdr),
        Op::DestroyClientid => session::destroy_client(compound, xdr),
        Op::ReclaimComplete => session::reclaim_complete(compound, xdr),
        Op::Allocate => Box::pin(holes::allocate(compound, xdr)).await,
        Op::Deallocate => Box::pin(holes::deallocate(compound, xdr)).await,
        Op::Seek => Box::pin(holes::seek(compound, xdr)).await,
    }
}
