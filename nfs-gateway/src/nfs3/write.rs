//! WRITE and COMMIT.

use bytes::Bytes;
use fileio::protocol::{Commit, FILE_SIZE_MAX, Write, WriteResult};
use nfs3_types::nfs3::{
    COMMIT3resfail, COMMIT3resok, WRITE3resfail, WRITE3resok, nfsstat3, stable_how, writeverf3,
};

use super::asker::{Asker, changed, pack, take_handle, unchanged};
use crate::config::limits::TRANSFER_BYTES;
use crate::xdr::{Arguments, Body, Fault, first_bytes};

//= rfc1813 3.3.7
pub(super) async fn write(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let file = take_handle(&mut arguments)?;
    let offset = arguments.take::<u64>()?;
    let count = arguments.take::<u32>()?;
    let stable = arguments.take::<stable_how>()?;
    let data = arguments.payload()?;
    if data.iter().map(Bytes::len).sum::<usize>() != count as usize {
        return Err(Fault::GarbageArguments);
    }
    //= rfc1813 3.3.7: more than wtmax: "the server may write only wtmax bytes"
    let count = count.min(TRANSFER_BYTES);
    let data = first_bytes(data, count as usize);

    let durable = stable != stable_how::UNSTABLE;
    pack(match write_bytes(asker, &file, offset, data, durable).await {
        Ok(WriteResult { attributes, write_verifier, before }) => Ok(WRITE3resok {
            file_wcc: changed(before, asker.told(&attributes)),
            count,
            committed: if durable { stable_how::FILE_SYNC } else { stable_how::UNSTABLE },
            verf: verifier(write_verifier),
        }),
        Err(status) => Err((status, WRITE3resfail { file_wcc: asker.wcc(&file, false).await })),
    })
}

async fn write_bytes(
    asker: &Asker,
    file: &Bytes,
    offset: u64,
    data: Vec<Bytes>,
    durable: bool,
) -> Result<WriteResult, nfsstat3> {
    let file = asker.file(file)?;
    let length = data.iter().map(Bytes::len).sum::<usize>() as u64;
    if offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(nfsstat3::NFS3ERR_FBIG);
    }
    asker.ask(Write { who: asker.who(), file, offset, data, durable }).await
}

//= rfc1813 3.3.21: offset and count say what must be committed; we commit the whole file, as
//= "count is 0" would ask
pub(super) async fn commit(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let file = take_handle(&mut arguments)?;
    let _offset = arguments.take::<u64>()?;
    let _count = arguments.take::<u32>()?;
    arguments.finish()?;
    let committed = match asker.file(&file) {
        Ok(file) => asker.ask(Commit { file }).await,
        Err(status) => Err(status),
    };
    pack(match committed {
        Ok(WriteResult { attributes, write_verifier, .. }) => Ok(COMMIT3resok {
            file_wcc: unchanged(asker.told(&attributes)),
            verf: verifier(write_verifier),
        }),
        Err(status) => Err((status, COMMIT3resfail { file_wcc: asker.wcc(&file, false).await })),
    })
}

//= rfc1813 3.3.7: the client compares it with those of its unstable writes, and sends again what has
//= another one; here each file has its own
fn verifier(write_verifier: u64) -> writeverf3 {
    writeverf3(write_verifier.to_be_bytes())
}
