//! The one program of a lab VM: as process 1 it is init, as `job JSON` or `work JSON` it is what init
//! starts, and otherwise a task of a workload.

mod init;
mod network;
mod parameter;
mod ports;
mod report;
mod workload;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::main();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match workload::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: init does not wait for a second.
            let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}
