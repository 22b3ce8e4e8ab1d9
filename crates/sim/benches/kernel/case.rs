//! What is measured: control groups of processes, as both the kernel and the model run them.

use frontdesk_sim::Rng;
use serde::{Deserialize, Serialize};

/// Left out at the beginning, so that the load averages have settled.
pub const WARM_UP_MS: u64 = 2_000;

/// One experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Its name, unique.
    pub name: String,
    /// Number of CPUs.
    pub cpus: u16,
    /// How long it is measured, in milliseconds.
    pub measured_ms: u64,
    /// Its control groups.
    pub groups: Vec<Group>,
}

/// One control group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its `cpu.shares`.
    pub shares: u32,
    /// Its processes, of one thread each.
    pub processes: Vec<Process>,
}

/// One process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its nice value.
    pub nice: i8,
    /// The CPU that it stays on; any of the case's if there is none.
    pub cpu: Option<u16>,
    /// What it does.
    pub work: Work,
}

/// What a process does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Computes and never sleeps.
    Hog,
    /// Sleeps and computes in turn.
    Sleeper {
        /// Shortest and longest sleep, in microseconds; uniform in between.
        sleep_us: (u64, u64),
        /// CPU time between sleeps, in microseconds.
        compute_us: u64,
        /// Of the sleeps.
        seed: u64,
    },
}

/// The sleeps of a sleeper, the same ones for the kernel and for the model.
pub struct Sleeps {
    rng: Rng,
    range: (u64, u64),
}

impl Sleeps {
    pub fn new(range: (u64, u64), seed: u64) -> Sleeps {
        Sleeps { rng: Rng::new(seed, 0), range }
    }

    /// The next one, in nanoseconds.
    pub fn next(&mut self) -> u64 {
        self.rng.uniform(self.range.0 * 1000, self.range.1 * 1000)
    }
}

/// What became of a case, in the kernel or in the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// CPU time of each process of each group, as a fraction of one CPU.
    pub cpu: Vec<Vec<f64>>,
    /// Wake-up latencies of each process that sleeps: from the time at which it was to wake to the first
    /// instruction.
    pub latency: Vec<Vec<Option<Latency>>>,
}

/// A distribution of wake-up latencies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: usize,
    /// Their mean, in microseconds.
    pub mean_us: f64,
    /// The least, each percentile, and the largest, in microseconds.
    pub percentiles_us: Vec<f64>,
}

impl Latency {
    pub fn of(mut latencies_us: Vec<f64>) -> Option<Latency> {
        latencies_us.sort_by(f64::total_cmp);
        let last = latencies_us.len().checked_sub(1)?;
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        Some(Latency {
            count: latencies_us.len(),
            mean_us: rounded(latencies_us.iter().sum::<f64>() / latencies_us.len() as f64),
            percentiles_us: (0..=100).map(|percent| rounded(latencies_us[last * percent / 100])).collect(),
        })
    }
}

/// What a wake-up costs on a machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// From the expiry of a timer to the first instruction of the process that it wakes, if that runs at
    /// once, in nanoseconds.
    pub wake_up_ns: u64,
    /// CPU time of a process that goes to sleep and wakes up, in nanoseconds.
    pub switch_ns: u64,
}

/// A sleeper that hardly anybody keeps from running: what it takes is what a wake-up costs.
pub fn calibration() -> Case {
    let work = Work::Sleeper { sleep_us: (5_000, 20_000), compute_us: 200, seed: 9 };
    let alone = |shares, work| Group { shares, processes: vec![Process { nice: 0, cpu: None, work }] };
    Case {
        name: "calibration".into(),
        cpus: 1,
        measured_ms: 10_000,
        groups: vec![alone(1024, work), alone(2, Work::Hog)],
    }
}

/// The costs that [`calibration`] shows.
pub fn costs(measured: &Measured) -> Option<Costs> {
    let latency = measured.latency[0][0].as_ref()?;
    let cpu_ns = measured.cpu[0][0] * calibration().measured_ms as f64 * 1e6;
    Some(Costs {
        wake_up_ns: (latency.percentiles_us[50] * 1000.0) as u64,
        switch_ns: (cpu_ns / latency.count as f64 - 200_000.0).max(0.0) as u64,
    })
}

pub fn cases() -> Vec<Case> {
    let hog = |nice, cpu| Process { nice, cpu, work: Work::Hog };
    let sleeper = |sleep_us, compute_us, seed| Process {
        nice: 0,
        cpu: None,
        work: Work::Sleeper { sleep_us, compute_us, seed },
    };
    let group = |shares, processes| Group { shares, processes };
    let hogs = |number| (0..number).map(|_| group(1024, vec![hog(0, None)]));
    let case = |name: &str, cpus, seconds: u64, groups| Case {
        name: name.into(),
        cpus,
        measured_ms: seconds * 1000,
        groups,
    };
    let beside_hogs = |processes| std::iter::once(group(1024, processes)).chain(hogs(5)).collect();
    vec![
        case(
            "shares 4 : 2 : 1",
            1,
            10,
            [1024, 512, 256].map(|shares| group(shares, vec![hog(0, None)])).into(),
        ),
        case(
            "equal shares, 1 and 3 hogs",
            1,
            10,
            vec![group(1024, vec![hog(0, None)]), group(1024, (0..3).map(|_| hog(0, None)).collect())],
        ),
        case(
            "nice 0 and 5 in each of 3 groups",
            1,
            10,
            (0..3).map(|_| group(1024, vec![hog(0, None), hog(5, None)])).collect(),
        ),
        case(
            "nice crosswise, 2 CPUs",
            2,
            10,
            vec![
                group(1024, vec![hog(0, Some(0)), hog(5, Some(1))]),
                group(1024, vec![hog(5, Some(0)), hog(0, Some(1))]),
            ],
        ),
        case(
            "nice 0 and 5 beside nice 0 and 0, 2 CPUs",
            2,
            10,
            vec![
                group(1024, vec![hog(0, Some(0)), hog(5, Some(1))]),
                group(1024, vec![hog(0, Some(0)), hog(0, Some(1))]),
            ],
        ),
        case(
            "one hog beside two, 2 CPUs",
            2,
            10,
            vec![group(1024, vec![hog(0, Some(0))]), group(1024, vec![hog(0, Some(0)), hog(0, Some(1))])],
        ),
        case(
            "nice 0 and 5 in each of 2 groups, 2 CPUs, free to move",
            2,
            15,
            (0..2).map(|_| group(1024, vec![hog(0, None), hog(5, None)])).collect(),
        ),
        case("sleeper, 5 hogs beside", 1, 20, beside_hogs(vec![sleeper((5_000, 20_000), 200, 1)])),
        case(
            "sleeper and hog, 5 hogs beside",
            1,
            20,
            beside_hogs(vec![sleeper((5_000, 20_000), 200, 2), hog(0, None)]),
        ),
        case(
            "sleeper that computes 3 ms, 5 hogs beside",
            1,
            20,
            beside_hogs(vec![sleeper((10_000, 30_000), 3_000, 3)]),
        ),
        case(
            "sleeper and hog, 1 hog beside",
            1,
            20,
            vec![
                group(1024, vec![sleeper((5_000, 20_000), 1_000, 4), hog(0, None)]),
                group(1024, vec![hog(0, None)]),
            ],
        ),
    ]
}
