//! What a guide for operators says to type, in its order.

use crate::host::type_in;
use anyhow::{Result, ensure};

/// The commands that are left.
pub(crate) struct Guide(Vec<&'static str>);

impl Guide {
    pub(crate) fn open(page: &'static str) -> Guide {
        let blocks = page.split("```").skip(1).step_by(2);
        let lines = blocks.filter_map(|block| block.strip_prefix("sh\n")).flat_map(str::lines);
        let mut lines: Vec<_> = lines.filter_map(|line| line.strip_prefix("# ")).collect();
        lines.reverse();
        Guide(lines)
    }

    /// Does what comes next, which is to be this.
    pub(crate) fn follow(&mut self, command: &str) -> Result<String> {
        self.follow_with(command, "")
    }

    /// The same with what the guide leaves to the reader, where it has dots.
    pub(crate) fn follow_with(&mut self, command: &str, dots: &str) -> Result<String> {
        self.pass(command)?;
        type_in(&command.replace("...", dots))
    }

    /// Does not do what comes next, which is to be this: the guide says that it is not for every host.
    pub(crate) fn pass(&mut self, command: &str) -> Result<()> {
        let next = self.0.pop();
        ensure!(next == Some(command), "the guide says {next:?} where the trial says {command:?}");
        Ok(())
    }

    /// All of it was followed.
    pub(crate) fn ended(self) -> Result<()> {
        ensure!(self.0.is_empty(), "the guide says more: {:?}", self.0);
        Ok(())
    }
}
