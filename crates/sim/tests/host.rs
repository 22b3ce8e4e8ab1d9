//! What a scenario says of the modelled host: caps, pins, nice values, who does the I/O; and what a result
//! tells of it.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_scenario::{Modelled, Overrides, Repeat, Scenario};
use frontdesk_sim::{Simulated, simulate};
use std::path::Path;

/// What some arms of a scenario give, with keys set.
fn simulated(name: &str, arms: &[&str], set: &[&str]) -> Simulated {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let all = ["duration=10s", "repeats=1"].iter().chain(set).map(ToString::to_string).collect();
    let arms = arms.iter().map(ToString::to_string).collect();
    let scenario = Scenario::load(&path, &Overrides { set: all, arms, ..Overrides::default() }).unwrap();
    simulate(&[scenario], 1, 1, &|_, _| {}).unwrap().remove(0)
}

fn only<'a>(simulated: &'a Simulated, arm: &str) -> &'a Repeat {
    &simulated.outcome.arms[arm].repeats[0]
}

fn model<'a>(simulated: &'a Simulated, arm: &str) -> &'a Modelled {
    only(simulated, arm).model.as_ref().unwrap()
}

#[test]
fn a_vm_gets_no_more_than_its_cap() {
    // There is a physical CPU for each.
    let machine = "scheduler = \"credit\", pcpus = 3, credit = { staggered_ticks = true }";
    for (cap, expected) in [("", 1.0), (", cap = { cpu = 40 }", 0.4)] {
        let simulated = simulated(
            "echo-mixed.toml",
            &["stock"],
            &["vm.cpu.count=2", &format!("sim={{ {machine}{cap} }}")],
        );
        let threads = &model(&simulated, "stock").threads;
        assert!(threads["mixed/vCPU 0"].utilisation > 0.9, "{threads:?}");
        for vm in ["cpu-1/vCPU 0", "cpu-2/vCPU 0"] {
            let part = threads[vm].utilisation;
            assert!((part - expected).abs() < 0.03, "{cap}: {vm} {part}");
        }
    }
}

