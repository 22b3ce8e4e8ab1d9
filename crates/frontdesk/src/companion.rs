//! Finds the files that come with the frontdesk program.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// A file that comes with frontdesk.
pub(crate) struct Companion {
    what: &'static str,
    /// Environment variable that names it instead.
    variable: &'static str,
    /// Where it may be, relative to the folder of the program.
    places: &'static [&'static str],
}

/// The program inside lab VMs; it must be linked statically.
pub(crate) const GUEST: Companion = Companion {
    what: "the lab's guest program",
    variable: "FRONTDESK_GUEST",
    places: &[
        "../x86_64-unknown-linux-gnu/release/frontdesk-lab-guest",
        "../lib/frontdesk/frontdesk-lab-guest",
    ],
};

/// The reporter, which is linked statically, too.
pub(crate) const REPORTER: Companion = Companion {
    what: "the guests' reporter",
    variable: "FRONTDESK_REPORTER",
    places: &[
        "../x86_64-unknown-linux-gnu/release/frontdesk-guest",
        "../share/frontdesk/guest/frontdesk-guest",
    ],
};

/// QEMU's plugin.
pub(crate) const PLUGIN: Companion = Companion {
    what: "the QEMU plugin",
    variable: "FRONTDESK_PLUGIN",
    places: &["libfrontdesk_tcg_plugin.so", "../lib/frontdesk/libfrontdesk_tcg_plugin.so"],
};

impl Companion {
    pub(crate) fn find(&self) -> anyhow::Result<PathBuf> {
        let Companion { what, variable, places } = self;
        if let Some(path) = std::env::var_os(variable) {
            let path = PathBuf::from(path);
            return path.canonicalize().with_context(|| format!("{what}: {variable} = {}", path.display()));
        }
        let program = own_program()?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        if let Some(path) = places.iter().find_map(|place| folder.join(place).canonicalize().ok()) {
            return Ok(path);
        }
        bail!(
            "{what} is not at {}. Build it with `make build`, or set {variable} to its path",
            places
                .iter()
                .map(|place| folder.join(place).display().to_string())
                .collect::<Vec<_>>()
                .join(" or ")
        )
    }
}

/// The path of this program, which is also the daemon's and the guardian's.
pub(crate) fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of this program")
}
