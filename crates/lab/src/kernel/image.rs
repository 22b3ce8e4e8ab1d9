//! A kernel image and its modules.

use super::KernelError;
use super::error::io_error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A kernel image and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The image, as QEMU boots it.
    pub image: PathBuf,
    /// Its modules, as `depmod` left them: `ROOT/lib/modules/RELEASE`.
    pub modules: PathBuf,
}

impl Kernel {
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

    pub(super) fn checked(self) -> Result<Kernel, KernelError> {
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
    pub(super) fn in_package(root: &Path) -> Result<Kernel, KernelError> {
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
