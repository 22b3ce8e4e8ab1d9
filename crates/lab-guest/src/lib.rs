//! How the lab controls what runs inside its VMs: JSON values, one a line, over a virtio-serial port.
//!
//! The guest says [`LabMessage::Ready`] once, then answers each [`LabRequest`] with one [`LabMessage::Done`]
//! or [`LabMessage::Failed`] of the same number, and reports workloads that end by themselves.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

use frontdesk_workload::WorkloadKind;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Name of the virtio-serial port.
pub const CONTROL_PORT: &str = "frontdesk.control";

/// Name of the virtio-serial port of a [`Job::Reporter`].
pub const REPORTER_PORT: &str = "org.frontdesk.tasks.0";

/// Kernel parameter that gives the guest's IPv4 address and prefix, as in `frontdesk.ip=10.77.0.2/24`.
pub const IP_PARAMETER: &str = "frontdesk.ip";

/// Kernel parameter that gives the block device with the data files, as in `frontdesk.data=vda`: an ext4 file
/// system with the files `0`, `1`, ... in its root. Mounted read-only at [`DATA`].
pub const DATA_PARAMETER: &str = "frontdesk.data";

/// Where the data disk is mounted.
pub const DATA: &str = "/data";

/// Kernel parameter that gives the block device with a Debian system (ext4), as in `frontdesk.debian=vdb`.
/// Mounted writable at [`DEBIAN`]; programs run with it as their root.
pub const DEBIAN_PARAMETER: &str = "frontdesk.debian";

/// Where the Debian system is mounted.
pub const DEBIAN: &str = "/debian";

/// Kernel parameter that gives the block device with a disk (ext4) to which the guest is handed over, as in
/// `frontdesk.handover=vdb`. It is mounted writable at [`HANDOVER`] in the Debian system; the program `init`
/// on it becomes process 1 there, and there is no control port.
pub const HANDOVER_PARAMETER: &str = "frontdesk.handover";

/// Where the disk that the guest is handed over to is mounted in the Debian system.
pub const HANDOVER: &str = "/mnt";

/// Kernel parameter that gives the shortest time slice of the guest's scheduler in nanoseconds, as in
/// `frontdesk.time_slice=27000000`. Without it, the kernel's.
pub const TIME_SLICE_PARAMETER: &str = "frontdesk.time_slice";

/// Kernel parameter that says how many times as long as usual everything takes, as in
/// `frontdesk.dilation=15`: what the guest's scheduler calls short is multiplied by it.
pub const DILATION_PARAMETER: &str = "frontdesk.dilation";

/// Folder with the kernel modules in the initramfs.
pub const MODULES: &str = "/modules";

/// File in [`MODULES`] that names the modules to load, in order, one a line; parameters come after a space.
pub const MODULES_ORDER: &str = "order";

/// A request to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabRequest {
    /// Number that the answer repeats.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub op: Op,
}

/// What the guest can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Op {
    /// Starts a job; done when it is ready to do its work.
    Start {
        /// A name that no running job has.
        name: String,
        /// What it is.
        job: Job,
    },
    /// Kills a job; done when it is gone.
    Stop {
        /// Its name.
        name: String,
    },
    /// Gives all threads of a job this nice value; done when they have it.
    Nice {
        /// Its name.
        name: String,
        /// The value, -20 to 19.
        nice: i8,
    },
    /// Does a piece of work and measures it; done when the work is.
    Run {
        /// The work.
        work: Work,
    },
    /// Tells what a workload has done so far, and empties its list of stamps.
    Report {
        /// Its name.
        name: String,
    },
    /// Done if the guest is alive; tells its time stamp counter.
    Ping,
    /// Powers the VM off; done just before.
    Shutdown,
}

/// What runs until it is stopped, in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// A workload. Its costs are done in steps of [`Work::Spin`], so that they do not depend on a clock that
    /// also counts the time in which the VM does not run.
    Workload {
        /// What it does.
        kind: WorkloadKind,
        /// Steps in a second of CPU time.
        steps_per_s: u64,
    },
    /// frontdesk's reporter, which tells the host which tasks run.
    Reporter {
        /// Path of the static program in the initramfs.
        program: String,
        /// Whether it is to keep background work on vCPUs of its own when the host says so.
        isolate: bool,
    },
    /// What lowers the priority of a process that has used more than a quarter of a CPU, for a minute, as
    /// products for virtual desktops do.
    SpikeProtection,
}

/// A workload whose costs are nothing.
impl From<WorkloadKind> for Job {
    fn from(kind: WorkloadKind) -> Job {
        Job::Workload { kind, steps_per_s: 0 }
    }
}

/// A piece of work that ends by itself, in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "run", rename_all = "kebab-case")]
pub enum Work {
    /// Computes: a fixed number of dependent arithmetic steps.
    Spin {
        /// Number of steps; a million takes some milliseconds in an emulated guest.
        steps: u64,
    },
    /// Starts a process that ends at once, waits for it, and again.
    Fork {
        /// Number of processes.
        rounds: u64,
    },
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// Time from begin to end, by the guest's monotonic clock.
    pub elapsed: Duration,
}

