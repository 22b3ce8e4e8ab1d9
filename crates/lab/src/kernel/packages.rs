//! Debian's kernel packages: found, downloaded and unpacked.

use super::error::{io_error, run};
use super::series::Series;
use super::{Kernel, KernelError};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite that has kernels newer than those that this machine's own package lists know. Packages from it
/// are unpacked for VMs and never installed.
const NEWER_SUITE: &str = "trixie-backports";
/// What signs Debian's suites.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Downloads the newest kernel of the series and unpacks it into a folder in `work`, which it returns.
pub(super) fn fetch(series: &Series<'_>, work: &Path) -> Result<PathBuf, KernelError> {
    let mut apt = Apt::default();
    let mut packages = apt.kernel(series)?;
    if packages.is_empty() {
        apt = Apt::newer(work)?;
        packages = apt.kernel(series)?;
    }
    if packages.is_empty() {
        let flavour = series.flavour.map(|flavour| format!("-{flavour}")).unwrap_or_default();
        let package = format!("linux-image-{}.*{flavour}-amd64", series.version);
        return Err(KernelError::NoPackage { series: series.name.to_owned(), package });
    }
    run(apt.command("apt-get").arg("download").args(packages).current_dir(work))?;
    let root = work.join("root");
    for entry in std::fs::read_dir(work).map_err(io_error(work))?.flatten() {
        if entry.path().extension() == Some(OsStr::new("deb")) {
            run(Command::new("dpkg").arg("-x").arg(entry.path()).arg(&root))?;
        }
    }
    let kernel = Kernel::in_package(&root)?;
    // What the package's installation would do.
    let (release, modules_root) = kernel.release_and_root()?;
    run(Command::new("depmod").arg("-b").arg(modules_root).arg(release))?;
    Ok(root)
}

/// A set of package lists.
#[derive(Default)]
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Lists of the newer suite only, kept in `work`, from the mirror that this machine uses. They are empty
    /// where it uses none that is known to have the suite.
    fn newer(work: &Path) -> Result<Apt, KernelError> {
        let targets = ["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"];
        let targets = run(Command::new("apt-get").args(targets))?;
        let mirror = targets.lines().find_map(|line| line.strip_prefix("Debian "));
        let Some(mirror) = mirror else { return Ok(Apt::default()) };
        let folder = work.join("apt");
        for lists in ["lists/partial", "cache/archives/partial"] {
            let lists = folder.join(lists);
            std::fs::create_dir_all(&lists).map_err(io_error(&lists))?;
        }
        let list = folder.join("sources.list");
        let line = format!("deb [signed-by={KEYRING}] {mirror} {NEWER_SUITE} main\n");
        std::fs::write(&list, line).map_err(io_error(&list))?;
        let apt = Apt {
            options: vec![
                format!("Dir::Etc::SourceList={}", list.display()),
                "Dir::Etc::SourceParts=/dev/null".to_owned(),
                format!("Dir::State::Lists={}", folder.join("lists").display()),
                format!("Dir::Cache={}", folder.join("cache").display()),
                "APT::Sandbox::User=root".to_owned(),
            ],
        };
        run(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command
    }

    /// The newest kernel image of the series, and the packages that hold its parts where it is made of
    /// several; nothing if the lists know none.
    fn kernel(&self, series: &Series<'_>) -> Result<Vec<String>, KernelError> {
        let version = escaped(series.version);
        let flavour = series.flavour.map(|flavour| format!("-{flavour}")).unwrap_or_default();
        let images = self.search(&format!(r"^linux-image-{version}\.[^ ]*[0-9]{flavour}-amd64$"))?;
        let Some(image) = newest(images.iter().map(String::as_str)) else { return Ok(Vec::new()) };
        let release = escaped(image.trim_start_matches("linux-image-"));
        let mut packages = self.search(&format!("^linux-(base|binary|modules)-{release}$"))?;
        packages.push(image.to_owned());
        Ok(packages)
    }

    /// Names of packages that match an extended regular expression.
    fn search(&self, pattern: &str) -> Result<Vec<String>, KernelError> {
        let found = run(self.command("apt-cache").args(["search", "--names-only", pattern]))?;
        Ok(found.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect())
    }
}

/// The part of a package's name, as a regular expression that matches just that.
fn escaped(name: &str) -> String {
    name.replace('.', r"\.").replace('+', r"\+")
}

/// The package with the highest version: its numbers compared one by one.
fn newest<'a>(packages: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    packages.max_by_key(|package| {
        let version = package.trim_end_matches("amd64");
        let numbers = version.split(|character: char| !character.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect::<Vec<u64>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_is_by_number_not_by_letter() {
        let packages = [
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.90+deb12-cloud-amd64",
            "linux-image-6.12.90+deb12.1-cloud-amd64",
            "linux-image-6.12.85+deb12-cloud-amd64",
        ];
        assert_eq!(newest(packages.into_iter()), Some(packages[2]));
        assert_eq!(newest(std::iter::empty()), None);
    }
}