#[test]
fn a_vcpu_runs_where_it_is_pinned_with_every_scheduler() {
    for scheduler in ["credit", "eevdf", "cfs", "edf"] {
        let machine = format!(
            "sim={{ scheduler = \"{scheduler}\", pcpus = 3, io_path = \"driver-domain\", pin = {{ mixed = [[2]], cpu = [[0, 1]] }} }}"
        );
        let simulated = simulated("echo-mixed.toml", &["stock"], &["vm.cpu.count=3", &machine]);
        // No arm runs the daemon, and what happened is told all the same.
        let timeline = &simulated.timelines[0];
        let places = |vm: &str| {
            let of = |run: &&frontdesk_scenario::RunSlice| timeline.vms[run.vm].starts_with(vm);
            let mut places: Vec<u16> = timeline.runs.iter().filter(of).map(|run| run.pcpu).collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        assert_eq!((places("mixed"), places("cpu")), (vec![2], vec![0, 1]), "{scheduler}");
        let all: f64 = model(&simulated, "stock").threads.values().map(|thread| thread.utilisation).sum();
        assert!(all > 2.9, "{scheduler}: somebody always runs on all three, {all}");
    }
}

#[test]
fn nice_values_weigh_vcpus_and_frontdesk_keeps_the_share_of_their_vm() {
    // Each vCPU beside one of the other VM's, so that the kernel gives the VM with the nice one less.
    let pin = "sim.pin={ uneven = [[0], [1]], even = [[0], [1]] }";
    // Nobody asks anything, so that nothing but the nice value makes the engine look at shares.
    let quiet = "load.0.think=[\"10min\", \"10min\"]";
    let set = ["duration=30s", pin, quiet];
    let simulated = simulated("smp/nice.toml", &["stock-10", "frontdesk-10"], &set);
    let threads = &model(&simulated, "stock-10").threads;
    let [kept, nice] = ["uneven/vCPU 0", "uneven/vCPU 1"].map(|thread| threads[thread].utilisation);
    assert!(kept > 1.5 * nice, "{kept} {nice}");
    let off = |arm: &str| (simulated.outcome.arms[arm].cpu_share["uneven"] - 1.0).abs();
    assert!(
        off("stock-10") > 0.1 && off("frontdesk-10") < 0.03,
        "{} {}",
        off("stock-10"),
        off("frontdesk-10")
    );
}

#[test]
fn devices_of_a_vms_own_take_no_time_of_the_host() {
    let with = |path: &str| {
        let path = format!("sim.io_path={path}");
        simulated("echo-mixed.toml", &["stock", "frontdesk"], &["duration=20s", &path])
    };
    let (direct, emulated) = (with("direct"), with("emulator"));
    let threads = &model(&direct, "stock").threads;
    assert!(threads.len() == 6 && threads.keys().all(|name| name.ends_with("/vCPU 0")), "{threads:?}");
    let mean = |of: &Simulated, arm: &str| of.outcome.arms[arm].response_ms["mixed"].mean;
    assert!(mean(&direct, "frontdesk") < mean(&emulated, "frontdesk"), "nobody comes between");
    assert!(mean(&direct, "stock") > 5.0 * mean(&direct, "frontdesk"), "the engine hears of packets");
    assert!(direct.outcome.arms["frontdesk"].unanswered.is_some_and(|part| part < 0.05), "and of replies");
}

#[test]
fn reads_films_and_ticks_get_on_with_devices_of_the_vms_own() {
    let reads = simulated("tavs/window.toml", &["stock"], &["duration=2s", "sim.io_path=direct"]);
    assert!(reads.outcome.arms["stock"].rates.values().any(|rate| rate.per_s > 0.0));
    // A driver domain that is a VM would be refused.
    let own = "sim={ scheduler = \"credit\", pcpus = 1, io_path = \"direct\" }";
    let film = simulated("papers/mm-figure4-low.toml", &["idle-credit"], &[own]);
    assert!(film.outcome.arms["idle-credit"].frames["film/player"].per_s > 23.0);
    let ticking = ["duration=2s", "sim.io_path=direct", "sim.guest.tick=4ms", "sim.guest.scheduler=eevdf"];
    let ticking = simulated("echo-mixed.toml", &["stock"], &ticking);
    assert!(ticking.outcome.arms["stock"].response_ms["mixed"].count > 0);
}

#[test]
fn a_result_tells_events_deliveries_dispatches_and_what_each_thread_had() {
    let simulated = simulated("smp/two-vcpus.toml", &["stock", "frontdesk"], &[]);
    let (stock, frontdesk) = (model(&simulated, "stock"), model(&simulated, "frontdesk"));
    assert!(stock.events > 1_000 && stock.engine_events.is_none(), "{stock:?}");
    assert!(frontdesk.engine_events.is_some_and(|events| events > 1_000), "{frontdesk:?}");
    let repeat = only(&simulated, "stock");
    for (vm, cpu_ms) in &repeat.cpu_ms {
        let own =
            stock.threads.iter().filter(|(name, _)| name.rsplit_once('/').is_some_and(|(of, _)| of == vm));
        let own: Vec<_> = own.map(|(_, thread)| thread).collect();
        assert_eq!(own.len(), 3, "two vCPUs and an emulator: {vm}");
        let sum: f64 = own.iter().map(|thread| thread.cpu_ms).sum();
        assert!((sum - cpu_ms).abs() < 1e-6, "{vm}: {sum} {cpu_ms}");
        assert!(own.iter().all(|thread| thread.cpu_ms == 0.0 || thread.dispatches > 0), "{own:?}");
    }
    let part = |thread: &str| stock.threads[thread].utilisation * 1000.0 * repeat.seconds;
    assert!(stock.threads.iter().all(|(name, thread)| (part(name) - thread.cpu_ms).abs() < 1e-6));
    let (vm, delivered) = stock.delivery_ms.first().unwrap();
    assert_eq!(delivered.len(), repeat.samples_ms[vm].len());
    let json = serde_json::to_value(&simulated.outcome).unwrap();
    let model = &json["arms"]["stock"]["repeats"][0]["model"];
    assert_eq!(model["delivery_ms"][vm].as_array().unwrap().len(), delivered.len());
}
