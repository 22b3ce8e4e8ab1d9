//! `frontdesk record`.

use crate::recording::new_file;
use crate::{FAILED, words};
use anyhow::Context;
use frontdesk_control_protocol::{DEFAULT_SOCKET, ask_recording};
use frontdesk_record::{Ending, Record, RecordError, Recording};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The daemon ends the recording when asked to within this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Record what a running daemon hears and decides.
///
/// The recording begins with the daemon's whole state, so that `frontdesk replay` comes to the same actions.
/// It is written as it comes: whatever ends it, FILE can be read up to there. Ends at Ctrl-C, after
/// --duration, or with the daemon.
///
/// Exit status: 0 if the recording is complete, 1 if it ended early, 2 if it could not be made.
#[derive(clap::Args)]
#[command(after_help = "Example:
  frontdesk record morning.fdsk --duration 10min")]
pub(crate) struct Args {
    /// Where to write the recording; a new file.
    #[arg(value_parser = new_file)]
    file: PathBuf,
    /// End after so long.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// The daemon's control socket.
    #[arg(long, value_name = "SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Replace FILE if it is there.
    #[arg(long)]
    force: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = frontdesk_host::stop_signal().context("cannot handle signals")?;
    if !args.force && args.file.exists() {
        // Before a daemon takes the trouble.
        return Err(in_the_way(&args.file));
    }
    let stream = ask_recording(&args.socket)?;
    let closer = stream.try_clone().context("cannot share the connection")?;
    let (ended, done) = std::io::pipe().context("cannot make a pipe")?;
    let duration = args.duration;
    // Before there is a file: without a thread nothing is left behind. Whatever ends this hangs up `done`.
    let waiter = std::thread::Builder::new()
        .name("end".into())
        .spawn(move || end_in_time(&stop, duration, ended.into(), &closer))
        .context(words::NO_THREAD)?;
    let file = create(args)?;
    let written = || format!("cannot write {}", args.file.display());
    let copy = file.try_clone().with_context(written)?;
    let result = receive(stream, copy, &args.file);
    drop(done);
    // It only waits for what has just happened.
    let _ = waiter.join();
    file.sync_all().with_context(written)?;
    let Received { ending, records, bytes } = result?;
    eprintln!("{}: {records} records, {:.1} MB", args.file.display(), megabytes(bytes));
    match ending {
        Some(Ending::Complete) => Ok(ExitCode::SUCCESS),
        _ => {
            eprintln!(
                "frontdesk: the recording ended early: the daemon has ended, or this file system is too slow for it. What is in {} \
                 can be replayed",
                args.file.display()
            );
            Ok(ExitCode::from(FAILED))
        }
    }
}

fn create(args: &Args) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(&args.file).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => in_the_way(&args.file),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", args.file.display())),
    })
}

fn in_the_way(file: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} is there already; --force replaces it", file.display())
}

/// Waits for a signal, for the end of `duration`, or for the end of the recording (`ended` hangs up), and
/// then ends the connection: first our side of it, so that the daemon can complete the recording, and if it
/// does not, all.
fn end_in_time(stop: &impl AsFd, duration: Option<Duration>, ended: OwnedFd, connection: &UnixStream) {
    let wait = |fds: &mut [PollFd<'_>], time: Option<Duration>| {
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    };
    wait(&mut [PollFd::new(stop, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)], duration);
    // The connection may have ended already.
    let _ = connection.shutdown(Shutdown::Write);
    wait(&mut [PollFd::new(&ended, PollFlags::IN)], Some(PATIENCE));
    let _ = connection.shutdown(Shutdown::Both);
}

struct Received {
    ending: Option<Ending>,
    records: u64,
    bytes: u64,
}

/// Writes what comes to the file, and looks at it on the way.
fn receive(stream: UnixStream, file: File, path: &Path) -> Result<Received, RecordError> {
    let begun = Instant::now();
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let mut recording = Recording::new(Tee { stream, file, bytes: 0 }, path.display().to_string())
        .inspect_err(|_| {
            // Nothing in it is of use.
            let _ = std::fs::remove_file(path);
        })?;
    let (mut events, mut shown) = (0u64, begun);
    while let Some(record) = recording.next().transpose()? {
        events += u64::from(matches!(record, Record::Event(_)));
        if shown.elapsed() >= Duration::from_millis(200) {
            shown = Instant::now();
            let (seconds, bytes) = (begun.elapsed().as_secs(), megabytes(recording.source().bytes));
            bar.set_message(format!("{seconds} s, {bytes:.1} MB, {events} events; Ctrl-C ends"));
        }
    }
    bar.finish_and_clear();
    let (ending, records) = (recording.ending(), recording.records());
    Ok(Received { ending, records, bytes: recording.source().bytes })
}

#[allow(clippy::cast_precision_loss)] // For people.
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Reads from the daemon, and writes all of it to the file.
struct Tee {
    stream: UnixStream,
    file: File,
    bytes: u64,
}

impl Read for Tee {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = match self.stream.read(buffer) {
            // A daemon that was killed: the end of the recording, without an end.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            other => other?,
        };
        self.file.write_all(&buffer[..read])?;
        self.bytes += read as u64;
        Ok(read)
    }
}
