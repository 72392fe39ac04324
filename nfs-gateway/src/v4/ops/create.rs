//! CREATE: all kinds but regular files.

use fileio::protocol::{MakeNode, NewNode, handle_of};

use crate::nested_exports;
use crate::nfs3::check_target;
use crate::v4::attributes::{NewAttributes, take_attributes};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::name;
use crate::v4::exactly_once::RemoveTarget;
use crate::v4::pseudo_fs;
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::xdr::CallArguments;

//= rfc8881 18.4
pub(super) async fn serve(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let node = take_node(&mut xdr.arguments)?;
    let entry = xdr.arguments.opaque(usize::MAX)?;
    let new = take_attributes(&mut xdr.arguments, compound.minor)?;
    let fh = compound.current_fh()?.clone();
    let name = name(entry)?;
    let (NewAttributes { which, change }, node) = (new?, node?);
    if node == (NewNode::Directory {}) {
        nested_exports::check_new_directory(&fh.context, fh.file, &name)?;
    } else {
        nested_exports::check_not_root(&fh.context, fh.file, &name)?;
    }
    let before = fh.change_attribute().await;
    let (who, call, directory) =
        (fh.context.credentials(), compound.call(RemoveTarget::File)?, fh.file);
    let durable = fh.context.is_sync();
    let request = MakeNode { who, call, directory, name: name.clone(), node, change, durable };
    let made = fh.context.request_once(request).await?;
    fh.change_info(before).await.encode(&mut xdr.out);
    which.encode(&mut xdr.out);
    compound.set_current(pseudo_fs::cross(&fh, Some(&name), handle_of(&made))?);
    Ok(())
}

/// Takes a `createtype4`; the inner error is about its values.
fn take_node(arguments: &mut CallArguments) -> Result<Result<NewNode, Status>, OperationError> {
    Ok(Ok(match arguments.take::<u32>()? {
        2 => NewNode::Directory {},
        3 => NewNode::BlockDevice { major: arguments.take()?, minor: arguments.take()? },
        4 => NewNode::CharDevice { major: arguments.take()?, minor: arguments.take()? },
        5 => {
            let target = arguments.opaque(usize::MAX)?;
            match check_target(&target) {
                Ok(()) => NewNode::Symlink { target: target.to_vec() },
                Err(status) => return Ok(Err(status.into())),
            }
        }
        6 => NewNode::Socket {},
        7 => NewNode::Fifo {},
        _ => return Err(Status::BADTYPE.into()),
    }))
}
