//! The two versions, and their units of weight.

/// A weight in the units of `cpu.shares`: what a group has unless told otherwise.
pub const DEFAULT_WEIGHT: u32 = 1024;

const V1_RANGE: (u32, u32) = (2, 262_144);
const V2_RANGE: (u32, u32) = (1, 10_000);
/// The kernel's own rate: a weight of 100 is what 1024 shares are.
const SHARES_PER_100: u32 = 1024;

/// Version of a hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1: a hierarchy of the cpu controller's own.
    V1,
    /// Version 2: the unified hierarchy.
    V2,
}

impl Version {
    /// The least and the greatest weight that the version's file takes.
    #[must_use]
    pub fn weights(self) -> (u32, u32) {
        match self {
            Version::V1 => V1_RANGE,
            Version::V2 => V2_RANGE,
        }
    }

    /// From the units of `cpu.shares` to those of the version's file, rounded and clamped to its range.
    #[must_use]
    pub fn to_native(self, shares: u32) -> u32 {
        let native = match self {
            Version::V1 => shares,
            Version::V2 => scale(shares, 100, SHARES_PER_100),
        };
        let (least, most) = self.weights();
        native.clamp(least, most)
    }

    /// From the units of the version's file to those of `cpu.shares`.
    #[must_use]
    pub fn from_native(self, native: u32) -> u32 {
        match self {
            Version::V1 => native,
            Version::V2 => scale(native, SHARES_PER_100, 100),
        }
    }
}

/// `value * by / of`, rounded.
#[must_use]
pub fn scale(value: u32, by: u32, of: u32) -> u32 {
    let scaled = (u64::from(value) * u64::from(by) + u64::from(of / 2)) / u64::from(of);
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_keeps_the_default_and_the_ends() {
        assert_eq!(Version::V2.to_native(1024), 100);
        assert_eq!(Version::V2.from_native(100), 1024);
        assert_eq!(Version::V2.to_native(0), 1);
        assert_eq!(Version::V1.to_native(0), 2);
        assert_eq!(Version::V1.to_native(u32::MAX), 262_144);
        assert_eq!(scale(1024, 333, 1000), 341);
    }
}
