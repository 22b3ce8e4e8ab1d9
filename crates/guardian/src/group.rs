//! Control groups that are removed at the end.

use crate::guardian::{Guardian, GuardianError};
use crate::undo::Undo;
use frontdesk_linux::cgroup::{CgroupError, Change, Group};

/// A control group could not be changed, or the change not be made undoable.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The kernel refuses.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The change could not be made undoable, and was not made.
    #[error(transparent)]
    Guardian(#[from] GuardianError),
}

impl Guardian {
    /// Creates a control group below `parent` ([`Group::create`]), which is removed at the end.
    ///
    /// # Errors
    /// If the name is none, the group exists or cannot be made.
    pub fn create_group(&self, parent: &Group, name: &str) -> Result<Group, GroupError> {
        parent.create(name, |change| {
            self.record(match change {
                Change::Group(path) => Undo::ControlGroup { path },
                Change::CpuController(path) => Undo::CpuController { path },
            })?;
            Ok(())
        })
    }
}
