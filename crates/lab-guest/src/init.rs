//! Process 1 of a lab VM. It sleeps unless there is something to do, so that it does not disturb what is
//! measured.

mod boot;
mod child;
mod error;

use crate::report::tsc;
use child::{Child, Purpose};
use error::{InitError, failed};
use frontdesk_lab_guest::{LabAnswer, LabMessage, LabRequest, Measurement, Op};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, wait};
use rustix::system::{RebootCommand, reboot, uname};
use std::fs::File;
use std::io::{Read, Write};

/// Init's life.
pub(crate) fn main() -> ! {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("init: {panic}");
        power_off();
    }));
    let life = || {
        let control = boot::boot()?;
        Init { control, children: Vec::new(), started: 0 }.serve()
    };
    if let Err(error) = life() {
        eprintln!("init: {error}");
    }
    power_off()
}

fn power_off() -> ! {
    // If even that fails, the end of process 1 panics the kernel, which the host sees.
    let _ = reboot(RebootCommand::PowerOff);
    std::process::exit(1)
}

struct Init {
    control: File,
    children: Vec<Child>,
    /// Children that were started so far.
    started: u64,
}

impl Init {
    fn serve(mut self) -> Result<(), InitError> {
        let kernel = uname().release().to_string_lossy().into_owned();
        self.say(&LabMessage::Ready { kernel })?;
        let mut received = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(&self.control, PollFlags::IN)];
            fds.extend(self.children.iter().map(|child| PollFd::new(child.pidfd(), PollFlags::IN)));
            poll(&mut fds, None).map_err(failed("poll"))?;
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();

            for index in (0..self.children.len()).rev() {
                if !events[1 + index].is_empty() {
                    let child = self.children.remove(index);
                    self.ended(child)?;
                }
            }
            if !events[0].is_empty() {
                let mut buffer = [0; 4096];
                let length = self.control.read(&mut buffer).map_err(failed("reading requests"))?;
                if length == 0 {
                    // The lab is gone, and with it the reason to run.
                    return Ok(());
                }
                received.extend_from_slice(&buffer[..length]);
                while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = received.drain(..=end).collect();
                    let request = serde_json::from_slice(&line).map_err(|source| InitError::Request {
                        line: String::from_utf8_lossy(&line).into_owned(),
                        source,
                    })?;
                    self.answer(request)?;
                }
            }
        }
    }

    fn say(&mut self, message: &LabMessage) -> Result<(), InitError> {
        let mut line = serde_json::to_vec(message).map_err(failed("a message"))?;
        line.push(b'\n');
        self.control.write_all(&line).map_err(failed("answering"))
    }

    fn answer(&mut self, LabRequest { id, op }: LabRequest) -> Result<(), InitError> {
        let result = match op {
            Op::Start { name, .. } if self.workload(&name).is_ok() => {
                Err(format!("a workload called {name} runs already"))
            }
            Op::Start { name, job } => self.start(Purpose::Job { name, job }),
            Op::Stop { name } => self.workload(&name).and_then(|index| {
                let stopped = self.children.remove(index).stop().map_err(|error| error.to_string());
                self.reap_orphans();
                stopped.map(|_| LabAnswer::Nothing)
            }),
            Op::Nice { name, nice } => self.workload(&name).and_then(|index| {
                let set = self.children[index].set_nice(nice);
                set.map(|()| LabAnswer::Nothing).map_err(|error| format!("nice values of {name}: {error}"))
            }),
            Op::Run { work } => match self.start(Purpose::Work { request: id, work }) {
                // Answered when it ends.
                Ok(_) => return Ok(()),
                Err(error) => Err(error),
            },
            Op::Report { name } => self.workload(&name).and_then(|index| {
                let report = self.children[index].report();
                report.map(LabAnswer::Report).map_err(|error| format!("the records of {name}: {error}"))
            }),
            Op::Ping => Ok(LabAnswer::Clock(tsc())),
            Op::Shutdown => {
                self.say(&LabMessage::Done { id, answer: LabAnswer::Nothing })?;
                power_off();
            }
        };
        self.say(&match result {
            Ok(answer) => LabMessage::Done { id, answer },
            Err(error) => LabMessage::Failed { id, error },
        })
    }

    fn start(&mut self, purpose: Purpose) -> Result<LabAnswer, String> {
        self.started += 1;
        let child = Child::start(self.started, purpose);
        if child.is_err() {
            self.reap_orphans();
        }
        self.children.push(child?);
        Ok(LabAnswer::Nothing)
    }

    fn workload(&self, wanted: &str) -> Result<usize, String> {
        self.children
            .iter()
            .position(|child| matches!(child.purpose(), Purpose::Job { name, .. } if name == wanted))
            .ok_or_else(|| format!("no workload called {wanted} runs"))
    }

    /// Reports a child that ended by itself.
    fn ended(&mut self, mut child: Child) -> Result<(), InitError> {
        let status = child.stop().map_err(failed("waiting for a child"))?;
        let output = child.output();
        let message = match child.into_purpose() {
            Purpose::Job { name, .. } => LabMessage::Exited { name, status, output },
            Purpose::Work { request: id, .. } => match serde_json::from_str::<Measurement>(&output) {
                Ok(measurement) => LabMessage::Done { id, answer: LabAnswer::Measurement(measurement) },
                Err(_) => LabMessage::Failed { id, error: format!("the work failed ({status}): {output}") },
            },
        };
        self.reap_orphans();
        self.say(&message)
    }

    /// Cleans up after processes that outlived their parents until they were killed.
    fn reap_orphans(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(child) = self.children.iter_mut().find(|child| child.pid() == pid) {
                child.has_ended(status);
            }
        }
    }
}
