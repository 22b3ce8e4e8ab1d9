//! The guests' kernel and system.

use crate::allowed::{Violation, is_name, period, quoted, require, seconds};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The guests' kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// A Debian package series ("6.1-cloud", "6.12-cloud"), or what contains a `/`: the path of a kernel
    /// image, with `modules`.
    pub kernel: String,
    /// Folder with the modules of a kernel given by path (`lib/modules/RELEASE`); only beside one.
    pub modules: Option<PathBuf>,
    /// Shortest time slice of the guests' scheduler; the kernel's own if left out. 100 us to 1 s.
    ///
    /// An emulated guest does not hear of the time in which it does not run. Its scheduler believes that a
    /// task has used up its slice when the VM comes back, and changes tasks each time the host changes VMs.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<Duration>,
    /// The Debian system that VMs with `debian = true` have.
    pub debian: Option<Debian>,
}

impl Guest {
    /// Major and minor version of the kernel, if its name or that of its modules' folder begins with them.
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32)> {
        let release = self.modules.as_deref().and_then(|folder| folder.file_name()?.to_str());
        let mut numbers = release.unwrap_or(&self.kernel).split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    pub(crate) fn validate(&self) -> Result<(), Violation> {
        let kernel = &self.kernel;
        let by_path = kernel.contains('/');
        let allowed = "a package series such as \"6.1-cloud\", or the path of a kernel image (with a `/`)";
        require(by_path || is_series(kernel), "guest.kernel", quoted(kernel), allowed)?;
        let modules = self.modules.as_ref().map(|folder| quoted(&folder.display().to_string()));
        let allowed = "the folder with the modules of a kernel given by path, and only beside one";
        let found = modules.as_deref().unwrap_or("nothing");
        require(modules.is_some() == by_path, "guest.modules", found, allowed)?;
        if let Some(slice) = self.time_slice {
            period("guest.time_slice", slice, Duration::from_micros(100)..=seconds(1))?;
        }
        let Some(debian) = &self.debian else { return Ok(()) };
        for (key, names) in [("packages", &debian.packages), ("sources", &debian.sources)] {
            let allowed = "the name of a Debian package: lower case letters, digits, `+`, `-` and `.`, at least two, the first a \
                           letter or digit";
            for (index, name) in names.iter().enumerate() {
                let key = format!("guest.debian.{key}.{index}");
                require(is_package(name), key, quoted(name), allowed)?;
            }
        }
        Ok(())
    }
}

/// A Debian 12 system, made once and kept in the user's cache folder. A VM's changes to it are gone when the
/// VM is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debian {
    /// Packages beside the essential ones.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Source packages, unpacked as /usr/src/NAME.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// MAJOR.MINOR-FLAVOUR.
fn is_series(kernel: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let Some((version, flavour)) = kernel.split_once('-') else { return false };
    let Some((major, minor)) = version.split_once('.') else { return false };
    number(major) && number(minor) && is_name(flavour)
}

fn is_package(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let usual = text.bytes().all(|byte| alphanumeric(byte) || b"+-.".contains(&byte));
    text.len() >= 2 && usual && text.bytes().next().is_some_and(alphanumeric)
}
