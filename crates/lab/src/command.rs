//! Programs of the host that do a piece of work for the lab.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, pipe};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Lines of output that are kept for the message if a program fails.
const KEPT_LINES: usize = 15;

/// A program of the host failed. The text ends with the last lines of its output.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` {what}{}{}", indented(.output), advice(.what, .output))]
pub struct CommandError {
    /// The command line.
    pub command: String,
    /// How it failed.
    pub what: String,
    /// The last lines it printed.
    pub output: Vec<String>,
}

/// Runs a program to its end. Calls `on_line` for each line of its output and its errors, which it prints in
/// English.
///
/// The program does not outlive the thread that calls this.
pub(crate) fn run(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<(), CommandError> {
    // Some of these programs are for the administrator, and not in every user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C").stdin(Stdio::null());
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    let mut output = Vec::new();
    let mut wait = || {
        let (reader, writer) = pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let child = die_with_this_thread(command).spawn();
        // The command holds the pipe's other end, whose closing ends the reading.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child?;
        for line in BufReader::new(reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
            on_line(&line);
            if !line.is_empty() {
                output.push(line);
            }
        }
        child.wait()
    };
    let what = match wait() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("failed ({status})"),
        Err(error) => format!("could not be run: {error}"),
    };
    output.drain(..output.len().saturating_sub(KEPT_LINES));
    Err(CommandError { command: line, what, output })
}

/// Lets the kernel kill what `command` starts when the thread that starts it ends, however it ends.
pub(crate) fn die_with_this_thread(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the hook makes only a system call.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }
}

fn indented(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {line}");
    }
    text
}

/// What the reader can do, as far as one can tell from the output.
fn advice(what: &str, output: &[String]) -> &'static str {
    let says = |texts: &[&str]| output.iter().any(|line| texts.iter().any(|text| line.contains(text)));
    if what.contains("No such file or directory") {
        "\nInstall the program: `tools/setup.sh vms` installs all that the lab runs."
    } else if says(&["No space left on device", "not have enough free space", "Disk quota exceeded"]) {
        "\nThe disk is full: make room, or set XDG_CACHE_HOME to a folder on another disk."
    } else if says(&["Could not resolve", "Could not connect", "Failed to fetch", "Temporary failure"]) {
        "\nIs there a network, and does `apt-get update` work on this machine?"
    } else if says(&["Operation not permitted", "Permission denied", "superuser"]) {
        "\nIt needs root."
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_comes_line_by_line_and_both_streams_together() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; printf three"]);
        run(&mut command, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_failure_tells_the_command_the_end_of_its_output_and_what_to_do() {
        let text =
            |script: &str| run(Command::new("sh").args(["-c", script]), |_| ()).unwrap_err().to_string();
        let error = text("seq 100; exit 3");
        assert!(error.starts_with("`sh -c seq 100; exit 3` failed (exit status: 3)"), "{error}");
        assert!(error.contains("\n  86\n") && error.ends_with("\n  100"), "{error}");
        assert!(!error.contains("\n  85\n"), "only the end: {error}");

        let error = text("echo 'cp: x: No space left on device'; exit 1");
        assert!(error.contains("XDG_CACHE_HOME"), "{error}");
        let error = run(&mut Command::new("/no/such/program"), |_| ()).unwrap_err().to_string();
        assert!(error.contains("/no/such/program") && error.contains("tools/setup.sh"), "{error}");
    }
}
