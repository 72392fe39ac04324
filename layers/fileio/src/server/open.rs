//! Opening: finding or making a file and holding it, in one request of the client.

use std::rc::Rc;

use meta::protocol::CallOutcome;
use runtime::protocol::Undelivered;

use super::FileServer;
use super::calls::{CallIdRequest, other_call};
use super::lookup::handle_of;
use crate::client::ask;
use crate::protocol::{
    Attributes, CallId, Create, Created, Credentials, Error, Handle, Kind, Lookup, Open,
    OpenHandle, OpenNew, OpenedFile, OpenedNewFile,
};

runtime::handlers! { FileServer;
    Open => |server, _, request| server.open(request).await;
}

impl CallIdRequest for OpenNew {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.open_new(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Made { ino, generation } => {
                server.reopen_created(self.call, Handle { ino, generation }, &self.who).await
            }
            CallOutcome::Done {} => other_call(),
        }
    }

    fn is_stored(answer: &Self::Reply) -> bool {
        answer.created.new
    }
}

impl FileServer {
    pub(super) async fn open(&self, request: Open) -> Result<OpenedFile, Error> {
        let Open { who, call, directory, name } = request;
        let lookup = Lookup { who, directory, name };
        self.look_up(&lookup, async |found| {
            let file = handle_of(&found);
            if found.kind == (Kind::File {}) {
                return ask(&self.context, OpenHandle { call, file }).await;
            }
            Ok(OpenedFile { attributes: self.inode(file).await?.attributes, lease: 0 })
        })
        .await
    }

    pub(super) async fn open_new(
        self: &Rc<Self>,
        request: &OpenNew,
    ) -> Result<OpenedNewFile, Error> {
        let OpenNew { who, call, directory, name, existing, change, durable } = request.clone();
        let create = Create { who, call, directory, name, existing, change, durable };
        let created = self.create(&create).await?;
        match self.open_created(call, &created.attributes).await {
            Ok(lease) => Ok(OpenedNewFile { created, lease }),
            // The file may be there.
            Err(Error::Undelivered { .. }) => Err(Undelivered::Lost.into()),
            Err(error) => Err(error),
        }
    }

    /// Holds what an [`OpenNew`] has made that was not heard of.
    pub(super) async fn reopen_created(
        &self,
        call: CallId,
        file: Handle,
        who: &Credentials,
    ) -> Result<OpenedNewFile, Error> {
        let attributes = self.attributes_after_repeat(file, Kind::File {}, who).await?;
        let lease = self.open_created(call, &attributes).await?;
        Ok(OpenedNewFile { created: Created { attributes, new: true }, lease })
    }

    async fn open_created(&self, call: CallId, created: &Attributes) -> Result<u64, Error> {
        let file = Handle { ino: created.ino, generation: created.generation };
        Ok(ask(&self.context, OpenHandle { call, file }).await?.lease)
    }
}
