//! How people compare certificates.

use crate::hash::sha256;
use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate, written as `openssl x509 -fingerprint -sha256` and browsers do: `AB:CD:...`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// A text is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 32 bytes in hexadecimal (AB:CD:...), as `frontdesk serve --setup` prints it")]
pub struct NoFingerprint;

impl Fingerprint {
    /// That of a certificate in DER.
    pub(crate) fn of(certificate: &[u8]) -> Fingerprint {
        Fingerprint(sha256(certificate))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(formatter, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Fingerprint, NoFingerprint> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|letter| *letter != ':')
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()).ok_or(NoFingerprint))
            .collect::<Result<_, _>>()?;
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
        let even = digits.len().is_multiple_of(2);
        bytes.try_into().ok().filter(|_| even).map(Fingerprint).ok_or(NoFingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_written_as_openssl_does() {
        let of_nothing = Fingerprint::of(b"");
        assert!(of_nothing.to_string().starts_with("E3:B0:C4:42:98:FC:1C:14:9A:FB:F4:C8:99:6F:B9:24:"));
        assert_eq!(of_nothing.to_string().parse(), Ok(of_nothing));
        assert_eq!(of_nothing.to_string().replace(':', "").to_lowercase().parse(), Ok(of_nothing));
        for wrong in ["", "AB", &"A".repeat(63), &"AB".repeat(33), "ä"] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(NoFingerprint));
        }
    }

    proptest! {
        #[test]
        fn fuzz_fingerprints(text in "[0-9a-zA-Z:]{0,100}|\\PC{0,70}") {
            if let Ok(fingerprint) = text.parse::<Fingerprint>() {
                prop_assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
            }
        }
    }
}
