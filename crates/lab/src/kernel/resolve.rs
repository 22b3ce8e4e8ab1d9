//! Finding a kernel by its name.

use super::error::io_error;
use super::series::Series;
use super::{Kernel, KernelError, packages};
use std::path::{Path, PathBuf};

impl Kernel {
    /// Finds the kernel called `name`: a Debian package series ("6.1-cloud", "6.12-cloud"), which is
    /// downloaded to the user's cache folder the first time and kept from then on, or the path of a kernel
    /// image, with `modules`. Series that this machine's package lists do not know are looked for in a newer
    /// suite of the same mirror.
    ///
    /// # Errors
    /// [`KernelError`] if the name makes no sense, or the kernel is not there and cannot be fetched.
    pub fn resolve(name: &str, modules: Option<&Path>) -> Result<Kernel, KernelError> {
        match (modules, Series::parse(name)) {
            (Some(modules), _) => Kernel { image: name.into(), modules: modules.into() }.checked(),
            (None, Some(series)) => fetched(&series),
            (None, None) => Err(KernelError::Name(name.to_owned())),
        }
    }
}

/// The kernel of a series, downloaded if it is not there.
fn fetched(series: &Series<'_>) -> Result<Kernel, KernelError> {
    let kernels = cache_folder()?.join("frontdesk/kernels");
    let root = kernels.join(series.name);
    if !root.exists() {
        std::fs::create_dir_all(&kernels).map_err(io_error(&kernels))?;
        // Fetched beside the final place and renamed, so that what is there is always whole.
        let work = tempfile::tempdir_in(&kernels).map_err(io_error(&kernels))?;
        let unpacked = packages::fetch(series, work.path())?;
        match std::fs::rename(&unpacked, &root) {
            // Another process was faster.
            Err(_) if root.exists() => {}
            result => result.map_err(io_error(&root))?,
        }
    }
    Kernel::in_package(&root)?.checked()
}

fn cache_folder() -> Result<PathBuf, KernelError> {
    crate::cache::user_folder().ok_or_else(|| KernelError::Missing {
        path: "~/.cache".into(),
        what: "there is no place to keep kernels: set HOME or XDG_CACHE_HOME",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

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
