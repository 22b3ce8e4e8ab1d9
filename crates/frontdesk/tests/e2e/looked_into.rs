//! A daemon at work with real VMs, asked by the command and looked at on the page.

use crate::browser::Driver;
use crate::served::Served;
use crate::{FRONTDESK, alone, signal, start, wait_for};
use frontdesk_testing::{Need, leave_out};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_daemon_can_be_looked_into() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path());
    let socket = running.run_dir.join("control.sock");
    let status = |arguments: &[&str]| {
        let output = Command::new(FRONTDESK)
            .arg("status")
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), told, String::from_utf8(output.stderr).unwrap())
    };
    let json = || status(&["--json"]).1.parse::<Value>().ok();
    let boosts = |status: &Value| {
        let vms = status["vms"].as_array().unwrap().iter();
        vms.flat_map(|vm| vm["vcpus"].as_array().unwrap())
            .map(|vcpu| vcpu["boosts"].as_u64().unwrap())
            .sum::<u64>()
    };
    let seen = wait_for("a boost in the status", || json().filter(|status| boosts(status) > 0));
    assert_eq!(seen["daemon"]["pid"], running.daemon);
    assert_eq!(seen["vms"].as_array().unwrap().len(), 3);
    assert!(seen["daemon"]["decision_latency"]["count"].as_u64().unwrap() > 0);
    for vm in seen["vms"].as_array().unwrap() {
        assert_eq!(vm["identity"]["exact"], true, "{vm}");
        assert!(vm["memory_bytes"].as_u64().unwrap() <= 64 * 1024, "{vm}");
        assert!(vm["vcpus"][0]["ran_ns"].as_u64().unwrap() > 0, "{vm}");
    }
    let (code, told, _) = status(&["--why", "mixed"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("there came for mixed:") && told.contains("Believed to be I/O-bound"), "{told}");
    let (code, _, said) = status(&["--why", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no VM is named \"nobody\"; followed are: cpu-1, cpu-2, mixed"), "{said}");
    in_the_browser(&socket);
    signal(running.lab.id(), "INT");
    running.end();
    assert_eq!(status(&[]).0, Some(2));
}

/// What is done for real VMs is on the page: who comes first, and why.
fn in_the_browser(socket: &Path) {
    let Some(driver) = Driver::start() else {
        return leave_out(
            "boosts on the page",
            Need::Browser,
            "chromedriver does not run (tools/setup.sh vms)",
        );
    };
    let folder = tempfile::tempdir().unwrap();
    let served = Served::before((), &relay(folder.path(), socket));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let browser = driver.browser(json!({})).await;
        browser.log_in(&served).await;
        // They are in the order of their names.
        let mixed = |element: &str| format!("#glance .vm:nth-child(3) {element}");
        browser.says(&mixed("h3"), "mixed").await;
        browser.says(&mixed(".marks"), "first, for a packet for TCP port 7").await;
        browser.open(&mixed("details")).await;
        for text in ["there came for mixed:", "of these boosted.", "Believed to be I/O-bound"] {
            browser.says(&mixed(".why"), text).await;
        }
        assert!(!browser.is_shown("#glance .trouble").await);
        browser.picture("glance-boosted.png").await;
        browser.0.close().await.unwrap();
    });
}

/// A socket that anybody may connect to, and who does is root to the daemon: the lab's lets in nobody else.
fn relay(folder: &Path, daemon: &Path) -> PathBuf {
    let (relay, daemon) = (folder.join("relay.sock"), daemon.to_owned());
    let listener = UnixListener::bind(&relay).unwrap();
    for path in [folder, &relay] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    // Until the daemon is gone.
    std::thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let Ok(to) = UnixStream::connect(&daemon) else { return };
            for (mut from, mut to) in [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)] {
                std::thread::spawn(move || {
                    let copied = std::io::copy(&mut from, &mut to);
                    to.shutdown(std::net::Shutdown::Write).and(copied)
                });
            }
        }
    });
    relay
}
