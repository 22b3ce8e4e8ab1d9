//! A made-up result with the shape of a real one.

use frontdesk_scenario::{
    ArmResult, Bar, BeliefPoint, BlockMark, BoostSlice, Check, Follow, HostInfo, Latency, Outcome,
    PacketMark, Rate, Repeat, RunSlice, Summary, TaskSlice, Timeline, Unit,
};

/// Pseudo-random numbers in 0..1, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 33).unwrap_or(0)) / f64::from(1_u32 << 31)
    }

    fn below(&mut self, limit: u32) -> u64 {
        (0..limit).find(|bound| self.roll() * f64::from(limit - bound) < 1.0).map_or(0, u64::from)
    }
}

/// The result of a made-up run of `echo-mixed`.
pub(crate) fn outcome() -> Outcome {
    let mut dice = Dice(7);
    let arms = [
        ("stock", 13.0, 2.5, None),
        ("observe", 13.6, 2.6, Some(0.011)),
        ("frontdesk", 2.05, 1.25, Some(0.018)),
        ("io-only", 1.95, 1.35, None),
    ];
    let arms = arms.into_iter().map(|(name, median, spread, daemon_cpu)| {
        let repeats = (0..3).map(|_| repeat(&mut dice, name, median, spread, daemon_cpu)).collect();
        (name.to_owned(), arm(repeats))
    });
    let checks = vec![
        Check::median("mean response, frontdesk over io-only", &[1.06, 1.11, 1.09], Bar::AtMost(1.15)),
        Check::median("mean response, stock over frontdesk", &[6.31, 7.05, 5.92], Bar::AtLeast(4.0)),
        Check::median("p99 response, stock over frontdesk", &[13.2, 9.4, 16.9], Bar::AtLeast(5.0)),
        Check::median("CPU time over fair share, deviation", &[0.012, 0.019, 0.024], Bar::AtMost(0.02)),
        Check::median("boosts in which an I/O-bound task ran", &[0.93, 0.95, 0.91], Bar::AtLeast(0.9)),
        Check::median("packet to boost, p99, µs", &[228.0, 241.0, 203.0], Bar::AtMost(200.0)),
        Check::median("CPU time of the daemon", &[0.017, 0.018, 0.018], Bar::AtMost(0.03)),
        Check::median("slowdown by the plugin, CPU-bound", &[0.043], Bar::AtMost(0.1)),
        Check::median("slowdown by the plugin, fork-heavy", &[], Bar::AtMost(0.1)),
        Check::median("events per second of the engine", &[8_400_000.0], Bar::AtLeast(5e6)),
    ];
    let host = HostInfo {
        kernel: "6.18.5".to_owned(),
        cpu: "AMD EPYC 7B13 <64-Core> Processor".to_owned(),
        cpus: 2,
        qemu: "10.0.2".to_owned(),
        guest_kernel: "6.1.0-40-cloud-amd64".to_owned(),
        frontdesk: "0.1.0".to_owned(),
        ..HostInfo::default()
    };
    Outcome {
        scenario: "echo-mixed".to_owned(),
        host,
        arms: arms.collect(),
        checks,
        tables: Vec::new(),
        figures: Vec::new(),
        screenshots: Vec::new(),
    }
}

fn arm(repeats: Vec<Repeat>) -> ArmResult {
    let middle = repeats[1].clone();
    let times = middle.times_ms.iter();
    ArmResult {
        response_ms: middle.response_ms,
        cpu_share: middle.cpu_share,
        rates: middle.rates,
        times_ms: times.filter_map(|(name, times)| Some((name.clone(), Summary::of(times)?))).collect(),
        frames: middle.frames,
        follow: middle.follow,
        boosts: repeats.iter().map(|repeat| repeat.boosts).sum(),
        pbhr: middle.decision_us.map(|_| 0.932),
        unanswered: middle.decision_us.map(|_| 0.005),
        decision_us: middle.decision_us,
        daemon_cpu: middle.daemon_cpu,
        repeats,
    }
}

fn repeat(dice: &mut Dice, name: &str, median: f64, spread: f64, daemon_cpu: Option<f64>) -> Repeat {
    let samples: Vec<f64> =
        (0..180).map(|_| median * spread.powf((dice.roll() + dice.roll()) * 2.0 - 2.0)).collect();
    let summary = Summary::of(&samples).unwrap_or_default();
    let share = |vm: &str, dice: &mut Dice| match (name, vm) {
        ("io-only", "mixed") => 0.062,
        ("io-only", _) => 1.18 + 0.02 * dice.roll(),
        _ => 0.99 + 0.02 * dice.roll(),
    };
    let vms = ["mixed", "cpu-1", "cpu-2", "cpu-3", "cpu-4", "cpu-5"];
    let acts = name == "frontdesk";
    let rate = |per_s: f64, unit, dice: &mut Dice| Rate { per_s: per_s * (0.95 + 0.1 * dice.roll()), unit };
    let rates = [
        ("mixed/echo", rate(10.0, Unit::Operations, dice)),
        ("mixed/files", rate(if acts { 31e6 } else { 12.5e6 }, Unit::Bytes, dice)),
        ("mixed/hog", rate(850.0, Unit::Operations, dice)),
    ];
    let times = (0..5).map(|_| 2400.0 + 300.0 * dice.roll()).collect();
    let follow = Follow { to_io_ms: Some(84.5), to_cpu_ms: Some(61.0 + dice.roll()), missed: 0, wasted: 12 };
    Repeat {
        response_ms: [("mixed".to_owned(), summary)].into_iter().collect(),
        samples_ms: [("mixed".to_owned(), samples)].into_iter().collect(),
        cpu_share: vms.iter().map(|vm| ((*vm).to_owned(), share(vm, dice))).collect(),
        cpu_ms: vms.iter().map(|vm| ((*vm).to_owned(), 3333.0)).collect(),
        rates: rates.into_iter().map(|(name, rate)| (name.to_owned(), rate)).collect(),
        times_ms: [("mixed/build".to_owned(), times)].into_iter().collect(),
        follow: acts.then_some(follow),
        boosts: if acts { 412 } else { 0 },
        boost_hits: if acts { 384 } else { 0 },
        request_boosts: if acts { 400 } else { 0 },
        unanswered_boosts: if acts { 2 } else { 0 },
        decision_us: acts.then_some(Latency { p50: 58.0, p99: 228.0, max: 412.0 }),
        daemon_cpu,
        lost_events: 0,
        seconds: 20.0,
        ..Repeat::default()
    }
}

