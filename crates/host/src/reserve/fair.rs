//! The kernel's fair servers: since Linux 6.12, each CPU gives its ordinary threads 50 ms of a second ahead
//! of real-time ones, in one piece at the end of the second, unless they had that much without it.
//!
//! Out of the administrator's reserve they have, whatever is reserved, if the server is due less than that
//! reserve: then it comes only when something takes more than it may. It is due half of the reserve, for the
//! other half is what real time may take beyond what can be reserved
//! ([`ReserveSettings::real_time`](super::ReserveSettings::real_time)).

use frontdesk_guardian::{Guardian, GuardianError, Undo, UndoId};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Where the kernel has them, if debugfs is mounted: `cpuN/runtime` and `cpuN/period`, in nanoseconds.
pub(crate) const FAIR_SERVERS: &str = "/sys/kernel/debug/sched/fair_server";

/// A fair server cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FairServerError {
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

/// The fair servers that were changed.
#[derive(Debug, Default)]
pub(super) struct FairServers {
    changed: Vec<Changed>,
}

#[derive(Debug)]
struct Changed {
    runtime: PathBuf,
    /// What it was, in nanoseconds.
    before: u64,
    undo: UndoId,
}

impl FairServers {
    /// Makes the server of each of these CPUs take at most this part of its CPU, above 0. One that takes less
    /// stays as it is, as does one that the administrator has switched off. Where the kernel has none, or
    /// shows none, nothing is changed.
    ///
    /// Linux 6.12 refuses unless as much as a server gives up is reserved by `SCHED_DEADLINE` at the time,
    /// for it has forgotten to count the server among those: so this is done while the dispatcher or a member
    /// is scheduled like that, and undone before it no longer is. Then again, all may be reserved, and the
    /// kernel refuses to give it back before. Hence both are tried at either time.
    pub(super) fn lower(
        &mut self,
        cpus: &[u16],
        part: f64,
        guardian: &Guardian,
    ) -> Result<(), FairServerError> {
        for cpu in cpus {
            let server = Path::new(FAIR_SERVERS).join(format!("cpu{cpu}"));
            let Some((before, most)) = too_much(&server, part)? else { continue };
            let runtime = server.join("runtime");
            let undo = guardian.record(Undo::File { path: runtime.clone(), content: before.to_string() })?;
            if let Err(error) = write(&runtime, most) {
                guardian.forget(undo)?;
                return Err(error);
            }
            self.changed.push(Changed { runtime, before, undo });
        }
        Ok(())
    }

    /// Gives them back what they had. What fails can be tried again, and stays on the guardian's record.
    pub(super) fn restore(&mut self, guardian: &Guardian) -> Result<(), FairServerError> {
        while let Some(Changed { runtime, before, undo }) = self.changed.last() {
            write(runtime, *before)?;
            guardian.forget(*undo)?;
            self.changed.pop();
        }
        Ok(())
    }
}

/// The run time of a server, and what it is to be instead, if it takes more than this part of its CPU.
fn too_much(server: &Path, part: f64) -> Result<Option<(u64, u64)>, FairServerError> {
    let (runtime, period) = (read(&server.join("runtime"))?, read(&server.join("period"))?);
    let (Some(runtime), Some(period)) = (runtime, period) else { return Ok(None) };
    let most = Duration::from_nanos(period).mul_f64(part).as_nanos();
    // The kernel takes 0 as "never".
    let most = u64::try_from(most).unwrap_or(u64::MAX).max(1);
    Ok((runtime > most).then_some((runtime, most)))
}

/// A number in a file; `None` if there is no such file.
fn read(file: &Path) -> Result<Option<u64>, FairServerError> {
    let failed = |source| FairServerError::File { action: "read", path: file.to_owned(), source };
    match fs::read_to_string(file) {
        Ok(text) => {
            let number =
                text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            number.map(Some).map_err(failed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn write(file: &Path, nanos: u64) -> Result<(), FairServerError> {
    let failed = |source| FairServerError::File { action: "write to", path: file.to_owned(), source };
    fs::write(file, nanos.to_string()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_takes_too_much_is_lowered() {
        let home = tempfile::tempdir().unwrap();
        let told = |runtime: &str, period: &str, part| {
            fs::write(home.path().join("runtime"), runtime).unwrap();
            fs::write(home.path().join("period"), period).unwrap();
            too_much(home.path(), part).map_err(|error| error.to_string())
        };
        let (ms, second) = (1_000_000, "1000000000\n");
        assert_eq!(told("50000000\n", second, 0.025), Ok(Some((50 * ms, 25 * ms))));
        assert_eq!(told("50000000\n", second, 0.005), Ok(Some((50 * ms, 5 * ms))));
        assert_eq!(told("50000000\n", second, 0.475), Ok(None), "less than its part");
        assert_eq!(told("0\n", second, 0.025), Ok(None), "switched off");
        assert_eq!(told("1\n", "100000\n", 0.000_001), Ok(None), "never switched off by us");
        assert_eq!(told("90000\n", "100000\n", 0.005), Ok(Some((90_000, 500))), "the shortest period");
        let error = told("much\n", second, 0.025).unwrap_err();
        assert!(error.starts_with("cannot read ") && error.contains("runtime: invalid digit"), "{error}");
        let nowhere = home.path().join("cpu0");
        assert_eq!(too_much(&nowhere, 0.025).unwrap(), None, "an older kernel, or no debugfs");
    }
}
