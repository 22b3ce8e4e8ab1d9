//! A [`Protocol`], if any, as "tcp" or "udp".

use frontdesk_engine::Protocol;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

pub(crate) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

#[allow(clippy::ref_option, reason = "serde gives a reference to the field")]
pub(super) fn serialize<S: Serializer>(
    protocol: &Option<Protocol>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    protocol.map(name).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Protocol>, D::Error> {
    let name = String::deserialize(deserializer)?;
    match name.as_str() {
        "tcp" => Ok(Some(Protocol::Tcp)),
        "udp" => Ok(Some(Protocol::Udp)),
        _ => Err(D::Error::unknown_variant(&name, &["tcp", "udp"])),
    }
}
