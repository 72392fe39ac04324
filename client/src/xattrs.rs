//! Extended attributes of the file at a path.

use fileio::protocol::{GetXattr, Handle, ListXattrs, RemoveXattr, SetXattr, handle_of};
use runtime::Spawn;

use crate::error::{Cause, Error};
use crate::session::ClientSession;
use crate::walk::FinalSymlink;
use crate::{Attributes, XattrMode, XattrName};

/// The extended attributes of a file; of a symbolic link's target.
#[derive(Clone, Debug)]
pub struct FileXattrs<S> {
    session: ClientSession<S>,
    path: Vec<u8>,
}

impl<S: Spawn> FileXattrs<S> {
    pub(crate) fn new(session: ClientSession<S>, path: &[u8]) -> Self {
        Self { session, path: path.to_vec() }
    }

    async fn file(&self) -> Result<Handle, Cause> {
        Ok(handle_of(&self.session.find(&self.path, FinalSymlink::Follow).await?))
    }

    async fn file_and_name(&self, name: impl AsRef<[u8]>) -> Result<(Handle, XattrName), Cause> {
        let name = XattrName::new(name.as_ref().to_vec())?;
        Ok((self.file().await?, name))
    }

    /// The value of an attribute.
    pub async fn get(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let value = async {
            let (file, name) = self.file_and_name(name).await?;
            self.session.ask(GetXattr { who: self.session.who(), file, name }).await
        };
        value.await.map_err(Error::of("read an extended attribute of", &self.path))
    }

    /// Sets an attribute, if it exists or not as `mode` requires.
    pub async fn set(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<Attributes, Error> {
        let set = async {
            let (file, name) = self.file_and_name(name).await?;
            let (who, call) = (self.session.who(), self.session.call());
            let value = value.as_ref().to_vec();
            self.session.ask(SetXattr { who, call, file, name, value, mode, durable: false }).await
        };
        set.await.map_err(Error::of("set an extended attribute of", &self.path))
    }

    /// The names of all attributes, in order.
    pub async fn list(&self) -> Result<Vec<XattrName>, Error> {
        let names = async {
            let file = self.file().await?;
            self.session.ask(ListXattrs { who: self.session.who(), file }).await
        };
        names.await.map_err(Error::of("list extended attributes of", &self.path))
    }

    /// Removes an attribute.
    pub async fn remove(&self, name: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        let removed = async {
            let (file, name) = self.file_and_name(name).await?;
            let (who, call) = (self.session.who(), self.session.call());
            self.session.ask(RemoveXattr { who, call, file, name, durable: false }).await
        };
        removed.await.map_err(Error::of("remove an extended attribute of", &self.path))
    }
}
