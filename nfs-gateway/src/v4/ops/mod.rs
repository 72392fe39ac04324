//! What each operation does: one file per family.

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

use fileio::protocol::GetAttributes;

use super::attributes::change;
use super::compound::Compound;
use super::here::Here;
use super::status::Failed;
use super::table::Operation;
use super::words::ChangeInfo;
use crate::xdr::{Arguments, Out};

/// Does `operation`: takes its arguments, and tells its result behind the status.
pub(super) async fn serve(
    compound: &mut Compound<'_>,
    operation: Operation,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    use Operation as Op;
    match operation {
        Op::Access => access::serve(compound, arguments, out).await,
        Op::Close => open::close(compound, arguments, out).await,
        Op::Commit => data::commit(compound, arguments, out).await,
        Op::Create => create::serve(compound, arguments, out).await,
        Op::Getattr => attributes::get(compound, arguments, out).await,
        Op::Getfh => handles::get(compound, out),
        Op::Link => names::link(compound, arguments, out).await,
        Op::Lock => locks::lock(compound, arguments, out).await,
        Op::Lockt => locks::test(compound, arguments).await,
        Op::Locku => locks::unlock(compound, arguments, out).await,
        Op::Lookup => handles::look_up(compound, arguments).await,
        Op::Lookupp => handles::look_above(compound).await,
        Op::Nverify => attributes::verify(compound, arguments, false).await,
        Op::Open => open::serve(compound, arguments, out).await,
        Op::OpenDowngrade => open::downgrade(compound, arguments, out),
        Op::Putfh => handles::put(compound, arguments).await,
        Op::Putpubfh | Op::Putrootfh => handles::put_root(compound).await,
        Op::Read => data::read(compound, arguments, out).await,
        Op::Readdir => readdir::serve(compound, arguments, out).await,
        Op::Readlink => names::read_link(compound, out).await,
        Op::Remove => names::remove(compound, arguments, out).await,
        Op::Rename => names::rename(compound, arguments, out).await,
        Op::Restorefh => handles::restore(compound),
        Op::Savefh => handles::save(compound),
        Op::Secinfo => security::of_name(compound, arguments, out).await,
        Op::Setattr => attributes::set(compound, arguments, out).await,
        Op::Verify => attributes::verify(compound, arguments, true).await,
        Op::Write => data::write(compound, arguments, out).await,
        Op::BindConnToSession => session::bind(compound, arguments, out),
        Op::ExchangeId => session::exchange(compound, arguments, out),
        Op::CreateSession => session::create(compound, arguments, out),
        Op::DestroySession => session::destroy(compound, arguments),
        Op::FreeStateid => stateids::free(compound, arguments),
        Op::SecinfoNoName => security::of_here(compound, arguments, out).await,
        Op::Sequence => session::sequence(compound, arguments, out),
        Op::TestStateid => stateids::test(compound, arguments, out),
        Op::DestroyClientid => session::destroy_client(compound, arguments),
        Op::ReclaimComplete => session::reclaim_complete(compound, arguments),
        Op::Allocate => holes::allocate(compound, arguments).await,
        Op::Deallocate => holes::deallocate(compound, arguments).await,
        Op::Seek => holes::seek(compound, arguments, out).await,
    }
}

/// The number that stands for the state of a directory; of one that is gone, zero.
async fn change_of(directory: &Here) -> u64 {
    let attributes = directory.asker.ask(GetAttributes { file: directory.file }).await;
    attributes.map_or(0, |attributes| change(&attributes))
}

/// What a directory was, and is now.
async fn changed(directory: &Here, before: u64) -> ChangeInfo {
    ChangeInfo { before, after: change_of(directory).await }
}
