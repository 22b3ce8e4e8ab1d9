//! The lab's guests under KVM, on an emulated host: a short run of scenarios/kvm/echo-mixed.toml, of which
//! only the order is asked, by the median: where other tests take time from the host, the longest of some
//! thirty answers tells of them.
//!
//! Needs root, QEMU, and what `make build` makes. The first run makes the host's system.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_testing::{Need, leave_out};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `frontdesk lab` ends with where it could make its run: the scenario's bars are reached, or are not.
const MEASURED: [i32; 2] = [0, 1];

#[test]
fn requests_to_a_guest_under_kvm_are_answered_sooner_with_frontdesk() {
    const TESTS: &str = "guests under KVM on an emulated host";
    for (program, need) in [("qemu-system-x86_64", Need::Qemu), ("mmdebstrap", Need::Debian)] {
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            return leave_out(TESTS, need, format_args!("{program} does not run (tools/setup.sh vms)"));
        }
    }
    if !rustix::process::geteuid().is_root() {
        return leave_out(TESTS, Need::Root, "VMs get taps and control groups");
    }
    let folder = tempfile::tempdir().unwrap();
    let (json, recording) = (folder.path().join("result.json"), folder.path().join("run.fdsk"));
    let output = Command::new(env!("CARGO_BIN_EXE_frontdesk"))
        .arg("lab")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/kvm/echo-mixed.toml"))
        .args(["--arms", "stock,frontdesk", "--repeats", "1", "--duration", "1s"])
        // For slow machines, and it may be that only half of this one is there.
        .args(["--set", "host.dilation=30"])
        // What else runs here takes time from the host's CPUs, and an answer seems to take so much longer.
        .args(["--set", "policy.tavs.io_threshold=3ms", "--json"])
        .arg(&json)
        .arg("--record")
        .arg(&recording)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.code().is_some_and(|code| MEASURED.contains(&code)), "{said}");

    let result: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let arm = |name: &str| &result["arms"][name];
    let response = |name: &str, number: &str| arm(name)["response_ms"]["mixed"][number].as_f64().unwrap();
    let (stock, frontdesk) = (response("stock", "p50"), response("frontdesk", "p50"));
    assert!(frontdesk < stock, "a request takes {frontdesk} ms with frontdesk, {stock} ms without\n{said}");
    let (boosts, requests) = (arm("frontdesk")["boosts"].as_f64().unwrap(), response("frontdesk", "count"));
    assert!(boosts > requests / 2.0, "{boosts} boosts for {requests} requests\n{said}");
    assert!(result["host"]["emulated_on"].is_object(), "{said}");

    let recorded = std::fs::metadata(recording).unwrap().len();
    assert!(recorded > 0, "{said}");
    let log = std::fs::read_to_string(folder.path().join("run.fdsk.log")).unwrap();
    assert!(log.contains("its guest tasks are known from"), "its log does not tell of the VM: {log:?}");
}
