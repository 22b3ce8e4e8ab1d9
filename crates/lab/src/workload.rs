//! The workloads of a scenario as the guest's programs, and what is known of each as it is made.

use frontdesk_engine::Protocol;
use frontdesk_lab_guest as guest;
use frontdesk_scenario::{Storm, WorkloadKind};
use std::time::Duration;

/// Steps of the computing loop that take `cost` of CPU time.
pub(crate) fn steps(cost: Duration, steps_per_s: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Neither negative nor too large.
    let steps = (cost.as_secs_f64() * steps_per_s) as u64;
    steps
}

/// The guest's program for a workload; `None` for one that only the simulator has.
pub(crate) fn guest_workload(
    kind: &WorkloadKind,
    steps: impl Fn(Duration) -> u64,
    host: &str,
) -> Option<guest::Workload> {
    Some(match kind {
        WorkloadKind::Hog => guest::Workload::Hog,
        WorkloadKind::Echo { protocol, port, cost } => guest::Workload::Echo {
            protocol: match protocol {
                Protocol::Tcp => guest::Protocol::Tcp,
                Protocol::Udp => guest::Protocol::Udp,
            },
            port: *port,
            cost: steps(*cost),
        },
        WorkloadKind::Shift { port, period } => guest::Workload::Shift { port: *port, period: *period },
        WorkloadKind::ReadFiles => guest::Workload::ReadFiles,
        WorkloadKind::ReadBurn { cost } => guest::Workload::ReadBurn { cost: steps(*cost) },
        WorkloadKind::Sink { port } => guest::Workload::Sink { port: *port },
        WorkloadKind::Messages { tasks, rounds } => {
            guest::Workload::Messages { tasks: *tasks, rounds: *rounds }
        }
        WorkloadKind::Churn => guest::Workload::Churn,
        WorkloadKind::Program { command, repeat, cold } => {
            let command = command.iter().map(|word| word.replace("{host}", host)).collect();
            guest::Workload::Program { command, repeat: *repeat, cold: *cold }
        }
        WorkloadKind::RtApp { .. } => return None,
        WorkloadKind::Storm { of } => guest::Workload::Storm {
            of: match of {
                Storm::Packets => guest::Storm::Packets,
                Storm::Tasks => guest::Storm::Tasks,
                Storm::Switches => guest::Storm::Switches,
            },
        },
    })
}