/// A made-up result with these arms, all of which act, with `vms` VMs under load.
pub(crate) fn arms(names: &[&str], vms: usize) -> Outcome {
    let mut dice = Dice(11);
    let arms = names.iter().enumerate().map(|(index, name)| {
        #[allow(clippy::cast_precision_loss, reason = "there are few arms")]
        let better = index as f64 / names.len() as f64;
        let repeat = |dice: &mut Dice| {
            let mut repeat = repeat(dice, "frontdesk", 20.0 - 17.0 * better, 2.0, Some(0.018));
            let summary = repeat.response_ms["mixed"];
            repeat.response_ms = (1..=vms).map(|number| (format!("mixed-{number}"), summary)).collect();
            repeat.boost_hits = 412 * (index as u64 + 2) / (names.len() as u64 + 2) + dice.below(20);
            for rate in repeat.rates.values_mut() {
                rate.per_s *= 0.3 + better;
            }
            repeat
        };
        let repeats: Vec<_> = (0..3).map(|_| repeat(&mut dice)).collect();
        #[allow(clippy::cast_precision_loss, reason = "there are few boosts")]
        let pbhr = repeats[1].boost_hits as f64 / 412.0;
        ((*name).to_owned(), ArmResult { pbhr: Some(pbhr), ..arm(repeats) })
    });
    Outcome { scenario: "arms".to_owned(), arms: arms.collect(), checks: Vec::new(), ..outcome() }
}

/// The timelines of the arms with a daemon, one repeat each.
pub(crate) fn timelines() -> Vec<Timeline> {
    vec![timeline("observe", 25), timeline("frontdesk", 1)]
}

fn timeline(arm: &str, slowness: u64) -> Timeline {
    let mut dice = Dice(slowness);
    let mut timeline = Timeline {
        arm: arm.to_owned(),
        repeat: 1,
        vms: ["mixed", "cpu-1", "cpu-2"].map(ToOwned::to_owned).to_vec(),
        belief_threshold: 20,
        ..Timeline::default()
    };
    let second = 1_000_000_000;
    let mut beliefs = [0_i32; 9];
    let mut now = 0;
    while now < 20 * second {
        now += 20_000_000 + 9_000_000 * dice.below(20);
        let delay = 150_000 + slowness * 40_000 * (1 + dice.below(30)) * (1 + dice.below(4));
        let packet = PacketMark {
            vm: 0,
            protocol: "tcp".to_owned(),
            port: 7,
            at: now,
            task_delay: (dice.roll() < 0.97).then_some(delay),
            decision: "boosted".into(),
        };
        timeline.packets.push(packet);
        timeline.reads.push(BlockMark {
            vm: 1,
            at: now,
            // One after another is requested before the last is there.
            done: (dice.roll() < 0.97).then_some(now + 900_000_000),
            decision: "no boost".into(),
        });
        for (task, belief) in beliefs.iter_mut().enumerate() {
            let gain = if dice.roll() < 0.93 { 5 } else { -20 };
            *belief += match task {
                0 => gain,
                1 => -20,
                _ if dice.roll() < 0.15 => 5,
                _ if dice.roll() < 0.05 => -20,
                _ => 0,
            };
            *belief = (*belief).clamp(-100, 300);
            let point = BeliefPoint {
                vm: task / 4,
                task: format!("0x{:x}000", 0x1a2b + 7 * task),
                at: now,
                belief: *belief,
            };
            timeline.beliefs.push(point);
        }
        timeline.boosts.push(BoostSlice {
            vm: 0,
            vcpu: 0,
            start: now,
            end: now + delay,
            hit: dice.roll() < 0.9,
        });
        let task = TaskSlice {
            vm: 0,
            vcpu: 0,
            task: "0x1a2b000".to_owned(),
            start: now + delay,
            end: now + 2 * delay,
        };
        timeline.tasks.push(task);
    }
    for slot in 0..400_u64 {
        let start = slot * 50_000_000;
        let vm = usize::try_from(slot % 3).unwrap_or(0);
        let run = RunSlice { vm, thread: "vCPU 0".to_owned(), pcpu: 0, start, end: start + 50_000_123 };
        timeline.runs.push(run);
    }
    timeline
}
