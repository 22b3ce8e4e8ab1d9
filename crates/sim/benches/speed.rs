//! How fast the simulator is, and what it needs: events per second for table1, and memory and time against the number of VMs.

#![allow(clippy::unwrap_used)] // A benchmark that panics fails.

use frontdesk_scenario::{Overrides, Scenario};
use std::path::Path;
use std::time::Instant;

#[global_allocator]
static PEAK: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

fn load(set: &[String]) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/papers/tavs-table1.toml");
    Scenario::load(&path, &Overrides { set: set.to_vec(), ..Overrides::default() }).unwrap()
}

fn main() {
    let scenario = load(&["duration=1h".to_owned()]);
    for arm in scenario.arms.keys() {
        let begin = Instant::now();
        let run = frontdesk_sim::run(&scenario, arm, 1, 1, false).unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss)]
        let speed = run.happened as f64 / seconds / 1e6;
        println!(
            "table1, {arm}: {} events in {seconds:.2} s, {speed:.1} million per second (bar: 5)",
            run.happened
        );
    }
    println!("VMs x 4 vCPUs   s per simulated s   MB");
    for each in [2, 5, 10, 20, 40, 64] {
        // Three entries and five copies of each make 15 times as many VMs.
        let mut scenario =
            load(&["sim.pcpus=128".to_owned(), "duration=1s".to_owned(), "warmup=1s".to_owned()]);
        for entry in &mut scenario.vms {
            (entry.count, entry.vcpus) = (each, 4);
        }
        let vms = scenario.vms.clone();
        for copy in 1..5 {
            scenario.vms.extend(vms.iter().cloned().map(|mut vm| {
                vm.name = format!("{}-copy{copy}", vm.name);
                vm
            }));
        }
        PEAK.reset_peak_usage();
        let begin = Instant::now();
        frontdesk_sim::run(&scenario, "tavs", 1, 1, false).unwrap();
        let seconds = begin.elapsed().as_secs_f64() / 2.0;
        println!("{:13}   {seconds:17.3}   {:.0}", u32::from(each) * 15, PEAK.peak_usage_as_mb());
    }
}
