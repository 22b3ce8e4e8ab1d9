//! The page in a real browser (Debian's Chromium), served by `frontdesk serve`, mostly with a daemon that is
//! not a real one.
//!
//! FRONTDESK_PICTURES names a folder in which the browser leaves pictures of what it shows.

#![allow(clippy::unwrap_used)] // A test that panics fails.

#[path = "page/browser.rs"]
mod browser;
mod operator;
#[path = "page/real.rs"]
mod real;
mod served;
#[path = "page/told.rs"]
mod told;

use browser::{Browser, Driver, until};
use fantoccini::Locator;
use fantoccini::actions::{InputSource, MOUSE_BUTTON_LEFT, MouseActions, PointerAction};
use fantoccini::key::Key;
use frontdesk_control_protocol::{Query, Status, Target};
use frontdesk_engine::Reason;
use frontdesk_testing::{Need, leave_out};
use serde_json::json;
use served::{LOOK_PASSWORD, Served};
use std::process::Command;
use std::time::Duration;
use told::{busy, decision};

const MS: u64 = 1_000_000;

fn in_a_browser(test: impl AsyncFn(&Driver, &Served)) {
    let Some(driver) = Driver::start() else {
        return leave_out("the page", Need::Browser, "chromedriver does not run (tools/setup.sh vms)");
    };
    let served = Served::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(&driver, &served));
}

fn alice() -> Target {
    Target::Vm("alice".to_owned())
}

/// The slice and period that somebody has.
fn terms(served: &Served, target: &Target) -> Option<(u64, u64)> {
    served.daemon.reservation(target).map(|one| (one.slice_ns, one.period_ns))
}

#[test]
fn reservations_are_steered_with_the_keyboard_alone() {
    in_a_browser(async |driver, served| {
        let browser = driver.browser(serde_json::json!({})).await;
        browser.log_in(served).await;
        browser.says("#targets", "<i>gone</i>").await;
        let reserve = browser.find("[aria-label=\"Reserve for alice (vm:alice)\"]").await;
        reserve.send_keys(&char::from(Key::Enter).to_string()).await.unwrap();
        browser.says(".terms", "1 ms every 10 ms on cpu0").await;
        assert_eq!(terms(served, &alice()), Some((MS, 10 * MS)));
        // The focus is at the slice.
        let keys = |key: Key, times: usize| String::from(char::from(key)).repeat(times);
        let slice = browser.0.active_element().await.unwrap();
        assert_eq!(slice.attr("class").await.unwrap().as_deref(), Some("slice"));
        slice.send_keys(&keys(Key::Right, 50)).await.unwrap();
        until("1.5 ms", async || terms(served, &alice()) == Some((MS * 3 / 2, 10 * MS))).await;
        browser.says(".terms", "1.5 ms every 10 ms").await;
        // The fraction stays when the period changes.
        slice.send_keys(&format!("{}{}", keys(Key::Shift, 1), keys(Key::Tab, 1))).await.unwrap();
        let period = browser.0.active_element().await.unwrap();
        assert_eq!(period.attr("class").await.unwrap().as_deref(), Some("period"));
        period.send_keys(&keys(Key::Left, 1)).await.unwrap();
        until("of 9 ms", async || terms(served, &alice()) == Some((1_350_000, 9 * MS))).await;
        let said = period.attr("aria-valuetext").await.unwrap().unwrap();
        assert_eq!(said, "9 ms");
        let pause = browser.find("[aria-label=\"Pause alice\"]").await;
        pause.send_keys(&keys(Key::Enter, 1)).await.unwrap();
        browser.says(".badge", "paused").await;
        assert!(served.daemon.reservation(&alice()).unwrap().paused);
        browser.press("Resume alice").await;
        browser.gone(".badge").await;
        browser.press("Release alice").await;
        browser.gone(".card").await;
        assert_eq!(terms(served, &alice()), None);
        browser.0.close().await.unwrap();
    });
}

