//! What is on the disk that an emulated host is handed over to.

use crate::lab::Made;
use frontdesk_scenario::{Outcome, Scenario, Timeline};
use serde::{Deserialize, Serialize};

/// The program, for the lab, the daemon and the guardian.
pub(super) const FRONTDESK: &str = "frontdesk";
/// The program of the guests.
pub(super) const GUEST: &str = "frontdesk-lab-guest";
/// The reporter, where an arm needs it.
pub(super) const REPORTER: &str = "frontdesk-guest";
/// Folder with the guests' kernel, laid out as in a system.
pub(super) const KERNEL: &str = "kernel";
/// The kernel's image in there.
pub(super) const IMAGE: &str = "vmlinuz";
/// File with the [`Order`].
pub(super) const ORDER: &str = "order.json";
/// Folder for what comes out.
pub(super) const OUT: &str = "out";
/// File with the [`Product`] in there.
pub(super) const PRODUCT: &str = "product.json";

/// How lines on the console begin that tell the progress, as JSON.
pub(super) const PROGRESS: &str = "frontdesk-lab: ";

/// What the lab in the host is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) scenario: Scenario,
    /// The arms and repeats whose recordings are kept.
    pub(super) recordings: Vec<(String, u32)>,
    /// Release of the guests' kernel.
    pub(super) release: String,
    /// The first repeats, made in hosts that are lost.
    pub(super) made: Vec<Made>,
}

/// What came out, or why nothing did.
pub(super) type Product = Result<(Outcome, Vec<Timeline>), Failure>;

/// Why nothing came out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) said: String,
    /// Guests did not come up, or died, time and again: another host may do better.
    pub(super) lost: bool,
}

/// Name of the file with a repeat that was made.
pub(super) fn made(number: usize) -> String {
    format!("made-{number}.json")
}

/// Name of the file with a recording.
pub(super) fn recording(index: usize) -> String {
    format!("{index}.fdsk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_scenario::Overrides;
    use std::path::Path;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        // All kinds of loads, workloads, arms and parameters are in these.
        for file in ["kvm/echo-mixed.toml", "smp/nice.toml", "tavs/pbratio.toml", "tavs/desk.toml"] {
            let scenario = Scenario::load(&folder.join(file), &Overrides::default()).unwrap();
            let recordings = vec![("frontdesk".to_owned(), 2)];
            let order = Order { scenario, recordings, release: "6.1.0".to_owned(), made: Vec::new() };
            let read: Order = serde_json::from_slice(&serde_json::to_vec(&order).unwrap()).unwrap();
            assert_eq!(read.scenario, order.scenario, "{file}");
            assert_eq!((read.recordings, read.release), (order.recordings, order.release), "{file}");
        }
    }
}
