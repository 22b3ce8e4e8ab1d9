//! Where a server is: `HOST`, `HOST:PORT`, `[IPV6]:PORT`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of a server unless another is named.
pub const DEFAULT_PORT: u16 = 9742;

/// The longest name of a host.
const MAX_NAME: usize = 253;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// A text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an address is HOST, HOST:PORT, or for IPv6 [ADDRESS]:PORT; the port is {DEFAULT_PORT} if none is given"
)]
pub struct NoAddress;

impl Address {
    /// Its name or number, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let is_v6 = |host: &str| host.parse::<Ipv6Addr>().is_ok();
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').filter(|(host, _)| is_v6(host)).ok_or(NoAddress)?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(NoAddress)?) })
        } else if is_v6(text) {
            (text, None)
        } else {
            text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
        };
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'.' | b'_');
        let known = is_v6(host) || (!host.is_empty() && host.len() <= MAX_NAME && host.bytes().all(is_name));
        let digits = |port: &&str| port.bytes().all(|digit| digit.is_ascii_digit());
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => Some(port).filter(digits).and_then(|port| port.parse().ok()).ok_or(NoAddress)?,
        };
        if !known || port == 0 {
            return Err(NoAddress);
        }
        Ok(Address { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_understood() {
        for (text, host, port) in [
            ("Host.example", "host.example", DEFAULT_PORT),
            ("host:1", "host", 1),
            ("192.0.2.1:65535", "192.0.2.1", 65535),
            ("::1", "::1", DEFAULT_PORT),
            ("[::1]", "::1", DEFAULT_PORT),
            ("[2001:db8::1]:99", "2001:db8::1", 99),
        ] {
            assert_eq!(text.parse(), Ok(Address { host: host.into(), port }), "{text}");
        }
        for text in [
            "",
            ":1",
            "host:",
            "host:0",
            "host:+1",
            "host:65536",
            "a b",
            "[x]:1",
            "[::1]1",
            "http://x",
            "a/b",
        ] {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_addresses(text in "\\PC{0,40}|\\[?[0-9a-f:]{0,20}\\]?(:[0-9]{0,6})?|[a-z.-]{0,20}:[0-9+-]{0,7}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
