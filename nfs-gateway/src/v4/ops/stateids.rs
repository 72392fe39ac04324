//! `TEST_STATEID` and `FREE_STATEID`.

use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::limits::TESTED_MAX;
use crate::v4::status::{OperationResult, Status};
use crate::v4::types::Stateid;

//= rfc8881 18.48
pub(super) fn test(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let count = xdr.arguments.take::<u32>()?;
    if count > TESTED_MAX {
        return Err(Status::BADXDR.into());
    }
    xdr.out.u32(count);
    for _ in 0..count {
        let stateid = Stateid::take(&mut xdr.arguments)?;
        let (client, leases) =
            compound.slot().map(|session| (session.client, session.leases.clone()))?;
        let tables = compound.state().tables();
        let status = match tables.states.find(client, &stateid) {
            Ok(number) => match tables.states.open_file(number) {
                Ok((file, _))
                    if tables.states.is_of_locks(number) && leases.has_lost_locks(file) =>
                {
                    Status::EXPIRED
                }
                Ok(_) => Status::OK,
                Err(status) => status,
            },
            Err(status) => status,
        };
        xdr.out.u32(status.0);
    }
    Ok(())
}

//= rfc8881 18.38
pub(super) fn free(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = compound.resolve_stateid(Stateid::take(&mut xdr.arguments)?)?;
    let leases = compound.slot()?.leases.clone();
    compound.tables(|tables, client| {
        let number = tables.states.find(client, &stateid)?;
        let file = tables.states.open_file(number);
        let is_lost = file.is_ok_and(|(file, _)| leases.has_lost_locks(file));
        tables.states.free(number, is_lost)
    })?;
    Ok(())
}
