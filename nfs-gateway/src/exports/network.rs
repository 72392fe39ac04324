//! Networks of clients.

use std::net::IpAddr;
use std::str::FromStr;

/// A set of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum ClientNetwork {
    /// All addresses, and peers without one.
    Any,
    /// The addresses with the prefix of `address`.
    Prefix {
        /// The address; the bits after the prefix are zero.
        address: IpAddr,
        /// Bits of the prefix.
        length_bits: u8,
    },
}

/// The bits of `address`, left-aligned, and their number.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The first `length_bits` bits of `all`.
fn head(all: u128, length_bits: u8) -> u128 {
    all.checked_shr(128 - u32::from(length_bits)).unwrap_or(0)
}

impl ClientNetwork {
    /// The network of a valid prefix.
    pub(super) fn of(address: IpAddr, length_bits: u8) -> Self {
        Self::Prefix { address, length_bits }
    }

    /// Does it contain `ip`?
    pub(crate) fn contains(&self, ip: Option<IpAddr>) -> bool {
        match (self, ip) {
            (Self::Any, _) => true,
            (Self::Prefix { .. }, None) => false,
            (Self::Prefix { address, length_bits }, Some(ip)) => {
                let ((net, width), (ip, ip_width)) = (bits(*address), bits(ip));
                width == ip_width && head(net, *length_bits) == head(ip, *length_bits)
            }
        }
    }
}

impl std::fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix { address, length_bits } => write!(f, "{address}/{length_bits}"),
        }
    }
}

impl FromStr for ClientNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no network; write 10.1.0.0/16, fd00::/8 or one address");
        if text == "*" {
            return Ok(Self::Any);
        }
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (all, width) = bits(address);
        let length_bits: u8 = length.map_or(Ok(width), str::parse).map_err(|_| wrong())?;
        if length_bits > width {
            return Err(format!("`{text}`: the prefix has at most {width} bits"));
        }
        if all.checked_shl(u32::from(length_bits)).unwrap_or(0) != 0 {
            return Err(format!("`{text}` has bits behind its prefix; set them to zero"));
        }
        Ok(Self::Prefix { address, length_bits })
    }
}

impl TryFrom<String> for ClientNetwork {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, ip: &str) -> bool {
        network.parse::<ClientNetwork>().unwrap().contains(Some(ip.parse().unwrap()))
    }

    #[test]
    fn a_prefix_holds_the_addresses_that_begin_as_it_does() {
        assert!(contains("10.1.0.0/16", "10.1.255.255"));
        assert!(!contains("10.1.0.0/16", "10.2.0.0"));
        assert!(contains("0.0.0.0/0", "255.1.2.3") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "fe80::1") && !contains("::/0", "10.0.0.1"));
        assert!(contains("fd00::/8", "fdff::1") && !contains("fd00::/8", "fe00::1"));
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(contains("2001:db8::1", "2001:db8::1") && contains("*", "::1"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in
            ["", "10.0.0.0/33", "10.0.0.1/8", "::1/129", "fd00::1/8", "host", "10.0.0.0/", "/8"]
        {
            assert!(text.parse::<ClientNetwork>().is_err(), "{text}");
        }
        let told = "10.1.0.0/16".parse::<ClientNetwork>().unwrap().to_string();
        assert_eq!(told, "10.1.0.0/16");
    }
}
