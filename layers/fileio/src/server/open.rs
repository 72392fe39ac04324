//! Opening: finding or making a file and opening it, in one request of the client.

use meta::protocol::CallOutcome;
use runtime::protocol::Undelivered;

use super::base::or_again;
use super::call_requests::{CallIdRequest, attributes_after_repeat, made};
use super::names::{Names, handle_of};
use crate::client::ask;
use crate::protocol::{
    Attributes, CallId, Created, Error, Handle, Kind, Lookup, Open, OpenHandle, OpenNew,
    OpenedFile, OpenedNewFile,
};

impl CallIdRequest for OpenNew {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<OpenedNewFile, Error> {
        let created = names.create(&self.creation()).await?;
        match names.open_created(self.call, &created.attributes).await {
            Ok(lease) => Ok(OpenedNewFile { created, lease }),
            // The file may be there.
            Err(Error::Undelivered { .. }) => Err(Undelivered::Lost.into()),
            Err(error) => Err(error),
        }
    }

    async fn repeat(&self, names: &Names, outcome: CallOutcome) -> Result<OpenedNewFile, Error> {
        let file = made(outcome)?;
        let attributes =
            attributes_after_repeat(&names.base, file, Kind::File {}, &self.who).await?;
        let lease = names.open_created(self.call, &attributes).await?;
        Ok(OpenedNewFile { created: Created { attributes, new: true }, lease })
    }

    fn is_stored(answer: &OpenedNewFile) -> bool {
        answer.created.new
    }
}

impl Names {
    pub(super) async fn open(&self, request: Open) -> Result<OpenedFile, Error> {
        let Open { who, call, directory, name } = request;
        let lookup = Lookup { who, directory, name };
        let opened = self.look_up(&lookup, async |found| {
            let file = handle_of(&found);
            if found.kind == (Kind::File {}) {
                return ask(&self.base.context, OpenHandle::unjudged(call, file)).await;
            }
            Ok(OpenedFile { attributes: self.base.inode(file).await?.attributes, lease: 0 })
        });
        // However often a client opens a file, its node counts it once.
        or_again(opened.await)
    }

    async fn open_created(&self, call: CallId, created: &Attributes) -> Result<u64, Error> {
        let file = Handle { ino: created.ino, generation: created.generation };
        Ok(ask(&self.base.context, OpenHandle::unjudged(call, file)).await?.lease)
    }
}
