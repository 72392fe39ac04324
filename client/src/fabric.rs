//! Which providers of libfabric a client uses besides TCP.

use std::str::FromStr;

use transport::fabric::unknown_provider;

pub use transport::fabric::Provider;

/// What a client wants of libfabric. Servers of other hosts that offer a provider of the client's
/// get and send large data over it; all else goes over TCP, and without libfabric everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FabricWish {
    /// Nothing.
    #[default]
    Off,
    /// The networks that this host has; it is not told if it has none.
    Auto,
    /// These, the preferred one first. A host or a server without them is warned of.
    Of(Vec<Provider>),
}

impl FabricWish {
    /// Providers in the order in which they are offered, and whether it is told that there are
    /// none.
    pub(crate) fn providers(&self) -> (Vec<Provider>, bool) {
        match self {
            Self::Off => (Vec::new(), false),
            // Not shared memory: a client that is killed can leave a thread of the server spinning.
            Self::Auto => {
                use Provider::{Cxi, Efa, Tcp, Verbs};
                (vec![Cxi, Verbs, Efa, Tcp], false)
            }
            Self::Of(providers) => (providers.clone(), true),
        }
    }
}

impl FromStr for FabricWish {
    type Err = String;

    /// `off`, `auto`, or names of libfabric between commas.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let provider =
            |name| Provider::of_name(name).ok_or_else(|| format!("it {}", unknown_provider(name)));
        text.split(',').map(provider).collect::<Result<_, _>>().map(Self::Of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_named_between_commas() {
        assert_eq!("off".parse(), Ok(FabricWish::Off));
        assert_eq!("auto".parse(), Ok(FabricWish::Auto));
        let two = FabricWish::Of(vec![Provider::Verbs, Provider::Tcp]);
        assert_eq!("verbs;ofi_rxm,tcp;ofi_rxm".parse(), Ok(two));
        for wrong in ["", "tcp", "auto,shm", "shm,"] {
            assert!(wrong.parse::<FabricWish>().is_err(), "{wrong}");
        }
    }
}
