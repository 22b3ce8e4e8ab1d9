//! How the lab controls what runs inside its VMs: JSON values, one a line, over a virtio-serial port.
//!
//! The guest says [`Message::Ready`] once, then answers each [`Request`] with one [`Message::Done`] or
//! [`Message::Failed`] of the same number, and reports workloads that end by themselves.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Name of the virtio-serial port.
pub const CONTROL_PORT: &str = "frontdesk.control";

/// Kernel parameter that gives the guest's IPv4 address and prefix, as in `frontdesk.ip=10.77.0.2/24`.
pub const IP_PARAMETER: &str = "frontdesk.ip";

/// Folder with the kernel modules in the initramfs.
pub const MODULES: &str = "/modules";

/// File in [`MODULES`] that names the modules to load, in order, one a line.
pub const MODULES_ORDER: &str = "order";

/// A request to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
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
    /// Starts a workload; done when it is ready to do its work.
    Start {
        /// A name that no running workload has.
        name: String,
        /// What it does.
        workload: Workload,
    },
    /// Kills a workload; done when it is gone.
    Stop {
        /// Its name.
        name: String,
    },
    /// Does a piece of work and measures it; done when the work is.
    Run {
        /// The work.
        work: Work,
    },
    /// Nothing: done if the guest is alive.
    Ping,
    /// Powers the VM off; done just before.
    Shutdown,
}

/// A program that runs until it is stopped, in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "run", rename_all = "kebab-case")]
pub enum Workload {
    /// Uses all the CPU it gets.
    Hog,
    /// Answers each request with the same bytes.
    Echo {
        /// Transport protocol.
        protocol: Protocol,
        /// Port it listens on, at all addresses.
        port: u16,
        /// CPU time it burns for each request before it answers, as the guest counts it.
        cost: Duration,
    },
}

/// Transport protocol of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
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

/// What the guest says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Message {
    /// The guest is up and takes requests.
    Ready {
        /// Release of its kernel.
        kernel: String,
    },
    /// A request is done.
    Done {
        /// Number of the request.
        id: u64,
        /// What it took, if it was [`Op::Run`].
        measurement: Option<Measurement>,
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

    #[test]
    fn requests_read_as_documented() {
        let line = concat!(
            r#"{"id":7,"op":"start","name":"web","workload":{"run":"echo","protocol":"tcp","port":7,"#,
            r#""cost":{"secs":0,"nanos":1000}}}"#
        );
        let workload = Workload::Echo { protocol: Protocol::Tcp, port: 7, cost: Duration::from_nanos(1000) };
        let request = Request { id: 7, op: Op::Start { name: "web".into(), workload } };
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(
            serde_json::from_str::<Request>(r#"{"id":8,"op":"ping"}"#).unwrap(),
            Request { id: 8, op: Op::Ping }
        );
    }
}
