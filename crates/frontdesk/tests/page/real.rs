//! The page before a real daemon, which needs root.

use crate::operator::{self, FRONTDESK, Process, boot};
use crate::served::{PASSWORD, Served};
use crate::{Driver, MS, in_a_browser_alone, until};
use fantoccini::Locator;
use fantoccini::key::Key;
use frontdesk_guardian::{GUARDIAN_ARGUMENT, Guardian};
use frontdesk_linux::cgroup::Hierarchy;
use frontdesk_testing::{Need, leave_out};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// A host has one daemon.
static ALONE: Mutex<()> = Mutex::new(());

/// The page and the commands, here and from elsewhere, say the same.
#[test]
fn what_is_impossible_is_what_the_daemon_refuses() {
    if !rustix::process::geteuid().is_root() {
        return leave_out("what_is_impossible_is_what_the_daemon_refuses", Need::Root, "it starts a daemon");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    std::fs::set_permissions(home, PermissionsExt::from_mode(0o755)).unwrap();
    let (socket, config, password) =
        (home.join("control.sock"), home.join("frontdesk.toml"), home.join("password"));
    let terms = "[vms]\nlibvirt = false\n[control]\noperators = 'nogroup'\noperator_targets = ['pid:*']\n\
                 [reserve]\nspare = 0.1\ncpus = [0, 1]\n";
    std::fs::write(&config, terms).unwrap();
    let mut daemon = operator::Daemon::start(home, &config, &["--socket", socket.to_str().unwrap()]);
    assert!(daemon.line.starts_with("following"), "{}", daemon.log());
    let served = Served::before((), &socket);
    let run = |words: &[&str], whence: &[&str]| {
        let mut command = Command::new(FRONTDESK);
        let output = command.args(words).args(whence).env("XDG_STATE_HOME", home).output().unwrap();
        (output.status.code().unwrap(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default())
    };
    let (here, elsewhere) = (["--socket", socket.to_str().unwrap()], ["--host", served.address.as_str()]);
    std::fs::write(&password, PASSWORD).unwrap();
    std::fs::set_permissions(&password, PermissionsExt::from_mode(0o600)).unwrap();
    let login =
        ["login", "--fingerprint", &served.fingerprint, "--password-file", password.to_str().unwrap()];
    assert_eq!(run(&login, &elsewhere).0, 0);

    let idle = || Process(Command::new("sleep").arg("600").spawn().unwrap());
    let processes = [idle(), idle(), idle()];
    let pids: Vec<String> = processes.iter().map(|process| process.0.id().to_string()).collect();
    let ask = |pid: &str, slice: &str, whence: &[&str]| {
        run(&["reserve", pid, "--period", "10ms", "--slice", slice, "--json"], whence)
    };
    for pid in &pids[..2] {
        assert_eq!(ask(pid, "6ms", &elsewhere).0, 0);
    }
    assert_eq!(ask(&pids[2], "1ms", &elsewhere).1["slice_ns"], MS);
    let (status, refused) = ask(&pids[2], "4ms", &elsewhere);
    assert_eq!(
        (status, &refused),
        (1, &ask(&pids[2], "4ms", &here).1),
        "the same from here and from elsewhere"
    );
    // Deciding takes 60 us of each period: of the one with six milliseconds, and of this one.
    let fitting = 3 * MS - 120_000;
    assert_eq!(refused["refused"]["fit"]["slice_ns"], fitting, "{refused}");
    let slice_of_third = || {
        let (_, list) = run(&["list", "--json"], &here);
        let target = json!(format!("pid:{}", pids[2]));
        let all = list["reservations"].as_array().unwrap().clone();
        all.iter().find(|one| one["target"] == target).unwrap()["slice_ns"].as_u64().unwrap()
    };
    assert_eq!(slice_of_third(), MS, "a refusal changes nothing");

    match Driver::start() {
        None => leave_out("the page", Need::Browser, "chromedriver does not run (tools/setup.sh vms)"),
        Some(driver) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let browser = driver.browser(json!({})).await;
                browser.log_in(&served).await;
                until("three cards", async || {
                    browser.0.find_all(Locator::Css(".card")).await.is_ok_and(|cards| cards.len() == 3)
                })
                .await;
                // A position of the slider, in thousandths of the period.
                let moves = async |position: u32| {
                    let script = "const slice = document.querySelectorAll('.slice')[2]; slice.value = arguments[0]; \
                                  slice.dispatchEvent(new Event('input', { bubbles: true }))";
                    browser.0.execute(script, vec![json!(position)]).await.unwrap();
                };
                moves(1000).await;
                browser.says(".card.wrong .verdict", "Impossible: at most 2.88 ms of 10 ms").await;
                moves(288).await;
                until("what just fits", async || slice_of_third() == fitting).await;
                browser.gone(".card.wrong").await;
                moves(289).await;
                browser.says(".card.wrong .verdict", "Impossible: at most 2.88 ms of 10 ms").await;
                assert_eq!(slice_of_third(), fitting);
                browser.0.close().await.unwrap();
            });
        }
    }
    assert_eq!(ask(&pids[2], "2.89ms", &here).0, 1, "the daemon says so, too");
    assert_eq!(run(&["release", &pids[2], "--json"], &elsewhere).1["slice_ns"], fitting);
    daemon.end();
}

