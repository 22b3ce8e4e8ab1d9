//! How taps and packets are named in maps, as `bpf/packet.h` lays it out.

pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;

/// Longest interface name, without the terminating zero (IFNAMSIZ - 1).
pub(crate) const NAME_MAX: usize = 15;

/// Taps of a VM; packets that come by more of them are not heard. A process can hold as many as it likes, and
/// is to leave room for others.
pub const MAX_TAPS: usize = 32;

/// Key of the map `taps` (struct tap_key), or `None` if no interface can have that name.
pub(crate) fn tap_key(netns: u32, name: &str) -> Option<[u8; 20]> {
    if name.is_empty() || name.len() > NAME_MAX || name.bytes().any(|b| b == 0) {
        return None;
    }
    let mut key = [0; 20];
    key[..4].copy_from_slice(&netns.to_ne_bytes());
    key[4..4 + name.len()].copy_from_slice(name.as_bytes());
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_names_no_interface_can_have() {
        assert!(tap_key(1, "").is_none());
        assert!(tap_key(1, "sixteen-letters-").is_none());
        assert!(tap_key(1, "a\0b").is_none());
        assert!(tap_key(1, "fifteen-letters").is_some());
    }

    proptest::proptest! {
        #[test]
        fn fuzz_interface_names(netns: u32, name in "\\PC{0,20}") {
            if let Some(key) = tap_key(netns, &name) {
                proptest::prop_assert!(key[4..].starts_with(name.as_bytes()));
                proptest::prop_assert_eq!(key[19], 0);
            }
        }
    }
}
