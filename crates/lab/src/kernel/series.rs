//! What Debian calls its kernels.

/// A series of Debian's kernel packages, like 6.1-cloud.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// As in "6.1".
    pub(super) version: &'a str,
    /// As in "cloud".
    pub(super) flavour: &'a str,
}

impl<'a> Series<'a> {
    pub(super) fn parse(name: &'a str) -> Option<Series<'a>> {
        let (version, flavour) = name.split_once('-')?;
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (major, minor) = version.split_once('.')?;
        let plain = !flavour.is_empty() && flavour.bytes().all(|byte| byte.is_ascii_lowercase());
        (number(major) && number(minor) && plain).then_some(Series { name, version, flavour })
    }
}
