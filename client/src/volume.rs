//! Opening a volume by its address.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use runtime::{ClientHandle, Spawn};
#[cfg(feature = "embedded")]
use volume::{RunOptions, RunningVolume, VolumeError};

use transport::tls::{ClientKeyError, ClientKeys};
use transport::{ClientFabric, ClientOptions, ClientSecurity, ServerAddress};
pub use transport::{Outage, Outages, TIMEOUT};

use crate::Credentials;
use crate::address::{BadVolumeAddress, VolumeAddress};
use crate::blocking::{Volume, random_session};
use crate::fabric::FabricWish;
use crate::wide::WideMode;

/// The socket at which a server answers, in the volume's directory.
pub const SOCKET_NAME: &str = "mdfs.sock";

/// The environment variable with the path of a token file.
pub const TOKEN_VARIABLE: &str = "MDFS_TOKEN";

/// With the value 1 clients without token and certificate connect unprotected, to servers that run
/// with `--insecure`.
pub const INSECURE_VARIABLE: &str = "MDFS_INSECURE";

/// The environment variable with the mode over links with delay: `off`, `auto`, `on` or `thesis`.
/// Another value is as none.
pub const WIDE_VARIABLE: &str = "MDFS_WIDE";

/// The environment variable with what the client wants of libfabric: `off`, `auto`, or providers
/// between commas. Another value is as none.
pub const FABRIC_VARIABLE: &str = "MDFS_FABRIC";

/// The environment variable with who makes the parity of large writes: `servers` or `client`.
/// Another value is as none.
pub const PARITY_VARIABLE: &str = "MDFS_PARITY";

/// Who makes the parity of large writes to a volume with wide stripes that several processes serve.
/// What is stored is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParityMaker {
    /// The process that stores a wide stripe: each byte crosses the client's link once.
    #[default]
    Servers,
    /// The client: its link carries the parity too, and servers have less to compute.
    Client,
}

impl ParityMaker {
    /// The names of all, for people.
    pub const NAMES: [(&'static str, Self); 2] =
        [("servers", Self::Servers), ("client", Self::Client)];

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, maker)| maker)
    }
}

