//! Where this machine gets Debian's packages: from APT's own mirrors, by its proxies.

use crate::command::{self, CommandError};
use std::process::Command;

/// What follows a release's name in its suites: the release itself, its updates and its security fixes.
const SUITES: [&str; 3] = ["", "-updates", "-security"];

/// Where packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    uri: String,
    pub(super) suite: String,
}

impl Mirror {
    /// A line of a list of APT sources.
    pub(super) fn line(&self, kind: &str) -> String {
        format!("{kind} {} {} main", self.uri, self.suite)
    }
}

/// Where this machine gets the packages of the release called `own`, with the suites of the `wanted` one.
pub(super) fn mirrors(own: &str, wanted: &str) -> Result<Vec<Mirror>, CommandError> {
    let mut lines = Vec::new();
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    command::run(&mut command, |line| lines.push(line.to_owned()))?;
    Ok(debian_mirrors(own, wanted, &lines))
}

/// The same, from lines with an address, a suite and a component.
fn debian_mirrors(own: &str, wanted: &str, lines: &[String]) -> Vec<Mirror> {
    let mut mirrors = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [uri, suite, "main"] = words[..] else { continue };
        let Some(part) = suite.strip_prefix(own) else { continue };
        let mirror = Mirror { uri: uri.to_owned(), suite: format!("{wanted}{part}") };
        // Once for each architecture.
        if SUITES.contains(&part) && !mirrors.contains(&mirror) {
            mirrors.push(mirror);
        }
    }
    mirrors
}

/// The proxies that APT uses on this machine, as lines of its configuration.
pub(super) fn proxies() -> Result<Vec<String>, CommandError> {
    let mut proxies = Vec::new();
    command::run(Command::new("apt-config").arg("dump"), |line| {
        let is_proxy = |name: &str| name.starts_with("Acquire::http") && name.contains("::Proxy");
        if line.split_once(' ').is_some_and(|(name, _)| is_proxy(name)) {
            proxies.push(line.to_owned());
        }
    })?;
    Ok(proxies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_those_of_the_release() {
        let lines = [
            "http://mirror.example/debian/ bookworm main",
            "http://mirror.example/debian/ bookworm main",
            "http://mirror.example/debian/ bookworm contrib",
            "http://mirror.example/debian/ bookworm-backports main",
            "https://other.example/apt/ cloud-sdk-bookworm main",
            "http://mirror.example/security/ bookworm-security main",
            "W: a warning",
        ]
        .map(str::to_owned);
        for name in ["bookworm", "trixie"] {
            let mirrors: Vec<String> = debian_mirrors("bookworm", name, &lines)
                .iter()
                .map(|mirror| mirror.line("deb-src"))
                .collect();
            let wanted = [
                format!("deb-src http://mirror.example/debian/ {name} main"),
                format!("deb-src http://mirror.example/security/ {name}-security main"),
            ];
            assert_eq!(mirrors, wanted);
        }
    }
}
