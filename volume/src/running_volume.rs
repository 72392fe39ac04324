//! A volume that is open in this process.

use std::future::Future;
use std::sync::Arc;

use blockio::{Geometry, VolumeMap};
use fileio::protocol::{Error, FileIo, Flush};
use futures::executor::block_on;
use futures::future::join_all;
use runtime::embedded::Embedded;
use runtime::net::Address;
use runtime::protocol::Undelivered;
use runtime::{ClientHandle, Context, Epoch, NodeId};
#[cfg(feature = "cluster")]
use transport::Subtrees;
use transport::{ClientBudget, ClientCount, ClientPort};

use crate::boot;
use crate::directory::VolumeDirectory;
use crate::error::VolumeError;

/// A volume that is open in this process. Dropping it is like a crash; [`stop`](Self::stop) it.
#[derive(Debug)]
pub struct RunningVolume {
    pub(crate) machine: Embedded,
    pub(crate) map: VolumeMap,
    /// The number of the process; 0 if it is the only one.
    pub(crate) process: u32,
    /// What the clients of all listeners of the process may take together.
    pub(crate) client_budget: Arc<ClientBudget>,
    /// The clients of the socket.
    pub(crate) socket_clients: Arc<ClientCount>,
    /// It is only read: nothing has to be made durable.
    pub(crate) is_read_only: bool,
    // After the machine: the lock is given up last.
    pub(crate) directory: VolumeDirectory,
}

impl RunningVolume {
    /// The volume of one process.
    pub(crate) fn alone(
        machine: Embedded,
        map: VolumeMap,
        is_read_only: bool,
        directory: VolumeDirectory,
    ) -> Self {
        let (client_budget, socket_clients) = <(Arc<_>, Arc<_>)>::default();
        let process = 0;
        Self { machine, map, process, client_budget, socket_clients, is_read_only, directory }
    }

    /// A seat for an ordinary thread.
    pub fn client_handle(&self) -> ClientHandle {
        self.machine.client_handle()
    }

    /// What is fixed of the volume.
    pub fn geometry(&self) -> Geometry {
        self.map.geometry()
    }

    /// The disks of the volume.
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// The epoch in which it lives: for a volume of one process, that in which it was opened.
    pub fn epoch(&self) -> Epoch {
        self.machine.epoch()
    }

    /// The buffers that network, cache and disks share.
    pub fn pool(&self) -> &runtime::buffer::Pool {
        self.machine.pool()
    }

    /// Runs `work` on a node of its own inside the machine: a gateway, say.
    pub fn on_application<F: Future<Output: Send> + 'static>(
        &self,
        work: impl FnOnce(Context) -> F + Send + 'static,
    ) -> impl Future<Output = Result<F::Output, Undelivered>> + Send + 'static {
        self.machine.on_node(self.machine.application(), work)
    }

    /// Lets other processes of this host ask, at the socket in the volume's directory.
    pub fn answer_socket(&self) -> Result<(), VolumeError> {
        let address = Address::Unix(self.directory.socket());
        let (volume, name) = (self.map.volume(), self.directory.name());
        let (process, budget) = (self.process, self.client_budget.clone());
        let count = self.socket_clients.clone();
        let listening = self.on_application(move |context| async move {
            let listener = context.listen(&address).await?;
            let owner = rustix::process::geteuid().as_raw();
            let local = ClientPort::local(volume, name, process, owner);
            let port = ClientPort { budget, count, ..local };
            context.task(transport::serve::<FileIo>(context.clone(), listener, port));
            Ok::<_, std::io::Error>(())
        });
        Ok(block_on(listening)??)
    }

    /// The clients of [the socket](Self::answer_socket). A process that ends for good closes it
    /// first.
    pub fn socket_clients(&self) -> &ClientCount {
        &self.socket_clients
    }

    /// Lets clients of other hosts ask at `address` (`host:port`), under the name `name` of the
    /// volume; by default that of its directory. Returns where it really listens.
    #[cfg(feature = "cluster")]
    pub fn answer_clients(
        &self,
        address: &str,
        name: Option<&str>,
        guard: Arc<transport::Guard>,
    ) -> Result<Address, VolumeError> {
        let address = Address::Tcp(address.to_owned());
        let (volume, process) = (self.map.volume(), self.process);
        let budget = self.client_budget.clone();
        let name = name.map_or_else(|| self.directory.name(), str::to_owned);
        let listening = self.on_application(move |context| async move {
            let listener = context.listen(&address).await?;
            let address = listener.address();
            let authentication = crate::token_keys::authentication(&context);
            let local = ClientPort::local(volume, name, process, 0);
            let subtrees: Option<Box<dyn Subtrees<FileIo>>> =
                Some(Box::new(crate::VolumeSubtrees::of_this_host()));
            let port = ClientPort { authentication, guard, budget, subtrees, ..local };
            context.task(transport::serve::<FileIo>(context.clone(), listener, port));
            Ok::<_, std::io::Error>(address)
        });
        Ok(block_on(listening)??)
    }

    /// Makes everything durable, and the logs short.
    pub fn flush(&self) -> Result<(), VolumeError> {
        if self.is_read_only {
            return Ok(());
        }
        let client_handle = self.client_handle();
        let nodes = (0..self.geometry().fs_nodes).map(NodeId::fs);
        let flushed = nodes.map(|node| client_handle.spawn(node, Flush {}));
        let outcomes = block_on(join_all(flushed));
        outcomes.into_iter().collect::<Result<Vec<()>, Error>>().map_err(VolumeError::Flush)?;
        Ok(())
    }

    /// Makes everything durable and ends.
    pub fn stop(self) -> Result<(), VolumeError> {
        if self.is_read_only {
            return Ok(());
        }
        self.flush()?;
        boot::final_checkpoint(&self.machine, &self.geometry())
        // The machine ends when it is dropped.
    }
}

#[cfg(feature = "cluster")]
impl RunningVolume {
    pub(crate) fn of_cluster(
        machine: Embedded,
        map: VolumeMap,
        (process, client_budget): (u32, Arc<ClientBudget>),
        directory: VolumeDirectory,
    ) -> Self {
        Self { process, client_budget, ..Self::alone(machine, map, false, directory) }
    }

    pub(crate) fn machine(&self) -> &Embedded {
        &self.machine
    }

    /// Where a disk of the process is.
    pub(crate) fn path_of_disks(
        &self,
    ) -> std::sync::Arc<dyn Fn(blockio::DiskName) -> String + Send + Sync> {
        std::sync::Arc::new(self.directory.path_of_disks())
    }
}
