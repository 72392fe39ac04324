//! ACCESS.

use fileio::protocol::{Attributes, Credentials, GetAttributes, Kind};
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    ACCESS3resfail, ACCESS3resok,
};

use super::asker::{Asker, pack, take_handle};
use crate::xdr::{Arguments, Body, Fault};
use fileio::protocol::access::{EXECUTE, READ, WRITE};

//= rfc1813 3.3.4
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let object = take_handle(&mut arguments)?;
    let wanted = arguments.take::<u32>()?;
    arguments.finish()?;
    let attributes = match asker.file(&object) {
        Ok(file) => asker.ask(GetAttributes { file }).await,
        Err(status) => Err(status),
    };
    pack(match attributes {
        Ok(attributes) => Ok(ACCESS3resok {
            obj_attributes: asker.told(&attributes),
            access: wanted & granted(&attributes, &asker.who(), asker.may_write()),
        }),
        Err(status) => Err((status, ACCESS3resfail::default())),
    })
}

/// All that `who` may do, of what makes sense for this kind of object.
pub(crate) fn granted(attributes: &Attributes, who: &Credentials, may_write: bool) -> u32 {
    let directory = attributes.kind == (Kind::Directory {});
    let (by_write, by_execute) = if directory {
        (ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE, ACCESS3_LOOKUP)
    } else {
        (ACCESS3_MODIFY | ACCESS3_EXTEND, ACCESS3_EXECUTE)
    };
    let rights = [(READ, ACCESS3_READ), (WRITE, by_write), (EXECUTE, by_execute)];
    let held = rights
        .iter()
        .filter(|(mode, _)| (may_write || *mode != WRITE) && attributes.permits(who, *mode));
    held.fold(0, |granted, (_, access)| granted | access)
}
