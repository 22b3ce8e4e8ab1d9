//! Why there is no kernel, and the programs that say so.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The name is neither a package series nor a path that comes with its modules.
    #[error(
        "guest kernel {0:?}: must be a Debian series, like 6.1-cloud or 6.12-plain, or the path of a kernel image \
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

pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> KernelError {
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