#[test]
fn the_host_is_seen_at_a_glance_and_each_vm_says_why() {
    in_a_browser(async |driver, served| {
        let mut status = busy();
        // Whatever a guest or its owner calls it.
        status.vms[1].name = "<i>bob</i>".to_owned();
        served.daemon.tell(status.clone());
        let phone = json!({ "mobileEmulation": { "deviceMetrics": { "width": 390, "height": 844, "pixelRatio": 2.0 } } });
        let browser = driver.browser(phone).await;
        browser.log_in(served).await;
        browser.says("#glance .vm:nth-child(1) h3", "alice").await;
        browser.says("#glance .vm:nth-child(2) h3", "<i>bob</i>").await;
        browser.says("#glance .vm:nth-child(2) .trouble", "it runs without frontdesk's QEMU plugin").await;
        browser.says("#glance .daemon", "Acting by real time. Decisions take 81 µs").await;
        browser.open("#glance .vm:nth-child(1) details").await;
        for text in [
            "there came for alice: 12 packets to TCP port 7.",
            "5 of these boosted.",
            "Believed to be I/O-bound (belief above 20): sshd (431) (60).",
            "A boosted vCPU is given 6.0 ms of CPU time to answer: a guest may finish a tick",
            "Shows frames and plays sound: ",
            "an episode began 2.5 s ago with the Enter key. vCPU 1 is slow.",
            "Background work, as it used more than 50 % of a CPU before: sshd (431) (62 % of a CPU).",
            "<b>calc</b>: 41 High, 0 Common, 3 Low; of late 4 reads soon after an input and 1 soon before one, so",
            "so a person is thought to wait for it.",
            "task 0x1000: 0 High, 12 Common, 900 Low",
            "nobody comes first, for its <i>channel</i> is closed",
            "Note: packets that come by <b>macvtap</b> are not heard.",
        ] {
            browser.says("#glance .vm:nth-child(1) .why", text).await;
        }
        let notes = "packets that come by <b>macvtap</b> are not heard. disk disk0: nobody comes first";
        browser.says("#glance .vm:nth-child(1) .notes", notes).await;
        assert!(!browser.is_shown("#glance .vm:nth-child(2) .notes").await, "bob has none");
        browser.says("#glance .vm:nth-child(1) .marks", "23.5 of 24 frames/s").await;
        browser.says("#glance .vm:nth-child(1) .marks", "share × 1.5").await;
        browser
            .says("#glance .vm:nth-child(1) .marks", "somebody waits since the Enter key, 2.5 s ago")
            .await;
        browser.says("#glance .vm:nth-child(1) .marks", "slow: vCPU 1").await;
        // A second later it has run half of it, was boosted thrice, and is boosted now.
        status.at_ns += 1_000 * MS;
        let alice = &mut status.vms[0];
        let vcpu = &mut alice.engine.vcpus[0];
        (vcpu.ran_ns, vcpu.boosts, vcpu.boosted) = (vcpu.ran_ns + 500 * MS, vcpu.boosts + 3, true);
        // Half a second ago somebody was answered first, and it has read from its disk.
        alice.recent.decisions = vec![decision(status.at_ns - 500 * MS, Reason::Boosted)];
        alice.disks[0].report.served = [44, 12, 1003];
        served.daemon.tell(status.clone());
        browser.says("#glance .vm:nth-child(1) dl", "50 %").await;
        browser.says("#glance .vm:nth-child(1) .marks", "boosted").await;
        browser.says("#glance .vm:nth-child(1) .marks", "first, for a packet for TCP port 7").await;
        browser.says("#glance .vm:nth-child(1) dl", "3, 0, 100").await;
        browser.picture("glance.png").await;
        let wider = "return document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.0.execute(wider, vec![]).await.unwrap(), json!(false), "a phone need not scroll");
        // The next one has to wait.
        status.at_ns += 100 * MS;
        status.vms[0].recent.decisions.push(decision(status.at_ns, Reason::Overdrawn));
        served.daemon.tell(status.clone());
        let waits = "waits for its turn, for a packet for TCP port 7";
        browser.says("#glance .vm:nth-child(1) .marks", waits).await;
        // Nobody waits any more, and the film is over.
        status.at_ns += 3_000 * MS;
        (status.vms[0].engine.asymmetric, status.vms[0].engine.multimedia) = (None, None);
        served.daemon.tell(status.clone());
        browser.lacks("#glance .vm:nth-child(1) .marks", &["waits", "frames", "first"]).await;
        status.vms[1].recent = Default::default();
        status.vms[1].recent.window_seconds = 60;
        status.vms[1].engine.tasks.clear();
        served.daemon.tell(status.clone());
        browser.open("#glance .vm:nth-child(2) details").await;
        browser.says("#glance .vm:nth-child(2) .why", "In the last 60 s nothing came that could boost").await;
        let trouble = "Trouble: it runs without frontdesk's QEMU plugin.";
        browser.says("#glance .vm:nth-child(2) .why", trouble).await;
        status.vms.truncate(1);
        served.daemon.tell(status);
        browser.gone("#glance .vm:nth-child(2)").await;
        assert!(served.daemon.asked().is_empty(), "looking changes nothing");
        browser.0.close().await.unwrap();
    });
}

