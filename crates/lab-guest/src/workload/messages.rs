//! Tasks that message each other, as the program hackbench does with processes and sockets.

use super::process::{WorkloadError, describe, failed, ready};
use crate::report::ReportRecorder;
use frontdesk_lab_guest::StampKind;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::net::UnixStream;

/// Senders in a group, and receivers.
const HALF: usize = 20;

/// Bytes of a message.
const SIZE: usize = 100;

/// Lets `tasks` tasks message each other, again and again. Each takes some 100 KiB of memory, and each
/// receiver up to 200 KiB more for what it has not read yet.
pub(super) fn run(
    tasks: u32,
    rounds: u32,
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    let groups = usize::try_from(tasks)? / (2 * HALF);
    if groups * 2 * HALF != usize::try_from(tasks)? || groups == 0 {
        return Err(format!("{tasks} tasks cannot message each other: it must be a multiple of 40").into());
    }
    let set_up =
        || MessengerGroups::set_up(groups, rounds).map_err(failed(format!("starting {tasks} tasks")));
    let mut run = set_up()?;
    ready();
    loop {
        recorder.stamp(StampKind::Begin)?;
        run.finish()?;
        recorder.stamp(StampKind::End)?;
        recorder.count(1, 0)?;
        run = set_up()?;
    }
}

/// Tasks that are ready to begin.
struct MessengerGroups {
    /// The gate opens when this is dropped, for all at once.
    gate: PipeWriter,
    tasks: Vec<Pid>,
}

impl MessengerGroups {
    fn set_up(groups: usize, rounds: u32) -> io::Result<MessengerGroups> {
        let (closed_gate, gate) = pipe()?;
        let (all_set_up, set_up) = pipe()?;
        let mut tasks = Vec::new();
        for _ in 0..groups {
            let pairs: Vec<_> = (0..HALF).map(|_| UnixStream::pair()).collect::<io::Result<_>>()?;
            let (outs, mut ins): (Vec<UnixStream>, Vec<UnixStream>) = pairs.into_iter().unzip();
            for member in 0..2 * HALF {
                if let Some(task) = fork()? {
                    tasks.push(task);
                    continue;
                }
                // A task keeps only what it needs: then all find out if one of them dies.
                let task = if member < HALF {
                    drop(outs);
                    Messenger::Receiver(ins.swap_remove(member))
                } else {
                    drop(ins);
                    Messenger::Sender(outs)
                };
                drop((gate, set_up));
                task.run(closed_gate, rounds);
            }
        }
        drop(set_up);
        wait_for_end(all_set_up)?;
        Ok(MessengerGroups { gate, tasks })
    }

    /// Opens the gate and waits for the end of all tasks.
    fn finish(self) -> Result<(), WorkloadError> {
        drop(self.gate);
        for task in self.tasks {
            match waitpid(Some(task), WaitOptions::empty()).map_err(failed("waiting for a task"))? {
                Some((_, status)) if status.exit_status() != Some(0) => {
                    return Err(format!("a task failed: {}", describe(status)).into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes this process two. The new one gets none.
///
/// To start the program again, as workloads do otherwise, would take seconds and more memory than small VMs
/// have.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this workload has a single thread, so there is none whose work the new process could find
    // half done.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A pipe ends when nobody has its other end any more.
fn wait_for_end(mut pipe: PipeReader) -> io::Result<()> {
    pipe.read(&mut [0]).map(drop)
}

/// One of the tasks.
enum Messenger {
    Sender(Vec<UnixStream>),
    Receiver(UnixStream),
}

impl Messenger {
    fn run(self, gate: PipeReader, rounds: u32) -> ! {
        let result = wait_for_end(gate).and_then(|()| self.message(rounds));
        if let Err(error) = &result {
            eprintln!("a task that messages others: {error}");
        }
        std::process::exit(result.is_err().into())
    }

    fn message(self, rounds: u32) -> io::Result<()> {
        let mut message = [0; SIZE];
        match self {
            Messenger::Sender(mut sockets) => (0..rounds)
                .try_for_each(|_| sockets.iter_mut().try_for_each(|socket| socket.write_all(&message))),
            Messenger::Receiver(mut socket) => {
                (0..rounds).try_for_each(|_| (0..HALF).try_for_each(|_| socket.read_exact(&mut message)))
            }
        }
    }
}
