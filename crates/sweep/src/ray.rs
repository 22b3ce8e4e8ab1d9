//! The runs of a sweep on a Ray cluster.
//!
//! A small driver in Python, `frontdesk.ray` of the Python package, is told what to run and hands each set of
//! runs to a task of Ray's. What it says:
//!
//! - at first, on its standard input: a line of JSON, `{"built": ..., "sets": [[NUMBER, ...], ...]}`, and
//!   then the sweep, as [`Elsewhere::pack`] gives it;
//! - on its standard output, for each set, in any order: a line `rows RUNS BYTES`, and then their rows as a
//!   Parquet file; or, at the end, `error 0 BYTES` and a text.

use crate::design::Sweep;
use crate::elsewhere::{BUILT, Elsewhere};
use crate::error::SweepError;
use crate::made::Done;
use crate::row::Layout;
use crate::table;
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;

/// What the driver is: a module of the Python that is found first.
const PYTHON: &str = "python3";
const MODULE: &str = "frontdesk.ray";
const INSTALL: &str = "--ray needs Python with the packages frontdesk and ray: in frontdesk's sources, \
    `python3 -m venv venv`, `. venv/bin/activate`, `pip install '.[ray]'`";

#[derive(Serialize)]
struct Plan {
    built: &'static str,
    sets: Vec<Vec<usize>>,
}

/// The driver's process. It ends with this.
pub(crate) struct Driver(Child);

impl Driver {
    /// Starts a driver that has these runs made, and sends their rows.
    pub(crate) fn start(
        sweep: &Sweep,
        missing: &[usize],
        address: &str,
        sender: Sender<Result<Done, SweepError>>,
    ) -> Result<Driver, SweepError> {
        // A task for each seed of each set of parameters: all its arms.
        let arms = sweep.arms.len();
        let sets = missing.chunk_by(|one, next| one / arms == next / arms).map(<[usize]>::to_vec).collect();
        let mut input = serde_json::to_vec(&Plan { built: BUILT, sets })
            .map_err(|error| SweepError::Ray { message: error.to_string() })?;
        input.push(b'\n');
        input.extend(Elsewhere::pack(sweep)?);
        let mut command = Command::new(PYTHON);
        // Ctrl-C is for the command only, which ends the driver.
        command.args(["-m", MODULE, address]).process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| SweepError::Ray {
            message: format!("cannot start {PYTHON}: {error}; {INSTALL}"),
        })?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let driver = Driver(child);
        if let (Some(stdin), Some(stdout)) = pipes {
            let layout = Layout::of(sweep);
            let runs = missing.len();
            std::thread::spawn(move || {
                if let Err(message) = converse(stdin, stdout, &input, &layout, runs, &sender) {
                    // Nobody listens any more if the sweep was stopped.
                    let _ = sender.send(Err(SweepError::Ray { message }));
                }
            });
        }
        Ok(driver)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended by itself. Ray ends the tasks of a driver that is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tells the driver what to do, and sends what it answers. The error is what went wrong.
fn converse(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    input: &[u8],
    layout: &Layout,
    mut runs: usize,
    sender: &Sender<Result<Done, SweepError>>,
) -> Result<(), String> {
    let ended = || {
        format!(
            "`{PYTHON} -m {MODULE}` ended before all runs were made; it may have said above why. What was \
             written before is kept: run the sweep again, and it goes on from there. {INSTALL}"
        )
    };
    // One that ends at once reads nothing, and says why.
    let _ = stdin.write_all(input);
    drop(stdin);
    let mut from = BufReader::new(stdout);
    while runs > 0 {
        let mut head = String::new();
        if from.read_line(&mut head).map_err(|_| ended())? == 0 {
            return Err(ended());
        }
        let words: Vec<&str> = head.split_whitespace().collect();
        let [kind, made, length] = words.as_slice() else { return Err(ended()) };
        let (Ok(made), Ok(length)) = (made.parse::<usize>(), length.parse::<u64>()) else {
            return Err(ended());
        };
        let mut bytes = Vec::new();
        (&mut from).take(length).read_to_end(&mut bytes).map_err(|_| ended())?;
        if bytes.len() as u64 != length {
            return Err(ended());
        }
        if *kind != "rows" {
            return Err(String::from_utf8_lossy(&bytes).into_owned());
        }
        let rows = table::read(&layout.columns, bytes::Bytes::from(bytes))
            .map_err(|error| format!("a node sent rows that cannot be read: {error}"))?;
        runs = runs.saturating_sub(made);
        if sender.send(Ok(Done { runs: made, rows })).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