/// What the page says of a VM is what the command says, word by word.
#[test]
fn the_page_explains_as_the_command_does() {
    in_a_browser(async |driver, served| {
        let browser = driver.browser(json!({})).await;
        browser.log_in(served).await;
        let mut observes = busy();
        observes.daemon.acting = false;
        let mut idle = busy();
        (idle.vms[0].recent, idle.vms[0].engine.multimedia) = Default::default();
        for (number, (mut status, says)) in [
            (busy(), "It has had 240 boosts for what it plays"),
            (observes, "Advice: run the daemon without --observe"),
            (idle, "its network or disk cannot be followed"),
        ]
        .into_iter()
        .enumerate()
        {
            // Another VM each time, so that nothing on the page is of the one before.
            let name = format!("vm-{number}");
            status.vms.truncate(1);
            status.vms[0].name.clone_from(&name);
            served.daemon.tell(status);
            let mut command = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
            let output =
                command.args(["status", "--why", &name, "--socket"]).arg(served.daemon.socket()).output();
            let told = String::from_utf8(output.unwrap().stdout).unwrap();
            let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(told.contains(says), "{told}");
            browser.says("#glance .vm h3", &name).await;
            browser.open("#glance .vm details").await;
            browser.says("#glance .vm .why", says).await;
            let page = browser.find("#glance .vm .why").await.text().await.unwrap();
            for paragraph in page.lines() {
                assert!(told.contains(paragraph), "the command does not say {paragraph:?}: {told}");
            }
            assert!(page.lines().count() >= 7, "{page}");
        }
        browser.0.close().await.unwrap();
    });
}

fn in_a_browser_alone(test: impl AsyncFn(&Driver)) {
    let Some(driver) = Driver::start() else {
        return leave_out("the page", Need::Browser, "chromedriver does not run (tools/setup.sh vms)");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(&driver));
}

#[test]
fn other_hosts_are_on_the_same_page() {
    in_a_browser_alone(async |driver| {
        let mut status: Status = serde_json::from_str(include_str!("../src/status/sample.json")).unwrap();
        let (one, other) = (Served::start(), Served::start());
        let served = Served::showing(&[&one, &other]);
        served.daemon.tell(status.clone());
        status.vms[0].name = "<i>carol</i>".to_owned();
        // Nothing in it where a line could be broken.
        let unheard = "unheard".repeat(20);
        status.vms[0].unheard = vec![unheard.clone()];
        one.daemon.tell(status);
        let details = if one.address < other.address { 1 } else { 2 };
        let host = format!(".other-host:nth-of-type({details})");
        let look = async |browser: &Browser| {
            browser.log_in(&served).await;
            browser.says("#others", &one.address).await;
            browser.says("#others", "2 VMs").await;
            browser.says("#others", "trouble with: bob").await;
            // Its daemon has nothing to tell.
            browser.says("#others .trouble", "not a real one").await;
            browser.open(&host).await;
            browser.says(&format!("{host} .vm h3"), "<i>carol</i>").await;
            browser.open(&format!("{host} .vm details")).await;
            browser
                .says(&format!("{host} .why"), "there came for <i>carol</i>: 12 packets to TCP port 7")
                .await;
        };
        let metrics = json!({ "width": 360, "height": 800, "pixelRatio": 2.0 });
        let phone = driver.browser(json!({ "mobileEmulation": { "deviceMetrics": metrics } })).await;
        look(&phone).await;
        phone.says(&format!("{host} .notes"), &unheard).await;
        let width = phone.0.execute("return document.documentElement.scrollWidth", vec![]).await.unwrap();
        assert_eq!(width, 360, "a phone need not scroll");
        phone.picture("hosts-narrow.png").await;
        phone.0.close().await.unwrap();
        let browser = driver.browser(json!({})).await;
        look(&browser).await;
        browser.picture("hosts.png").await;
        assert!(one.daemon.asked().is_empty() && other.daemon.asked().is_empty());
        drop(one);
        browser.says(&format!("{host} > summary"), "cannot connect").await;
        browser.says("#glance .vm:nth-child(1) h3", "alice").await;
        browser.0.close().await.unwrap();
    });
}

#[test]
fn who_may_only_look_in_sees_nothing_to_change() {
    in_a_browser(async |driver, served| {
        let reserve = br#"{"reserve":{"target":"vm:alice","period_ns":10000000,"slice_ns":1000000}}"#;
        let reserve = Query::parse(reserve).unwrap();
        frontdesk_control_protocol::ask(&served.daemon.socket(), &reserve).unwrap();
        let browser = driver.browser(json!({})).await;
        browser.0.goto(&format!("https://{}/", served.address)).await.unwrap();
        browser.shown("#login").await;
        let password = browser.find("#password").await;
        password.send_keys(&format!("{LOOK_PASSWORD}{}", char::from(Key::Enter))).await.unwrap();
        browser.says(".terms", "1 ms every 10 ms on cpu0").await;
        browser.shown(".efficiency").await;
        for changes in [".slice", ".pause", ".release", ".hard", "#targets"] {
            assert!(!browser.is_shown(changes).await, "{changes}");
        }
        browser.picture("looks.png").await;
        browser.0.close().await.unwrap();
    });
}

