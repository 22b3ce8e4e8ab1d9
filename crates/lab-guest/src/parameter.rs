//! Kernel parameters, by which the lab tells a guest what it has.

use frontdesk_lab_guest::IP_PARAMETER;
use std::io;
use std::net::Ipv4Addr;

/// Why a parameter could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("reading the kernel's parameters from /proc/cmdline: {0}")]
    Read(#[from] io::Error),
    #[error("kernel parameter {IP_PARAMETER}={0}: must be ADDRESS/PREFIX, like 10.77.0.2/24")]
    Address(String),
}

/// Value of a parameter, if it is set.
pub(crate) fn value(name: &str) -> Result<Option<String>, ParameterError> {
    Ok(find(&std::fs::read_to_string("/proc/cmdline")?, name).map(str::to_owned))
}

fn find<'a>(cmdline: &'a str, name: &str) -> Option<&'a str> {
    cmdline.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// An address of the guest, and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: Ipv4Addr,
    /// Length of the network's prefix, at most 32.
    pub(crate) prefix: u8,
}

impl Address {
    /// What the lab gave this guest.
    pub(crate) fn of_guest() -> Result<Option<Address>, ParameterError> {
        value(IP_PARAMETER)?.map(|value| Address::parse(&value)).transpose()
    }

    fn parse(value: &str) -> Result<Address, ParameterError> {
        value
            .split_once('/')
            .and_then(|(ip, prefix)| Some(Address { ip: ip.parse().ok()?, prefix: prefix.parse().ok()? }))
            .filter(|address| address.prefix <= 32)
            .ok_or_else(|| ParameterError::Address(value.to_owned()))
    }

    pub(crate) fn netmask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// The first address of the network, which is the host's.
    pub(crate) fn host(self) -> Ipv4Addr {
        Ipv4Addr::from_bits((self.ip & self.netmask()).to_bits().saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        let cmdline = "quiet frontdesk.data2=vdc frontdesk.data=vda panic=-1\n";
        assert_eq!(find(cmdline, "frontdesk.data"), Some("vda"));
        assert_eq!(find(cmdline, "panic"), Some("-1"));
        assert_eq!(find(cmdline, "quiet"), None);
        assert_eq!(find(cmdline, "frontdesk"), None);
    }

    #[test]
    fn addresses_tell_the_host() {
        let address = Address::parse("10.77.3.2/24").unwrap();
        assert_eq!(address, Address { ip: Ipv4Addr::new(10, 77, 3, 2), prefix: 24 });
        assert_eq!(address.netmask(), Ipv4Addr::new(255, 255, 255, 0));
        assert_eq!(address.host(), Ipv4Addr::new(10, 77, 3, 1));
        assert_eq!(Address::parse("10.0.0.9/0").unwrap().netmask(), Ipv4Addr::UNSPECIFIED);
        for wrong in ["10.77.0.2", "10.77.0/24", "10.77.0.2/33", "10.77.0.2/-1", "/"] {
            let error = Address::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("={wrong}:")), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn fuzz_command_lines(cmdline in "((frontdesk\\.(ip|data)|quiet|=|[0-9./]{0,20}|\\PC) ?){0,12}") {
            for name in [frontdesk_lab_guest::IP_PARAMETER, frontdesk_lab_guest::DATA_PARAMETER] {
                if let Some(address) = find(&cmdline, name).and_then(|value| Address::parse(value).ok()) {
                    proptest::prop_assert!(address.prefix <= 32);
                    let _ = (address.netmask(), address.host());
                }
            }
        }
    }
}