/// A volume could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open volume {address}: {cause}")]
pub struct OpenError {
    /// Where the volume should be.
    pub address: VolumeAddress,
    /// Why.
    pub cause: OpenCause,
}

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCause {
    /// There is no such directory.
    #[error("no such directory; make a volume with `mdfs format`")]
    NoDirectory,
    /// The server's answer makes no sense, or the socket may not be used.
    #[error("its server cannot be asked: {0}; check that it is yours and of the same version")]
    Unusable(#[source] io::Error),
    /// No server serves it, and this client has none built in (feature `embedded`).
    #[error("it is not served: {0}; start `mdfs serve`")]
    NotServed(#[source] io::Error),
    /// It is not served, and this process cannot open it either.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Stack(#[from] VolumeError),
    /// This process does not know who it is.
    #[error("who asks is not known: {0}")]
    NoCredentials(#[source] io::Error),
    /// The address makes no sense.
    #[error(transparent)]
    BadAddress(#[from] BadVolumeAddress),
    /// No server of another host has answered.
    #[error(
        "no server can be reached: {0}; check the address, that `mdfs serve --listen` or \
         `mdfs cluster serve` runs there, and that a token or host certificate is given (`--token`)"
    )]
    NotReached(#[source] io::Error),
    /// The server does not let this client in.
    #[error("its server refuses this client: {0}")]
    Refused(#[source] io::Error),
    /// The client has nothing to prove who it is.
    #[error(
        "there is no token and no host certificate: make one where the volume is served \
         (`mdfs token create`) and give it with `--token` or {TOKEN_VARIABLE}; or set \
         {INSECURE_VARIABLE}=1 if the servers run with --insecure"
    )]
    NoKeys,
    /// All users of a host would act as the one of a token.
    #[error(
        "a token speaks for one user, so a mount for all users of this host (--allow-other) needs \
         the certificate of the host: `mdfs cluster certify --client`"
    )]
    TokenForAll,
    /// The token or the certificate of this host cannot be used.
    #[error(transparent)]
    Keys(#[from] ClientKeyError),
}

impl OpenCause {
    /// The POSIX number of the error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDirectory => libc::ENOENT,
            Self::BadAddress(_) => libc::EINVAL,
            Self::Refused(_) | Self::Keys(_) | Self::NoKeys | Self::TokenForAll => libc::EACCES,
            Self::NotReached(cause) => cause.raw_os_error().unwrap_or(libc::ETIMEDOUT),
            #[cfg(feature = "embedded")]
            Self::Stack(_) => libc::EIO,
            Self::Unusable(cause) | Self::NotServed(cause) | Self::NoCredentials(cause) => {
                cause.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

/// How a client connects: as which user, with what to prove it, and how patiently.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The user.
    pub who: Credentials,
    /// A file with a user token and the certificate of its authority. Without one, the file
    /// `VOLUME.token` of the configuration folder is used, if it exists.
    pub token: Option<PathBuf>,
    /// A file with the certificate of this host and its key. Without one, the file `client.pem` of
    /// the configuration folder is used, if it exists.
    pub keys: Option<PathBuf>,
    /// How long a request waits for a server that is away; for ever if `None`.
    pub timeout: Option<Duration>,
    /// How it reads over links with delay to servers of other hosts. Through the socket of a server
    /// of this host, [`WideMode::Auto`] is [`WideMode::Off`].
    pub wide: WideMode,
    /// What it wants of libfabric, for servers of other hosts.
    pub fabric: FabricWish,
    /// Who makes the parity of large writes.
    pub parity: ParityMaker,
    /// Where the client shows which server it waits for. Give each client that is opened one of its
    /// own.
    pub outages: Outages,
}

impl ConnectOptions {
    /// As the user of this process, with what the environment names ([`TOKEN_VARIABLE`],
    /// [`WIDE_VARIABLE`], [`FABRIC_VARIABLE`], [`PARITY_VARIABLE`]) and a timeout of [`TIMEOUT`].
    pub fn of_this_process() -> io::Result<Self> {
        let who = crate::process::credentials()?;
        let token = env::var_os(TOKEN_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let wide = env::var(WIDE_VARIABLE).ok().and_then(|name| WideMode::from_name(&name));
        let wide = wide.unwrap_or_default();
        let fabric = env::var(FABRIC_VARIABLE).ok().and_then(|text| text.parse().ok());
        let fabric = fabric.unwrap_or_default();
        let parity = env::var(PARITY_VARIABLE).ok();
        let parity = parity.and_then(|name| ParityMaker::from_name(&name)).unwrap_or_default();
        let (keys, timeout, outages) = (None, Some(TIMEOUT), Outages::default());
        Ok(Self { who, token, keys, timeout, wide, fabric, parity, outages })
    }

    /// The token file for a volume, if there is one.
    pub fn token_file(&self, volume: &str) -> Option<PathBuf> {
        self.token.clone().or_else(|| in_configuration(&format!("{volume}.token")))
    }

    /// The file with the certificate of this host, if there is one.
    pub fn keys_file(&self) -> Option<PathBuf> {
        self.keys.clone().or_else(|| in_configuration("client.pem"))
    }
}

/// A file of the user's configuration folder, if it exists.
fn in_configuration(name: &str) -> Option<PathBuf> {
    let folder = configuration_folder(env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"))?;
    Some(folder.join(name)).filter(|path| path.exists())
}

/// `$XDG_CONFIG_HOME/mdfs`, else `$HOME/.config/mdfs`. Relative folders are ignored, as the XDG
/// base directory specification demands.
fn configuration_folder(
    configuration: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let configuration = configuration.and_then(absolute);
    let configuration =
        configuration.or_else(|| home.and_then(absolute).map(|home| home.join(".config")))?;
    Some(configuration.join("mdfs"))
}

/// Opens the volume in `directory` as the user of this process. See [`connect`].
pub fn open(directory: &Path) -> Result<Volume, OpenError> {
    connect_here(&VolumeAddress::from(directory))
}

/// Opens the volume at `address`, a directory or `mdfs://HOST[:PORT]/VOLUME`, as the user of this
/// process. See [`connect`].
pub fn open_address(address: impl AsRef<std::ffi::OsStr>) -> Result<Volume, OpenError> {
    let address = address.as_ref();
    let parsed = VolumeAddress::parse(address).map_err(|error| OpenError {
        address: VolumeAddress::Directory(address.into()),
        cause: error.into(),
    })?;
    connect_here(&parsed)
}

fn connect_here(address: &VolumeAddress) -> Result<Volume, OpenError> {
    let options = ConnectOptions::of_this_process().map_err(|error| OpenError {
        address: address.clone(),
        cause: OpenCause::NoCredentials(error),
    })?;
    connect(address, &options)
}

/// Opens a volume: through its servers, else, if it is in a directory of this host and with the
/// feature `embedded`, in this process, which then has it alone. [`Volume::finish`] it.
pub fn connect(address: &VolumeAddress, options: &ConnectOptions) -> Result<Volume, OpenError> {
    let opened = match (reach(address, options), address) {
        (Ok(client_handle), address) => {
            let is_near = matches!(address, VolumeAddress::Directory(_));
            let is_off = is_near && options.wide == WideMode::Auto;
            let mode = if is_off { WideMode::Off } else { options.wide };
            Ok(Volume::new(client_handle, options.who.clone()).reading_wide(mode))
        }
        (Err(OpenCause::NotServed(error)), VolumeAddress::Directory(directory)) => {
            open_unserved(directory, options.who.clone(), error)
        }
        (Err(cause), _) => Err(cause),
    };
    opened.map_err(|cause| OpenError { address: address.clone(), cause })
}

/// Connects to the servers of a volume, for clients that work by handle.
pub fn reach(address: &VolumeAddress, options: &ConnectOptions) -> Result<ClientHandle, OpenCause> {
    let (servers, client_options) = match address {
        VolumeAddress::Directory(directory) if !directory.is_dir() => {
            return Err(OpenCause::NoDirectory);
        }
        VolumeAddress::Directory(directory) => {
            let local = ServerAddress::Local(directory.join(SOCKET_NAME));
            (local, client_options(String::new(), ClientSecurity::None, options))
        }
        VolumeAddress::Remote { servers, volume } => {
            let security = security(volume, options)?;
            (ServerAddress::Tcp(servers.clone()), client_options(volume.clone(), security, options))
        }
    };
    let (providers, is_told) = options.fabric.providers();
    let fabric = ClientFabric::of(&servers, providers, is_told);
    let client_options = ClientOptions { fabric, ..client_options };
    let connected = transport::connect(&servers, client_options, random_session());
    if let Some(transfers) = connected.as_ref().ok().and_then(Spawn::transfers) {
        transfers.set_makes_parity(options.parity == ParityMaker::Client);
    }
    connected.map_err(|error| {
        match (error.kind(), address) {
            // Never served, or left behind by a server that crashed, or by one that has just
            // ended.
            (
                io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe,
                VolumeAddress::Directory(_),
            ) => OpenCause::NotServed(error),
            (io::ErrorKind::PermissionDenied, _) => OpenCause::Refused(error),
            (_, VolumeAddress::Directory(_)) => OpenCause::Unusable(error),
            (_, VolumeAddress::Remote { .. }) => OpenCause::NotReached(error),
        }
    })
}

fn client_options(
    volume: String,
    security: ClientSecurity,
    options: &ConnectOptions,
) -> ClientOptions {
    let program = env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let program = format!("{} {}", program.to_string_lossy(), crate::process::id());
    let outages = options.outages.clone();
    let timeout = options.timeout;
    ClientOptions { volume, program, security, timeout, outages, ..ClientOptions::default() }
}

/// A token, else the certificate of this host. Without either nothing is protected and no server
/// proves who it is, so the user must want that ([`INSECURE_VARIABLE`]).
fn security(volume: &str, options: &ConnectOptions) -> Result<ClientSecurity, OpenCause> {
    let is_insecure = env::var_os(INSECURE_VARIABLE).is_some_and(|value| value == "1");
    let keys = match (options.token_file(volume), options.keys_file()) {
        (Some(token), _) => ClientKeys::from_token_file(&token)?,
        (None, Some(keys)) => ClientKeys::from_host_file(&keys)?,
        (None, None) if is_insecure => return Ok(ClientSecurity::None),
        (None, None) => return Err(OpenCause::NoKeys),
    };
    Ok(ClientSecurity::Tls(Arc::new(keys)))
}

#[cfg(not(feature = "embedded"))]
fn open_unserved(_: &Path, _: Credentials, error: io::Error) -> Result<Volume, OpenCause> {
    Err(OpenCause::NotServed(error))
}

#[cfg(feature = "embedded")]
fn open_unserved(directory: &Path, who: Credentials, _: io::Error) -> Result<Volume, OpenCause> {
    let running = volume::open(directory, &RunOptions::default())?;
    Ok(Volume::holding(running.client_handle(), who, EmbeddedVolume(running)))
}

/// The machine of a volume that this process has opened itself.
#[cfg(feature = "embedded")]
#[derive(Debug)]
struct EmbeddedVolume(RunningVolume);

#[cfg(feature = "embedded")]
impl Drop for EmbeddedVolume {
    fn drop(&mut self) {
        if let Err(error) = self.0.flush() {
            tracing::error!(%error, "a volume was dropped, not finished, and its last data are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_folder_is_that_of_xdg() {
        let folder = |configuration: Option<&str>, home: Option<&str>| {
            configuration_folder(configuration.map(OsString::from), home.map(OsString::from))
        };
        let some = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(Some("/c"), Some("/h")), some("/c/mdfs"));
        assert_eq!(folder(None, Some("/h")), some("/h/.config/mdfs"));
        assert_eq!(folder(Some("relative"), Some("/h")), some("/h/.config/mdfs"));
        assert_eq!(folder(None, None), None);
    }

    #[test]
    fn a_token_of_the_caller_goes_before_that_of_the_folder() {
        let token = PathBuf::from("/somewhere/token");
        let who = Credentials::root();
        let wide = WideMode::Auto;
        let (token_file, outages) = (Some(token.clone()), Outages::default());
        let (keys, timeout, fabric) = (None, None, FabricWish::Off);
        let parity = ParityMaker::Servers;
        let options =
            ConnectOptions { who, token: token_file, keys, timeout, wide, fabric, parity, outages };
        assert_eq!(options.token_file("scratch"), Some(token));
    }
}
