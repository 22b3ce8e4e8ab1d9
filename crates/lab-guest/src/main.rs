//! The one program of a lab VM: as process 1 it is init, as `workload JSON` or `work JSON` it is what init
//! starts.

mod init;
mod network;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::main();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["workload", json] => {
            let workload = serde_json::from_str(json).map_err(Into::into);
            workload.and_then(workload::serve).map(|never| match never {})
        }
        ["work", json] => serde_json::from_str(json).map_err(Into::into).and_then(workload::measure),
        [workload::NOTHING] => Ok(()),
        _ => Err("usage: frontdesk-lab-guest workload JSON | work JSON\n\
                  It is the init of a lab VM; the JSON is a Workload or a Work of the control protocol."
            .into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
