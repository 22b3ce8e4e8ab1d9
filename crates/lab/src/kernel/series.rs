//! What Debian calls its kernels.

/// What the flavour is called that Debian has no name for.
const PLAIN: &str = "plain";

/// A series of Debian's kernel packages, like 6.1-cloud or 6.12-plain.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// As in "6.1".
    pub(super) version: &'a str,
    /// As in "cloud"; none is the plain one, for any machine.
    pub(super) flavour: Option<&'a str>,
}

impl<'a> Series<'a> {
    pub(super) fn parse(name: &'a str) -> Option<Series<'a>> {
        let (version, flavour) = name.split_once('-')?;
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (major, minor) = version.split_once('.')?;
        let letters = !flavour.is_empty() && flavour.bytes().all(|byte| byte.is_ascii_lowercase());
        let well_formed = number(major) && number(minor) && letters;
        let flavour = Some(flavour).filter(|flavour| *flavour != PLAIN);
        well_formed.then_some(Series { name, version, flavour })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_flavour_has_no_name_in_packages() {
        let flavour = |name| Series::parse(name).map(|series| (series.version.to_owned(), series.flavour));
        assert_eq!(flavour("6.12-plain"), Some(("6.12".to_owned(), None)));
        assert_eq!(flavour("7.3-cloud"), Some(("7.3".to_owned(), Some("cloud"))));
        assert_eq!(flavour("6.12-"), None);
    }
}
