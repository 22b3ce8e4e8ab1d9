//! The kernels that lab VMs run.

mod packages;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The name is neither a package series nor a path that comes with its modules.
    #[error(
        "guest kernel {0:?}: must be a Debian series, like 6.1-cloud or 6.12-cloud, or the path of a kernel image \
         together with the folder of its modules"
    )]
    Name(String),
    /// The package lists know no such kernel.
    #[error(
        "guest kernel {series}: no package {package} in the package lists: run `apt-get update`; a newer \
         series may need the backports suite in the APT sources; or give the path of a kernel image"
    )]
    NoPackage {
        /// The series asked for.
        series: String,
        /// What its packages are called.
        package: String,
    },
    /// A program that fetches or unpacks the kernel failed.
    #[error("guest kernel: `{command}` failed: {output}")]
    Command {
        /// The command line.
        command: String,
        /// What it said, or why it did not start.
        output: String,
    },
    /// Something is not where it must be.
    #[error("guest kernel: {path}: {what}")]
    Missing {
        /// Where.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// A file operation failed.
    #[error("guest kernel: {path}: {source}")]
    Io {
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A kernel image and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The image, as QEMU boots it.
    pub image: PathBuf,
    /// Its modules, as `depmod` left them: `ROOT/lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds the kernel called `name`: a Debian package series ("6.1-cloud", "6.12-cloud"), which is
    /// downloaded to the user's cache folder the first time and kept from then on, or the path of a kernel
    /// image, with `modules`. Series that this machine's package lists do not know are looked for in a newer suite of the same mirror.
    ///
    /// # Errors
    /// [`KernelError`] if the name makes no sense, or the kernel is not there and can not be fetched.
    pub fn resolve(name: &str, modules: Option<&Path>) -> Result<Kernel, KernelError> {
        match (modules, Series::parse(name)) {
            (Some(modules), _) => Kernel { image: name.into(), modules: modules.into() }.checked(),
            (None, Some(series)) => series.resolve(),
            (None, None) => Err(KernelError::Name(name.to_owned())),
        }
    }

    /// Release of the kernel, as its modules' folder is called, and the root that `modprobe -d` takes.
    pub(crate) fn release_and_root(&self) -> Result<(&OsStr, &Path), KernelError> {
        let root = self.modules.parent().filter(|parent| parent.ends_with("lib/modules"));
        match (self.modules.file_name(), root.and_then(|parent| parent.ancestors().nth(2))) {
            (Some(release), Some(root)) => Ok((release, root)),
            _ => Err(KernelError::Missing {
                path: self.modules.clone(),
                what: "the folder of a kernel's modules must be called lib/modules/RELEASE",
            }),
        }
    }

    fn checked(self) -> Result<Kernel, KernelError> {
        self.release_and_root()?;
        let missing = |path: PathBuf, what| KernelError::Missing { path, what };
        if !self.image.is_file() {
            return Err(missing(self.image, "is not a file: a kernel image must be there"));
        }
        let list = self.modules.join("modules.dep");
        if !list.is_file() {
            return Err(missing(list, "is not there: run `depmod` on these modules"));
        }
        Ok(self)
    }

    /// The kernel in an unpacked package. Newer ones keep all of it with the modules.
    fn in_package(root: &Path) -> Result<Kernel, KernelError> {
        for folder in ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder)) {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let modules = entry.map_err(io_error(&folder))?.path();
                let release = modules.file_name().and_then(OsStr::to_str).unwrap_or_default();
                let images = [root.join("boot").join(format!("vmlinuz-{release}")), modules.join("vmlinuz")];
                if let Some(image) = images.into_iter().find(|image| image.is_file()) {
                    return Ok(Kernel { image, modules });
                }
            }
        }
        Err(KernelError::Missing { path: root.into(), what: "no kernel image is in the package" })
    }
}

/// A series of Debian's kernel packages, like 6.1-cloud.
struct Series<'a> {
    name: &'a str,
    /// As in "6.1".
    version: &'a str,
    /// As in "cloud".
    flavour: &'a str,
}

impl<'a> Series<'a> {
    fn parse(name: &'a str) -> Option<Series<'a>> {
        let (version, flavour) = name.split_once('-')?;
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (major, minor) = version.split_once('.')?;
        let plain = !flavour.is_empty() && flavour.bytes().all(|byte| byte.is_ascii_lowercase());
        (number(major) && number(minor) && plain).then_some(Series { name, version, flavour })
    }

    fn resolve(&self) -> Result<Kernel, KernelError> {
        let kernels = cache_folder()?.join("frontdesk/kernels");
        let root = kernels.join(self.name);
        if !root.exists() {
            std::fs::create_dir_all(&kernels).map_err(io_error(&kernels))?;
            // Fetched beside the final place and renamed, so that what is there is always whole.
            let work = tempfile::tempdir_in(&kernels).map_err(io_error(&kernels))?;
            let unpacked = packages::fetch(self, work.path())?;
            match std::fs::rename(&unpacked, &root) {
                // Another process was faster.
                Err(_) if root.exists() => {}
                result => result.map_err(io_error(&root))?,
            }
        }
        Kernel::in_package(&root)?.checked()
    }
}

fn cache_folder() -> Result<PathBuf, KernelError> {
    crate::cache::user_folder().ok_or_else(|| KernelError::Missing {
        path: "~/.cache".into(),
        what: "there is no place to keep kernels: set HOME or XDG_CACHE_HOME",
    })
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> KernelError {
    move |source| KernelError::Io { path: path.into(), source }
}

/// Runs a command and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, KernelError> {
    // Some of these programs are for the administrator, and not in every user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = match command.output() {
        Ok(output) if output.status.success() => {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let command = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    Err(KernelError::Command { command, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_series_or_paths_with_modules() {
        for bad in
            ["", "6-cloud", "6.1", "6.1-", "latest", "/boot/vmlinuz-6.1-cloud", "6.1.x-cloud", "6.1-cloud$"]
        {
            assert!(
                matches!(Kernel::resolve(bad, None), Err(KernelError::Name(name)) if name == bad),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_kernel_by_path_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("vmlinuz");
        let name = image.to_str().unwrap();
        let modules = folder.path().join("lib/modules/6.1.0-x");
        std::fs::create_dir_all(&modules).unwrap();

        let error = Kernel::resolve(name, Some(&modules)).unwrap_err().to_string();
        assert!(error.contains("is not a file"), "{error}");
        std::fs::write(&image, "").unwrap();
        let error = Kernel::resolve(name, Some(&modules)).unwrap_err().to_string();
        assert!(error.contains("depmod"), "{error}");
        std::fs::write(modules.join("modules.dep"), "").unwrap();
        let kernel = Kernel::resolve(name, Some(&modules)).unwrap();
        assert_eq!(kernel.release_and_root().unwrap(), (OsStr::new("6.1.0-x"), folder.path()));
        let error = Kernel::resolve(name, Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("lib/modules/RELEASE"), "{error}");
    }
}
