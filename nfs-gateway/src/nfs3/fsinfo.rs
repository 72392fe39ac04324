//! FSSTAT, FSINFO and PATHCONF.

use bytes::Bytes;
use fileio::hash::partition_of;
use fileio::protocol::{Attributes, FILE_SIZE_MAX, GetSpace, LINKS_MAX, Space};
use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3resfail, FSINFO3resok,
    FSSTAT3resfail, FSSTAT3resok, PATHCONF3resfail, PATHCONF3resok, nfstime3,
};

use super::results::{attributes, pack, post_op_attr, take_handle};
use crate::call_context::CallContext;
use crate::limits::{FILE_BYTES_MIN, NAME_BYTES_MAX, TRANSFER_BYTES};
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult};

/// The preferred multiple of transfers: one block.
const TRANSFER_MULTIPLE_BYTES: u32 = 4096;
/// The preferred size of a READDIR reply.
const DIRECTORY_BYTES: u32 = 64 << 10;

fn only_handle(mut arguments: CallArguments) -> Result<Bytes, ProcedureError> {
    let handle = take_handle(&mut arguments)?;
    arguments.finish()?;
    Ok(handle)
}

//= rfc1813 3.3.18
pub(super) async fn fsstat(context: &CallContext, arguments: CallArguments) -> ProcedureResult {
    let root = only_handle(arguments)?;
    let found = match attributes(context, &root).await {
        Ok(attributes) => {
            let call = GetSpace { partition: partition_of(attributes.ino) };
            context.request(call).await.map(|space| (attributes, space))
        }
        Err(status) => Err(status),
    };
    pack(match found {
        Ok((attributes, space)) => Ok(space_reply(context, &attributes, space)),
        Err(status) => Err((status, FSSTAT3resfail::default())),
    })
}

fn space_reply(context: &CallContext, attributes: &Attributes, space: Space) -> FSSTAT3resok {
    let free_files = space.free_bytes / FILE_BYTES_MIN;
    FSSTAT3resok {
        obj_attributes: post_op_attr(context, attributes),
        tbytes: space.total_bytes,
        fbytes: space.free_bytes,
        abytes: space.available_bytes,
        tfiles: space.inodes.saturating_add(free_files),
        ffiles: free_files,
        afiles: free_files,
        invarsec: 0,
    }
}

//= rfc1813 3.3.19
pub(super) async fn fsinfo(context: &CallContext, arguments: CallArguments) -> ProcedureResult {
    let root = only_handle(arguments)?;
    pack(match attributes(context, &root).await {
        Ok(attributes) => Ok(FSINFO3resok {
            obj_attributes: post_op_attr(context, &attributes),
            rtmax: TRANSFER_BYTES,
            rtpref: TRANSFER_BYTES,
            rtmult: TRANSFER_MULTIPLE_BYTES,
            wtmax: TRANSFER_BYTES,
            wtpref: TRANSFER_BYTES,
            wtmult: TRANSFER_MULTIPLE_BYTES,
            dtpref: DIRECTORY_BYTES,
            maxfilesize: FILE_SIZE_MAX,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        }),
        Err(status) => Err((status, FSINFO3resfail::default())),
    })
}

//= rfc1813 3.3.20
pub(super) async fn pathconf(context: &CallContext, arguments: CallArguments) -> ProcedureResult {
    let handle = only_handle(arguments)?;
    pack(match attributes(context, &handle).await {
        Ok(attributes) => Ok(PATHCONF3resok {
            obj_attributes: post_op_attr(context, &attributes),
            linkmax: LINKS_MAX,
            name_max: NAME_BYTES_MAX,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }),
        Err(status) => Err((status, PATHCONF3resfail::default())),
    })
}
