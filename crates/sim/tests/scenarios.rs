//! Scenarios in the simulator.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // A test that panics fails; counts are small.

use frontdesk_engine::{ActionKind, Boost, BoostTarget, EventKind, MediaDevice};
use frontdesk_scenario::{Overrides, Scenario};
use frontdesk_sim::{FeedEntry, decisions, feed_entries, simulate};
use std::path::Path;

fn load(name: &str, set: &[&str]) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let set = set.iter().map(ToString::to_string).collect();
    Scenario::load(&path, &Overrides { set, ..Overrides::default() }).unwrap()
}

fn json(scenario: &Scenario, seed: u64, threads: usize) -> String {
    let simulated = simulate(std::slice::from_ref(scenario), seed, threads, &|_, _| {}).unwrap();
    serde_json::to_string(&simulated[0].outcome).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    for name in ["tavs/table1.toml", "papers/tavs-table1.toml"] {
        let scenario = load(name, &["duration=5s", "repeats=2"]);
        let one = json(&scenario, 3, 1);
        assert_eq!(one, json(&scenario, 3, 1));
        assert_eq!(one, json(&scenario, 3, 2));
        assert_ne!(one, json(&scenario, 4, 1));
    }
}

#[test]
fn every_scenario_of_the_lab_has_a_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let files = ["echo-mixed.toml", "tavs/churn.toml", "tavs/hackbench.toml", "tavs/hostile.toml"];
    let more =
        ["tavs/pbratio.toml", "tavs/ports.toml", "tavs/window.toml", "tavs/desk.toml", "tavs/heavy.toml"];
    let smp = ["smp/two-vcpus.toml", "smp/four-vcpus.toml", "smp/guests.toml", "smp/nice.toml"];
    for file in files.iter().chain(&more).chain(&smp) {
        assert!(folder.join(file).exists());
        let scenario = load(file, &["duration=2s", "warmup=1s", "repeats=1"]);
        let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
        for (name, arm) in &simulated[0].outcome.arms {
            assert!(arm.rates.values().any(|rate| rate.per_s > 0.0), "{file}, {name}: nothing happens");
        }
    }
}

#[test]
fn frontdesk_answers_sooner_and_keeps_the_shares() {
    let scenario = load("papers/tavs-figure4.toml", &["duration=60s", "repeats=1"]);
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    let mean = |arm: &str| arms[arm].response_ms["mixed"].mean;
    assert!(mean("normal") > 10.0 * mean("tavs"), "{} {}", mean("normal"), mean("tavs"));
    assert!(
        arms["tavs"].cpu_share.values().all(|share| (share - 1.0).abs() < 0.02),
        "{:?}",
        arms["tavs"].cpu_share
    );
}

/// TAVS Figure 5: "CPU fairness among guest domains is guaranteed for all cases".
#[test]
fn a_stream_that_is_boosted_without_limit_takes_nothing_from_anybody_and_loses_nothing() {
    let scenario = load("papers/tavs-figure5-network.toml", &["duration=30s", "repeats=1"]);
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    for (name, arm) in arms {
        let shares = &arm.cpu_share;
        assert!(shares.values().all(|share| (share - 1.0).abs() < 0.02), "{name}: {shares:?}");
    }
    let rate = |arm: &str| arms[arm].rates["mixed/io"].per_s;
    assert!(rate("pb-1") > 1.5 * rate("pb-0"), "{} {}", rate("pb-1"), rate("pb-0"));
}

