//! `TEST_STATEID` and `FREE_STATEID`.

use crate::v4::compound::Compound;
use crate::v4::limits::TESTED_MAX;
use crate::v4::status::{Failed, Status};
use crate::v4::words::Stateid;
use crate::xdr::{Arguments, Out};

//= rfc8881 18.48
pub(super) fn test(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let count = arguments.take::<u32>()?;
    if count > TESTED_MAX {
        return Err(Status::BADXDR.into());
    }
    out.u32(count);
    for _ in 0..count {
        let stateid = Stateid::take(arguments)?;
        let (client, leases) =
            compound.session().map(|session| (session.client, session.leases.clone()))?;
        let tables = compound.kept().tables();
        let status = match tables.find(client, &stateid) {
            Ok(number) => match tables.opened(number) {
                Ok((file, _)) if tables.is_of_locks(number) && leases.has_lost_locks(file) => {
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
pub(super) fn free(compound: &Compound<'_>, arguments: &mut Arguments) -> Result<(), Failed> {
    let stateid = Stateid::take(arguments)?;
    let leases = compound.session()?.leases.clone();
    compound.tables(|tables, client| {
        let number = tables.find(client, &stateid)?;
        let (file, _) = tables.opened(number)?;
        tables.free(number, leases.has_lost_locks(file))
    })?;
    Ok(())
}
