//! `TEST_STATEID` and `FREE_STATEID`.

use crate::v4::compound::Compound;
use crate::v4::limits::TESTED_MAX;
use crate::v4::status::{OperationError, Status};
use crate::v4::types::Stateid;
use crate::xdr::{CallArguments, XdrEncoder};

//= rfc8881 18.48
pub(super) fn test(
    compound: &Compound<'_>,
    arguments: &mut CallArguments,
    out: &mut XdrEncoder,
) -> Result<(), OperationError> {
    let count = arguments.take::<u32>()?;
    if count > TESTED_MAX {
        return Err(Status::BADXDR.into());
    }
    out.u32(count);
    for _ in 0..count {
        let stateid = Stateid::take(arguments)?;
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
        out.u32(status.0);
    }
    Ok(())
}

//= rfc8881 18.38
pub(super) fn free(
    compound: &Compound<'_>,
    arguments: &mut CallArguments,
) -> Result<(), OperationError> {
    let stateid = Stateid::take(arguments)?;
    let leases = compound.slot()?.leases.clone();
    compound.tables(|tables, client| {
        let number = tables.states.find(client, &stateid)?;
        let (file, _) = tables.states.open_file(number)?;
        tables.states.free(number, leases.has_lost_locks(file))
    })?;
    Ok(())
}