/// Nobody waits longer than by the kernel alone, because of what was done for others before: not even where
/// two answers in three cannot be boosted.
#[test]
fn answers_that_cannot_all_be_boosted_have_no_longer_tail() {
    let costs = ["2ms", "6ms", "20ms"].map(|cost| format!("vm.mixed.workloads.echo.cost={cost}"));
    let guests = ["sim.guest.scheduler=preempt", "sim.guest.scheduler=eevdf"];
    for (cost, guest) in costs.iter().flat_map(|cost| guests.map(|guest| (cost, guest))) {
        let set = ["duration=300s", "repeats=1", "policy.tavs.io_threshold=20ms", cost, guest];
        let simulated = simulate(&[load("tavs/heavy.toml", &set)], 1, 2, &|_, _| {}).unwrap();
        let arms = &simulated[0].outcome.arms;
        let [stock, own] = ["stock", "frontdesk"].map(|arm| &arms[arm].response_ms["mixed"]);
        assert!(own.mean < 0.95 * stock.mean, "{cost}, {guest}: {own:?}, by the kernel {stock:?}");
        assert!(own.p99 < 1.1 * stock.p99, "{cost}, {guest}: {own:?}, by the kernel {stock:?}");
        let shares = &arms["frontdesk"].cpu_share;
        assert!(shares.values().all(|share| (share - 1.0).abs() < 0.02), "{cost}, {guest}: {shares:?}");
    }
}

