//! GETATTR.

use fileio::protocol::GetAttributes;
use nfs3_types::nfs3::GETATTR3resok;
use nfs3_types::xdr_codec::Void;

use super::asker::{Asker, pack, take_handle};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.1
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let object = take_handle(&mut arguments)?;
    arguments.finish()?;
    let attributes = match asker.file(&object) {
        Ok(file) => asker.ask(GetAttributes { file }).await,
        Err(status) => Err(status),
    };
    pack(match attributes {
        Ok(attributes) => {
            let obj_attributes = asker.volume().fattr(&attributes);
            Ok(GETATTR3resok { obj_attributes })
        }
        Err(status) => Err((status, Void)),
    })
}
