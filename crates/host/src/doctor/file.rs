//! Reading what the kernel and programs say.

use std::{fs, path::Path};

/// What a file holds, trimmed; `None` if there is no such file.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The first two numbers in a text such as `QEMU emulator version 10.0.2` or `6.18.44-amd64`.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let mut parts = text[from..].split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The third number as well, 0 if there is none.
pub(super) fn full_version(text: &str) -> Option<(u32, u32, u32)> {
    let (major, minor) = version(text)?;
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let third = text[from..].split(|c: char| !c.is_ascii_digit()).nth(2);
    Some((major, minor, third.and_then(|number| number.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)"), Some((10, 0)));
        assert_eq!(version("6.18.44-amd64"), Some((6, 18)));
        assert_eq!(version("none"), None);
        assert_eq!(version("7"), None);
        assert_eq!(full_version("6.18.44-fc-v657"), Some((6, 18, 44)));
        assert_eq!(full_version("6.12+deb13"), Some((6, 12, 0)));
        assert_eq!(full_version("7.0-rc1"), Some((7, 0, 0)));
    }
}