/// Beside a film a letter comes while the sound card's interrupt wakes the vCPU, which halts again before the
/// letter is handed over: that ends no boost, and says nothing about whom letters wake.
#[test]
fn who_types_beside_a_film_waits_for_no_neighbour() {
    let counts = ["vm.task-worker.count=17", "vm.viewer.count=4", "vm.developer.count=7"];
    let set = [&counts[..], &["host.vm_cpus=[0,1]", "host.client_cpus=[2]", "repeats=3"]].concat();
    let simulated = simulate(&[load("desktops/office.toml", &set)], 1, 2, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    let viewers = ["viewer-1", "viewer-2", "viewer-3", "viewer-4"];
    for viewer in viewers {
        let [stock, own] = ["stock", "frontdesk"].map(|arm| &arms[arm].response_ms[viewer]);
        assert!(own.max < 0.5 * stock.max, "{viewer}: {own:?}, by the kernel {stock:?}");
    }
    // By the kernel alone several interrupts are handled at once. One by one they cost more CPU time, and the
    // films have all that is left.
    let dropped = |arm: &str| {
        let of_viewer = |viewer: &&str| arms[arm].frames[&format!("{viewer}/film")].dropped;
        viewers.iter().map(of_viewer).sum::<f64>() / 4.0
    };
    let [stock, own] = ["stock", "frontdesk"].map(dropped);
    assert!(own < stock + 0.08, "{own} of the frames are dropped, by the kernel {stock}");
}

/// What somebody starts reads its files, boosted, and they go on typing: their letters have what they need of
/// the budget.
#[test]
fn who_types_beside_a_program_that_starts_is_answered_first() {
    let counts = ["task-worker=16", "knowledge-worker=12", "viewer=4", "developer=8"]
        .map(|of| format!("vm.{}", of.replace('=', ".count=")));
    let set: Vec<&str> = counts.iter().map(String::as_str).chain(["repeats=1"]).collect();
    let simulated = simulate(&[load("desktops/mixed.toml", &set)], 1, 2, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    for worker in 1..=12 {
        let letters = format!("knowledge-worker-{worker}/letters");
        let [stock, own] = ["stock", "frontdesk"].map(|arm| &arms[arm].response_ms[&letters]);
        assert!(own.p95 < 0.5 * stock.p95, "{letters}: {own:?}, by the kernel {stock:?}");
    }
}

/// Where a VM is due a twenty-fourth of a CPU, a letter is a large part of what it runs: all are answered
/// first even so, whatever else the VM does.
#[test]
fn letters_are_answered_first_on_a_host_that_is_asked_for_too_much() {
    let counts = ["task-worker=9", "knowledge-worker=7", "viewer=3", "developer=5"]
        .map(|of| format!("vm.{}", of.replace('=', ".count=")));
    // One repeat has less than two hundred letters of each: a percent of those is chance.
    let host = ["host.vm_cpus=[0]", "host.client_cpus=[1]", "repeats=4"];
    let set: Vec<&str> = counts.iter().map(String::as_str).chain(host).collect();
    let simulated = simulate(&[load("desktops/mixed.toml", &set)], 1, 2, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    for (who, stock) in arms["stock"].response_ms.iter().filter(|(who, _)| !who.ends_with("/program")) {
        let own = &arms["frontdesk"].response_ms[who];
        assert!(own.p95 < 0.5 * stock.p95, "{who}: {own:?}, by the kernel {stock:?}");
        assert!(own.p99 < 0.8 * stock.p99, "{who}: {own:?}, by the kernel {stock:?}");
    }
}

/// Whoever asks for more than the VM is due gets no more than that, however much may be boosted: in guests
/// that finish a slice first most of a boost is not the answer's, and does not count as one. What it waits
/// for meanwhile takes about twice as long as by the kernel alone, for it repays with half of its share.
#[test]
fn nobody_gets_more_than_its_share_by_asking_without_a_pause() {
    for pb_ratio in ["0.125", "0.25", "1.0"] {
        let ratio = format!("policy.tavs.pb_ratio={pb_ratio}");
        let mut set = vec!["duration=300s", "repeats=1", "vm.mixed.workloads.echo.cost=500us", &ratio];
        set.extend(["sim.guest.scheduler=eevdf", "load.0.think=[\"5ms\",\"50ms\"]"]);
        let simulated = simulate(&[load("tavs/heavy.toml", &set)], 1, 2, &|_, _| {}).unwrap();
        let arms = &simulated[0].outcome.arms;
        let shares = &arms["frontdesk"].cpu_share;
        assert!(shares.values().all(|share| (share - 1.0).abs() < 0.01), "{pb_ratio}: {shares:?}");
        let [stock, own] = ["stock", "frontdesk"].map(|arm| &arms[arm].response_ms["mixed"]);
        assert!(own.mean < 1.1 * stock.mean, "{pb_ratio}: {own:?}, by the kernel {stock:?}");
        assert!(own.p99 < 2.5 * stock.p99, "{pb_ratio}: {own:?}, by the kernel {stock:?}");
        assert!(own.max < 4.0 * stock.max, "{pb_ratio}: {own:?}, by the kernel {stock:?}");
    }
}

#[test]
fn a_reservation_that_makes_no_sense_is_refused_with_its_name() {
    let mut scenario = load("echo-mixed.toml", &["sim.scheduler=edf", "duration=1s"]);
    let asked: frontdesk_scenario::SimReservation =
        serde_json::from_str(r#"{ "period": "10ms", "slice": "20ms" }"#).unwrap();
    scenario.sim.reservations.insert("mixed".to_owned(), asked);
    let (_, error) = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap_err();
    assert!(error.to_string().contains("sim.reservations.mixed"), "{error}");
}

#[test]
fn a_reservation_of_an_arm_is_kept_by_the_engines_dispatcher() {
    let scenario = load("vsched/beside.toml", &["duration=10s", "warmup=1s", "repeats=1"]);
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    let p99 = |arm: &str| arms[arm].response_ms["interactive"].p99;
    // 1 ms in every 5 ms: an answer waits for the next period at most, beside VMs that compute.
    assert!(p99("reserved") < 11.0, "{}", p99("reserved"));
    assert!(p99("reserved") < p99("stock"), "{} {}", p99("reserved"), p99("stock"));
    // The batch VM has its minute of every ten in turns: the others do not wait for it.
    let share = &arms["reserved"].cpu_share;
    assert!((1..5).all(|other| share[&format!("other-{other}")] > 1.0) && share["batch"] < 0.7, "{share:?}");
    // What the emulator thread uses is part of the VM's slices, and not more of them.
    let repeat = &arms["reserved"].repeats[0];
    let part = |vm: &str| repeat.cpu_ms[vm] / 1000.0 / repeat.seconds;
    assert!(part("batch") > 0.098 && part("batch") < 0.105, "{}", part("batch"));
    assert!(part("interactive") < 0.205, "{}", part("interactive"));
}

#[test]
fn an_emulator_thread_runs_in_the_slices_of_its_vm() {
    // It works for as long as the guest does: 0.4 ms each for a request, of 1 ms every 5 ms, one request
    // after the other.
    let set = ["duration=10s", "repeats=1", "load.0.think=[\"0s\",\"0s\"]", "sim.costs.packet_in=400us"];
    let simulated = simulate(
        &[load("vsched/beside.toml", &[&set[..], &["sim.guest.request=400us"]].concat())],
        1,
        1,
        &|_, _| {},
    );
    let arms = &simulated.unwrap()[0].outcome.arms;
    let repeat = &arms["reserved"].repeats[0];
    let part = repeat.cpu_ms["interactive"] / 1000.0 / repeat.seconds;
    assert!(part > 0.19 && part < 0.205, "{part}");
}

#[test]
fn vms_beside_a_reservation_keep_their_weights() {
    let set = ["duration=20s", "repeats=1", "vm.other.count=1", "vm.other.weight=512"];
    let mut scenario = load("vsched/beside.toml", &set);
    // The batch VM computes like the other one, at twice its weight.
    scenario.arms["reserved"].reserve.shift_remove("batch");
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let repeat = &simulated[0].outcome.arms["reserved"].repeats[0];
    let ratio = repeat.cpu_ms["batch"] / repeat.cpu_ms["other"];
    assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
}

#[test]
fn nothing_is_decided_about_a_vm_with_a_reservation() {
    let mut scenario = load("vsched/beside.toml", &["duration=10s"]);
    assert_eq!(decisions(&scenario, "reserved", 1, 1).unwrap(), []);
    scenario.arms["reserved"].reserve.clear();
    assert!(!decisions(&scenario, "reserved", 1, 1).unwrap().is_empty(), "it would be boosted");
}

#[test]
fn boosts_for_requests_are_judged_by_their_answers() {
    let judged = |more: &[&str]| {
        let set = [&["duration=10s", "repeats=1"], more].concat();
        let simulated = simulate(&[load("echo-mixed.toml", &set)], 1, 1, &|_, _| {}).unwrap();
        let repeat = &simulated[0].outcome.arms["frontdesk"].repeats[0];
        (repeat.request_boosts, repeat.unanswered_boosts, repeat.response_ms["mixed"].count)
    };
    let (boosts, unanswered, requests) = judged(&[]);
    assert!(2 * boosts > requests, "{boosts} boosts for {requests} requests");
    assert!(2 * unanswered < boosts, "{unanswered} of {boosts}");
    // An answer that takes longer than a boost may last.
    let (boosts, unanswered, _) = judged(&["sim.guest.request=1ms", "policy.tavs.max_boost=100us"]);
    assert!(2 * unanswered > boosts, "{unanswered} of {boosts}");
}

/// As a host sees it: the first that carries anything from the port that was asked, and nothing more until
/// the next request. A driver domain does not see whose packets they are.
#[test]
fn each_request_has_one_reply_where_a_vm_has_its_own_io_path() {
    let counted = |more: &[&str]| {
        let set = [&["duration=10s", "warmup=0s", "repeats=1"], more].concat();
        let (mut packets, mut replies, mut open) = (0, 0, None);
        for entry in feed_entries(&load("echo-mixed.toml", &set), "frontdesk", 1, 1).unwrap() {
            let FeedEntry::Event(event) = entry else { continue };
            match event.kind {
                EventKind::Packet { vm, protocol, port } => {
                    packets += 1;
                    open = Some((vm, protocol, port));
                }
                EventKind::Reply { vm, protocol, port } => {
                    replies += 1;
                    assert_eq!(open.take(), Some((vm, protocol, port)), "a reply to what nobody asked");
                }
                _ => {}
            }
        }
        (packets, replies)
    };
    let (packets, replies) = counted(&["policy.tavs.acknowledgements=false"]);
    assert!(packets > 20 && packets - replies <= 1, "{replies} replies to {packets} packets");
    let (packets, replies) = counted(&["sim.io_path=driver-domain"]);
    assert!(packets > 20 && replies == 0, "{replies} replies to {packets} packets");
}

/// Since Linux 6.6 a guest may let the running task go on until its next tick, and only then the one that the
/// packet woke.
#[test]
fn patience_lasts_as_long_as_a_guest_that_waits_for_its_tick() {
    let unanswered = |kernel: &str, policy: &[&str]| {
        let kernel = format!("guest.kernel={kernel}");
        let set = [&["duration=60s", "repeats=1", &kernel], policy].concat();
        let simulated = simulate(&[load("echo-mixed.toml", &set)], 1, 1, &|_, _| {}).unwrap();
        let repeat = &simulated[0].outcome.arms["frontdesk"].repeats[0];
        assert!(repeat.request_boosts > 50, "{} boosts", repeat.request_boosts);
        repeat.unanswered_boosts as f64 / repeat.request_boosts as f64
    };
    let none = ["policy.tavs.patience=1us", "policy.tavs.io_threshold=500us", "policy.tavs.max_boost=1ms"];
    let (learnt, impatient) = (unanswered("6.12-cloud", &[]), unanswered("6.12-cloud", &none));
    assert!(learnt < 0.01 && impatient > 0.1, "{learnt} {impatient}");
    let before = unanswered("6.1-cloud", &none);
    assert!(before < 0.01, "a guest that preempts at once needs none: {before}");
}

/// The first vCPU takes the packet's interrupt; if the task that it is for runs elsewhere, it is woken there
/// by an interrupt between vCPUs. Who sent that may finish its handler boosted, but no longer than the other
/// one serves.
#[test]
fn a_boost_follows_the_interrupt_to_the_vcpu_that_serves() {
    let mut scenario = load("smp/two-vcpus.toml", &["guest.kernel=6.1-cloud", "duration=60s", "warmup=0s"]);
    // The first task begins on the first vCPU, the second on the other one, and a server stays where it is.
    scenario.vms[0].workloads.swap(0, 1);
    let mut boosted = [Boost::None; 2];
    let (mut handed_on, mut followed, mut served) = (0, 0, 0);
    // The vCPUs of the interrupt that was sent last, and whether that was just now.
    let mut sent = None;
    for entry in feed_entries(&scenario, "frontdesk", 1, 1).unwrap() {
        match entry {
            FeedEntry::Event(event) => {
                if let Some((from, to, just)) = sent.take() {
                    followed += u32::from(just && boosted[to] > Boost::None);
                    if boosted[to] > Boost::None {
                        sent = Some((from, to, false));
                    } else if !just {
                        served += 1;
                        assert!(boosted[from] == Boost::None, "helps nobody: {event:?}");
                    }
                }
                if let EventKind::Ipi { vm, vcpu, to, .. } = event.kind
                    && vm.0 == 0
                    && boosted[usize::from(vcpu)] > Boost::None
                {
                    handed_on += 1;
                    sent = Some((usize::from(vcpu), to.trailing_zeros() as usize, true));
                }
            }
            FeedEntry::Action(action) => {
                if let ActionKind::Boost { vm, target: BoostTarget::Vcpu(vcpu), level } = action.kind
                    && vm.0 == 0
                {
                    boosted[usize::from(vcpu)] = level;
                }
            }
        }
    }
    assert!(handed_on > 10 && followed > handed_on / 2, "{followed} of {handed_on}");
    assert!(served > handed_on / 2, "{served} of {handed_on}");
}

#[test]
fn an_arm_that_observes_counts_no_boosts() {
    let scenario = load("echo-mixed.toml", &["duration=10s", "repeats=1"]);
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    assert_eq!(arms["observe"].boosts, 0);
    assert!(arms["frontdesk"].boosts > 0);
}

#[test]
fn the_emulators_clock_runs_while_the_guest_idles() {
    let cpu_ms = |tick: &str, timer: &str| {
        let set = [
            "duration=10s",
            "repeats=1",
            "load.0.think=[\"200s\",\"300s\"]",
            &format!("sim.guest.tick={tick}"),
            &format!("sim.costs.timer={timer}"),
        ];
        let simulated = simulate(&[load("echo-mixed.toml", &set)], 1, 1, &|_, _| {}).unwrap();
        simulated[0].outcome.arms["io-only"].repeats[0].cpu_ms["mixed"]
    };
    assert!(cpu_ms("0s", "50us") < 0.1);
    // 250 times a second, 50 us and 2 us each for the switch and on the way back to sleep; nothing of the
    // guest's.
    let clock = cpu_ms("4ms", "50us");
    assert!((clock - 2_500.0 * 0.054).abs() < 0.054 * 25.0, "{clock} ms");
}

/// MM Figures 1 and 4: a film that needs more than its half, beside a domain that computes.
#[test]
fn a_film_beside_a_computing_domain_loses_frames_unless_its_share_is_raised() {
    let set = ["duration=20s", "warmup=5s", "repeats=1"];
    let mut scenario = load("papers/mm-figure4-high.toml", &set);
    scenario.arms.retain(|arm, _| ["idle-credit", "cpu-credit", "cpu-mm"].contains(&arm.as_str()));
    scenario.checks = frontdesk_scenario::Checks::default();
    let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
    let frames = |arm: &str| simulated[0].outcome.arms[arm].frames["film/player"];
    let (alone, credit, mm) = (frames("idle-credit"), frames("cpu-credit"), frames("cpu-mm"));
    assert!(alone.dropped == 0.0 && alone.per_s > 23.5, "{alone:?}");
    assert!(credit.per_s < 0.85 * alone.per_s && credit.dropped > 0.15, "{credit:?}");
    assert!(mm.per_s > 0.98 * alone.per_s && mm.jitter_ms < credit.jitter_ms, "{mm:?}");
    // What the engine counts from its events is what was seen.
    assert!(mm.estimate_error.is_some_and(|error| error < 0.02), "{mm:?}");
    let seconds = &simulated[0].runs["cpu-mm"][0].frames["film/player"];
    assert_eq!(seconds.len(), 20);
    assert!(seconds.iter().all(|second| second.share_permille.is_some_and(|share| share > 1000)));
}

/// vAMP Figure 4: launches in a VM with background work on all vCPUs, beside another such VM. Higher ratios
/// make none later, and the VM gets what it is due.
#[test]
fn a_launch_is_sooner_while_background_work_is_slow() {
    // One thread does nearly all, as of GIMP.
    let program = ["rounds=20", "main=\"120ms\"", "threads=1", "part=\"5ms\"", "draw=\"2ms\"", "sync=false"];
    let mut set = program.map(|field| format!("vm.desk.workloads.program.{field}")).to_vec();
    set.extend(["duration=60s", "warmup=5s", "repeats=1"].map(str::to_owned));
    let scenario = load("papers/vamp-figure4.toml", &set.iter().map(String::as_str).collect::<Vec<_>>());
    let simulated = simulate(&[scenario], 1, 2, &|_, _| {}).unwrap();
    let arms = &simulated[0].outcome.arms;
    let mean = |arm: &str| arms[arm].response_ms["desk"].mean;
    let names = ["alone", "stock", "low", "medium", "high", "most"];
    let means = names.map(mean);
    assert!(means[2] < 0.9 * means[1], "{means:?}");
    assert!(means[3..].iter().all(|mean| *mean <= 1.02 * means[2]), "{means:?}");
    for (name, arm) in arms.iter().filter(|(name, _)| *name != "alone") {
        let shares = &arm.cpu_share;
        assert!(shares.values().all(|share| (share - 1.0).abs() < 0.02), "{name}: {shares:?}");
    }
}

#[test]
fn the_engine_hears_of_films_what_a_host_tells() {
    let scenario = load("papers/mm-figure4-low.toml", &["duration=2s", "warmup=0s", "repeats=1"]);
    let entries = feed_entries(&scenario, "cpu-mm", 1, 1).unwrap();
    let count = |meant: fn(&EventKind) -> bool| {
        let events =
            entries.iter().filter(|entry| matches!(entry, FeedEntry::Event(event) if meant(&event.kind)));
        events.count()
    };
    let access = |device, in_interrupt| {
        let meant = |entry: &&FeedEntry| {
            matches!(entry, FeedEntry::Event(event) if matches!(event.kind,
                EventKind::DeviceAccess { device: of, in_interrupt: inside, .. }
                    if of == device && inside == in_interrupt))
        };
        entries.iter().filter(meant).count()
    };
    let updates = count(|kind| matches!(kind, EventKind::DisplayUpdate { region: Some(_), .. }));
    assert!((36..=48).contains(&updates), "{updates}");
    assert_eq!(access(MediaDevice::Display, false), updates);
    // A period of 20 ms at a time, and what fills the buffer at first.
    let [played, interrupts] = [false, true].map(|inside| access(MediaDevice::Sound, inside));
    assert!((90..=110).contains(&played) && interrupts.abs_diff(played) <= 6, "{played} {interrupts}");
    assert!(count(|kind| matches!(kind, EventKind::Timer { .. })) >= updates);
}

#[test]
fn a_day_is_as_even_as_an_hour() {
    let simulated = |duration: &str| {
        let scenario = load("idle.toml", &[&format!("duration={duration}"), "repeats=1", "vm.desk.count=1"]);
        let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap().remove(0);
        let arm = &simulated.outcome.arms["stock"];
        (arm.response_ms["desk"].count as f64, arm.response_ms["desk"].mean, arm.repeats[0].cpu_ms["desk"])
    };
    let (hour, day) = (simulated("1h"), simulated("24h"));
    for (of_hour, of_day) in [(24.0 * hour.0, day.0), (hour.1, day.1), (24.0 * hour.2, day.2)] {
        assert!((of_day / of_hour - 1.0).abs() < 0.01, "{hour:?}, {day:?}");
    }
}

#[test]
fn a_packet_for_a_vcpu_that_runs_is_delivered_at_once() {
    let times = |pcpus: &str| {
        let set = ["duration=10s", "repeats=1", "vm.cpu.count=1", pcpus, "sim.io_path=driver-domain"];
        let mut simulated = simulate(&[load("echo-mixed.toml", &set)], 1, 1, &|_, _| {}).unwrap().remove(0);
        let repeat = simulated.outcome.arms["stock"].repeats.remove(0);
        (repeat.model.unwrap().delivery_ms["mixed"].clone(), repeat.samples_ms["mixed"].clone())
    };
    // Each has a physical CPU to itself, and computes all the time beside what it answers.
    let (delivery, responses) = times("sim.pcpus=3");
    assert_eq!(delivery.len(), responses.len());
    assert!(delivery.len() > 50 && delivery.iter().all(|time| *time == 0.0), "{delivery:?}");
    // They share one: a packet waits for the vCPU, and its answer takes no less.
    let (delivery, responses) = times("sim.pcpus=1");
    assert_eq!(delivery.len(), responses.len());
    assert!(delivery.iter().filter(|time| **time > 1.0).count() > delivery.len() / 4, "{delivery:?}");
    let pairs = || delivery.iter().zip(&responses);
    assert!(pairs().all(|(delivered, answered)| delivered < answered), "{:?}", pairs().collect::<Vec<_>>());
}

/// An interrupt controller has one bit for a vector: a vCPU that comes to a CPU after many ticks handles one.
#[test]
fn clock_ticks_that_a_vcpu_has_not_taken_are_one() {
    let work = |interrupt: &str| {
        let set = ["vm.desk.count=16", "duration=5s", "warmup=1s", "repeats=1"];
        let scenario = load("desktops/echo.toml", &[&set[..], &[interrupt]].concat());
        let simulated = simulate(&[scenario], 1, 1, &|_, _| {}).unwrap();
        let rates = &simulated[0].outcome.arms["stock"].rates;
        let hogs = rates.iter().filter(|(name, _)| name.ends_with("/hog"));
        hogs.map(|(_, rate)| rate.per_s).sum::<f64>()
    };
    // Each tick of each of the sixteen would cost twice what the CPU has.
    let (dear, cheap) = (work("sim.guest.interrupt=500us"), work("sim.guest.interrupt=3us"));
    assert!(dear > cheap / 2.0, "{dear} of {cheap}");
}
