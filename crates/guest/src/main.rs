//! frontdesk's reporter: tells the host, through a virtio-serial port, which task runs on which vCPU.

mod follower;
mod isolation;
mod pacer;
mod port;
mod priority;
mod reporter;
mod rings;
mod tasks;
mod tracepoint;

use frontdesk_guest_protocol::PORT_NAME;
use isolation::guardian;
use lexopt::Arg::{Long, Short, Value};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Tells frontdesk on the host which task runs on which vCPU: exact switches, process ids and names.

Install it in a VM whose tasks frontdesk cannot tell apart from outside (Intel processors with EPT). It only
tells; it takes no orders unless started with --isolate, and gives the host no access. Without a host that
listens it sleeps.

Usage: frontdesk-guest [--port PATH] [--isolate]

Options:
      --isolate    While a person waits for something, as the host says: keep background work on vCPUs of its
                   own. All is as before when the wait is over, and when this program ends
      --port PATH  The virtio-serial port [default: /dev/virtio-ports/org.frontdesk.tasks.0]
  -h, --help       Print this help
  -V, --version    Print the version

It needs tracefs at /sys/kernel/tracing, and root, or CAP_PERFMON and CAP_SYS_NICE with access to tracefs and the port.";

enum Command {
    Report { port: PathBuf, isolate: bool },
    Guard,
    Print(String),
}

fn parse() -> Result<Command, lexopt::Error> {
    let mut port = PathBuf::from("/dev/virtio-ports").join(PORT_NAME);
    let mut isolate = false;
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("port") => port = arguments.value()?.into(),
            Long("isolate") => isolate = true,
            Value(value) if value == guardian::ARGUMENT => return Ok(Command::Guard),
            Short('h') | Long("help") => return Ok(Command::Print(HELP.to_owned())),
            Short('V') | Long("version") => {
                return Ok(Command::Print(concat!("frontdesk-guest ", env!("CARGO_PKG_VERSION")).to_owned()));
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Command::Report { port, isolate })
}

fn main() -> ExitCode {
    let error = match parse() {
        Ok(Command::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Command::Guard) => return guardian::run(),
        Ok(Command::Report { port, isolate }) => match reporter::run(&port, isolate) {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        },
        Err(error) => format!("{error}; --help tells what there is"),
    };
    eprintln!("frontdesk-guest: {error}");
    ExitCode::FAILURE
}