/// What a workload has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// Operations since it was started; what one is depends on the workload.
    pub operations: u64,
    /// Bytes read from the disk, or taken by a [`WorkloadKind::Sink`], since it was started.
    pub bytes: u64,
    /// What happened since the last report, in order; the oldest are missing if there were more than
    /// [`MAX_STAMPS`].
    pub stamps: Vec<Stamp>,
}

/// Stamps in a report, at most.
pub const MAX_STAMPS: usize = 1 << 16;

/// A point in time in the life of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The guest's time stamp counter.
    #[serde(rename = "t")]
    pub tsc: u64,
    /// What happened.
    #[serde(rename = "k")]
    pub kind: StampKind,
}

/// What a [`Stamp`] stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StampKind {
    /// A task came back from waiting for I/O.
    #[serde(rename = "w")]
    Wake,
    /// A task was about to send an answer.
    #[serde(rename = "r")]
    Reply,
    /// An operation began.
    #[serde(rename = "b")]
    Begin,
    /// The operation ended.
    #[serde(rename = "e")]
    End,
    /// The workload is I/O-bound from now on.
    #[serde(rename = "i")]
    IoBound,
    /// The workload is CPU-bound from now on.
    #[serde(rename = "c")]
    CpuBound,
    /// A frame was shown.
    #[serde(rename = "f")]
    Frame,
    /// A frame was too late and is not shown.
    #[serde(rename = "l")]
    LateFrame,
}

/// The answer to a request that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabAnswer {
    /// There is nothing to say.
    Nothing,
    /// To [`Op::Run`].
    Measurement(Measurement),
    /// To [`Op::Report`].
    Report(WorkloadReport),
    /// To [`Op::Ping`]: the guest's time stamp counter.
    Clock(u64),
}

/// What the guest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum LabMessage {
    /// The guest is up and takes requests.
    Ready {
        /// Release of its kernel.
        kernel: String,
    },
    /// A request is done.
    Done {
        /// Number of the request.
        id: u64,
        /// The answer.
        answer: LabAnswer,
    },
    /// A request failed.
    Failed {
        /// Number of the request.
        id: u64,
        /// Why.
        error: String,
    },
    /// A workload ended although nobody stopped it.
    Exited {
        /// Its name.
        name: String,
        /// How it ended: "exit code 1", "signal 11".
        status: String,
        /// The last it printed.
        output: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_workload::Protocol;

    #[test]
    fn requests_read_as_documented() {
        let line = concat!(
            r#"{"id":7,"op":"start","name":"web","job":{"workload":{"kind":{"echo":{"protocol":"tcp","port":7,"#,
            r#""cost":"1ms"}},"steps_per_s":5}}}"#
        );
        let kind = WorkloadKind::Echo { protocol: Protocol::Tcp, port: 7, cost: Duration::from_millis(1) };
        let request = LabRequest {
            id: 7,
            op: Op::Start { name: "web".into(), job: Job::Workload { kind, steps_per_s: 5 } },
        };
        assert_eq!(serde_json::from_str::<LabRequest>(line).unwrap(), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(
            serde_json::from_str::<LabRequest>(r#"{"id":8,"op":"ping"}"#).unwrap(),
            LabRequest { id: 8, op: Op::Ping }
        );
    }

    #[test]
    fn answers_read_as_documented() {
        let stamps = vec![Stamp { tsc: 5, kind: StampKind::Begin }, Stamp { tsc: 7, kind: StampKind::End }];
        let report = WorkloadReport { operations: 1, bytes: 2, stamps };
        for (answer, line) in [
            (LabAnswer::Nothing, r#""nothing""#),
            (LabAnswer::Clock(u64::MAX), r#"{"clock":18446744073709551615}"#),
            (
                LabAnswer::Report(report),
                r#"{"report":{"operations":1,"bytes":2,"stamps":[{"t":5,"k":"b"},{"t":7,"k":"e"}]}}"#,
            ),
        ] {
            let line = format!(r#"{{"event":"done","id":9,"answer":{line}}}"#);
            let message = LabMessage::Done { id: 9, answer };
            assert_eq!(serde_json::to_string(&message).unwrap(), line);
            assert_eq!(serde_json::from_str::<LabMessage>(&line).unwrap(), message);
        }
    }

    proptest::proptest! {
        /// A guest may say anything; what is understood means the same when it is said again.
        #[test]
        fn fuzz_messages(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..12), text in "\\PC{0,20}") {
            fuzzing::message(pieces.concat().replace('@', &text).as_bytes());
        }
    }

    const PIECES: &[&str] = &[
        "{\"event\":\"done\",\"id\":7,\"answer\":",
        "{\"event\":\"failed\",\"id\":",
        "{\"event\":\"ready\",\"kernel\":",
        "{\"event\":\"exited\",",
        "{\"id\":7,\"op\":\"start\",\"name\":",
        "\"job\":{\"workload\":{\"kind\":",
        "{\"report\":",
        "{\"clock\":",
        "\"nothing\"",
        "\"stamps\":[{\"t\":5,\"k\":\"b\"}]",
        "\"@\"",
        "18446744073709551616",
        "-1",
        "1e400",
        ":",
        ",",
        "[",
        "]",
        "}",
        "}",
    ];
}
