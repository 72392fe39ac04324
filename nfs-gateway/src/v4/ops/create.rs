//! CREATE: anything but regular files.

use fileio::protocol::{MakeNode, NewNode};

use super::{change_of, changed};
use crate::nfs3::check_target;
use crate::v4::attributes::{New, take_new};
use crate::v4::compound::Compound;
use crate::v4::here::name;
use crate::v4::once::What;
use crate::v4::status::{Failed, Status};
use crate::xdr::{Arguments, Out};

//= rfc8881 18.4
pub(super) async fn serve(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let node = take_node(arguments)?;
    let entry = arguments.opaque(usize::MAX)?;
    let new = take_new(arguments)?;
    let here = compound.here()?.clone();
    let name = name(entry)?;
    let New { which, change } = new?;
    let before = change_of(&here).await;
    let (who, call, directory) = (here.asker.who(), compound.call(What::File)?, here.file);
    let durable = here.asker.syncs();
    let request = MakeNode { who, call, directory, name, node: node?, change, durable };
    let made = here.asker.ask_once(request).await?;
    changed(&here, before).await.tell(out);
    which.tell(out);
    compound.go(here.beside(&made));
    Ok(())
}

/// `createtype4`; the inner error is about what it means.
fn take_node(arguments: &mut Arguments) -> Result<Result<NewNode, Status>, Failed> {
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