#[test]
fn what_is_impossible_is_said_before_it_is_asked_for() {
    in_a_browser(async |driver, served| {
        let browser = driver.browser(serde_json::json!({})).await;
        browser.log_in(served).await;
        for name in ["render (pid:4711)", "alice (vm:alice)", "desk (vm:desk)"] {
            browser.press(&format!("Reserve for {name}")).await;
        }
        until("three cards", async || {
            browser.0.find_all(Locator::Css(".card")).await.is_ok_and(|cards| cards.len() == 3)
        })
        .await;
        let before = served.daemon.asked().len();
        let slice = browser.0.find_all(Locator::Css(".slice")).await.unwrap().remove(0);
        slice.send_keys(&char::from(Key::End).to_string()).await.unwrap();
        browser.says(".card.wrong .verdict", "Impossible: at most").await;
        assert_eq!(slice.attr("aria-invalid").await.unwrap().as_deref(), Some("true"));
        browser.picture("impossible.png").await;
        assert_eq!(served.daemon.asked().len(), before, "it was not asked for");
        // Back, until it fits; and what fits is asked for.
        slice.send_keys(&char::from(Key::Home).to_string()).await.unwrap();
        browser.gone(".card.wrong").await;
        until("the least slice", async || terms(served, &Target::Process(4711)) == Some((10_000, 10 * MS)))
            .await;
        browser.press("Reserve for <i>gone</i> (pid:99)").await;
        browser.says("#notice", "There is no process 99.").await;
        browser.0.close().await.unwrap();
    });
}

#[test]
fn changes_apply_while_dragging_and_the_latest_wins() {
    in_a_browser(async |driver, served| {
        let browser = driver.browser(serde_json::json!({})).await;
        browser.log_in(served).await;
        for name in ["alice (vm:alice)", "desk (vm:desk)", "render (pid:4711)"] {
            browser.press(&format!("Reserve for {name}")).await;
        }
        browser.says(".card:nth-child(3)", "pid:4711").await;
        // The pointer's coordinates are the window's.
        browser.0.execute("scrollTo(0, 0)", vec![]).await.unwrap();
        let slice = browser.find(".slice").await;
        let (x, y, width, height) = slice.rectangle().await.unwrap();
        let at = |part: f64| PointerAction::MoveTo {
            duration: Some(Duration::from_millis(20)),
            x: (x + 8.0 + (width - 16.0) * part).round(),
            y: (y + height / 2.0).round(),
        };
        let mut drag = MouseActions::new("mouse".to_owned())
            .then(at(0.1))
            .then(PointerAction::Down { button: MOUSE_BUTTON_LEFT });
        for step in 0..=30 {
            drag = drag.then(at(0.1 + f64::from(step) * 0.01));
        }
        // The button is still down.
        browser.0.perform_actions(drag).await.unwrap();
        until("about 40 %", async || terms(served, &alice()).is_some_and(|(slice, _)| slice > 39 * MS / 10))
            .await;
        let position = slice.prop("value").await.unwrap().unwrap().parse::<u64>().unwrap();
        until("the latest", async || terms(served, &alice()) == Some((position * 10_000, 10 * MS))).await;
        browser.0.release_actions().await.unwrap();
        let asked = served.daemon.asked();
        let Some(Query::Reserve(last)) = asked.last() else { panic!("{asked:?}") };
        assert_eq!(last.slice_ns, position * 10_000);
        browser.picture("page.png").await;
        browser
            .0
            .execute("document.documentElement.style.colorScheme = 'dark'; scrollTo(0, 0)", vec![])
            .await
            .unwrap();
        browser.picture("dark.png").await;
        browser.click("#logout").await;
        browser.shown("#login").await;
        browser.picture("login.png").await;
        browser.0.close().await.unwrap();
    });
}

#[test]
fn a_narrow_screen_shows_all_without_scrolling_sideways() {
    in_a_browser(async |driver, served| {
        let phone =
            serde_json::json!({ "deviceMetrics": { "width": 360, "height": 800, "pixelRatio": 2.0 } });
        let browser = driver.browser(serde_json::json!({ "mobileEmulation": phone })).await;
        browser.log_in(served).await;
        browser.press("Reserve for desk (vm:desk)").await;
        browser.says(".terms", "1 ms every 10 ms on cpu0, cpu1").await;
        let width = browser.0.execute("return document.documentElement.scrollWidth", vec![]).await.unwrap();
        assert_eq!(width, 360);
        browser.picture("narrow.png").await;
        browser.0.close().await.unwrap();
    });
}