/// The page shows what happens to VMs that run, without being loaded again.
#[test]
fn what_happens_to_vms_is_seen_at_a_glance() {
    if !rustix::process::geteuid().is_root() {
        return leave_out("what_happens_to_vms_is_seen_at_a_glance", Need::Root, "it starts a daemon");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    in_a_browser_alone(async |driver| {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        std::fs::set_permissions(home, PermissionsExt::from_mode(0o755)).unwrap();
        let (socket, config) = (home.join("control.sock"), home.join("frontdesk.toml"));
        std::fs::write(
            &config,
            format!("[vms]\nqmp = ['{}/*.qmp']\n[control]\noperators = 'nogroup'\n", home.display()),
        )
        .unwrap();
        let guardian = Guardian::start(Path::new(FRONTDESK), GUARDIAN_ARGUMENT).unwrap();
        let root = Hierarchy::detect().unwrap().root_group();
        let group = |name: &str| {
            guardian.create_group(&root, &format!("frontdesk-{name}-{}", std::process::id())).unwrap()
        };
        let (alices, bobs) = (group("glance-alice"), group("glance-bob"));
        let mut daemon = operator::Daemon::start(home, &config, &["--socket", socket.to_str().unwrap()]);
        let served = Served::before((), &socket);
        let browser = driver.browser(json!({})).await;
        browser.0.goto(&format!("https://{}/", served.address)).await.unwrap();
        browser.shown("#login").await;
        let password = browser.find("#password").await;
        password.send_keys(&format!("{PASSWORD}{}", char::from(Key::Enter))).await.unwrap();
        browser.says("#glance", "No VM is followed.").await;

        let computes = operator::firmware(home);
        let (_alice, mut operator_of_alice) =
            boot(home, &alices, "alice", &["-bios", computes.to_str().unwrap()]);
        browser.says("#glance .vm:nth-child(1) h3", "alice").await;
        browser.says("#glance .vm:nth-child(1) .trouble", "its tasks cannot be told apart").await;
        let cpu = async || {
            let first = browser.0.find(Locator::Css("#glance .vm:nth-child(1) dd")).await.ok()?;
            let text = first.text().await.ok()?;
            text.trim_end_matches(" %").parse::<f64>().ok()
        };
        until("she computes", async || cpu().await.is_some_and(|percent| percent > 1.0)).await;
        browser.open("#glance .vm:nth-child(1) details").await;
        browser.says("#glance .vm:nth-child(1) .why", "nothing came that could boost alice").await;
        operator_of_alice.execute("stop", &json!({}));
        browser.says("#glance .vm:nth-child(1) .marks", "paused").await;
        until("she does nothing", async || cpu().await.is_some_and(|percent| percent < 1.0)).await;

        let (mut bob, mut operator_of_bob) = boot(home, &bobs, "bob", &[]);
        browser.says("#glance .vm:nth-child(2) h3", "bob").await;
        // As the command says it.
        let status = Command::new(FRONTDESK).args(["status", "--json", "--socket"]).arg(&socket).output();
        let status: Value = serde_json::from_slice(&status.unwrap().stdout).unwrap();
        let names: Vec<&str> =
            status["vms"].as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["alice", "bob"]);
        operator_of_bob.execute("quit", &json!({}));
        bob.0.wait().unwrap();
        browser.gone("#glance .vm:nth-child(2)").await;
        operator_of_alice.execute("cont", &json!({}));
        browser.lacks("#glance .vm:nth-child(1) .marks", &["paused"]).await;
        browser.picture("glance-real.png").await;
        browser.0.close().await.unwrap();
        daemon.end();
    });
}
