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
    /// Wake-up latencies of each process, in microseconds: from the time at which it was to wake to the first instruction.
    pub latency_us: Vec<Vec<Vec<f64>>>,
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
        case("one hog beside two, 2 CPUs", 2, 10, {
            vec![
                group(1024, vec![hog(0, Some(0))]),
                group(1024, vec![hog(0, Some(0)), hog(0, Some(1))]),
            ]
        }),
        case("sleeper, 5 hogs beside", 1, 30, beside_hogs(vec![sleeper((5_000, 20_000), 200, 1)])),
        case(
            "sleeper and hog, 5 hogs beside",
            1,
            30,
            beside_hogs(vec![sleeper((5_000, 20_000), 200, 2), hog(0, None)]),
        ),
        case(
            "sleeper that computes 3 ms, 5 hogs beside",
            1,
            30,
            beside_hogs(vec![sleeper((10_000, 30_000), 3_000, 3)]),
        ),
        case(
            "sleeper and hog, 1 hog beside",
            1,
            30,
            vec![
                group(1024, vec![sleeper((5_000, 20_000), 1_000, 4), hog(0, None)]),
                group(1024, vec![hog(0, None)]),
            ],
        ),
    ]
}
