//! What runs inside the VMs of an experiment.
//!
//! A scenario names a workload, `frontdesk-lab-guest` does it in a real VM, and `frontdesk-sim` models it. A
//! new one is a variant of [`WorkloadKind`] here, with its ranges and with what is known of it; then a
//! program and a model.

#![forbid(unsafe_code)]

pub mod times;
mod violation;

pub use violation::{Violation, period, range, require};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CPU time at a time from which on a VM is hardly ever idle.
const LONG_COST: Duration = Duration::from_millis(100);

/// What a program inside a VM does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkloadKind {
    /// Uses all the CPU it gets. An operation is 2^20 steps of the lab's computing loop.
    Hog,
    /// Answers each request with the same bytes.
    Echo {
        /// Transport protocol.
        protocol: Protocol,
        /// Port it listens on. 1 to 65535, one server for each protocol and port of a VM.
        port: u16,
        /// CPU time it burns for each request, before `cost_scale`. 0 to 10 s.
        #[serde(default, with = "humantime_serde")]
        cost: Duration,
    },
    /// Changes its character: answers UDP requests for a period, computes for the next, and so on.
    Shift {
        /// UDP port it listens on, as for an echo.
        port: u16,
        /// Length of a period. 100 ms to 10 min.
        #[serde(with = "humantime_serde")]
        period: Duration,
    },
    /// Reads the files of the VM's disk one after the other, again and again (TAVS §5.1). An operation is a
    /// file.
    ReadFiles,
    /// Reads a block of the VM's disk, past the page cache, and burns CPU time, again and again (TAVS §5.2).
    /// An operation is a block of 4 KiB.
    ReadBurn {
        /// CPU time after each block, before `cost_scale`. 0 to 10 s.
        #[serde(default, with = "humantime_serde")]
        cost: Duration,
    },
    /// Answers each request over UDP with the same bytes, after it has read here and there on the VM's disk,
    /// past the page cache, and perhaps written: what somebody opened or saved. An operation is a request.
    ReadBurst {
        /// Port it listens on, as for an echo.
        port: u16,
        /// Reads for each request, one after the other. 1 to 10000.
        reads: u32,
        /// Size of each in KiB, a multiple of 4 and no more than a file has. 4 to 4096.
        read_kib: u32,
        /// What it then writes to a file and waits for until it is on the disk, in KiB; with 0, nothing. 0 to
        /// 4096.
        #[serde(default)]
        save_kib: u32,
    },
    /// Writes to a file of the VM's disk and waits until it is there, again and again. An operation is a
    /// write.
    WriteSync {
        /// What it writes at a time, in KiB. 4 to 4096.
        write_kib: u32,
    },
    /// Takes what clients send over TCP and throws it away. An operation is a read.
    Sink {
        /// Port it listens on, as for an echo.
        port: u16,
    },
    /// Tasks that message each other in groups of 40, half of each sending to the other half, as those of
    /// hackbench do (TAVS §5.4), again and again. An operation is a run.
    Messages {
        /// Number of tasks: a multiple of 40, up to 2000.
        tasks: u32,
        /// Messages of each of the 20 senders of a group to each of its 20 receivers in a run. 1 to 10000.
        rounds: u32,
    },
    /// Threads of one address space that compute, and may wait for each other every so often, as those of a
    /// parallel program do. An operation is 2^20 steps of the lab's computing loop, of all together.
    Team {
        /// Number of threads: 1 to 64.
        threads: u16,
        /// CPU time of each, before `cost_scale`, after which it waits for the others; if absent they never
        /// do. 10 us to 10 s.
        #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
        barrier: Option<Duration>,
    },
    /// Starts a task that soon ends, waits for it, and again. An operation is a task.
    Churn,
    /// A program of the Debian system.
    Program {
        /// The program, found in `PATH`, and its arguments. `{host}` in them becomes the address of a web
        /// server on the host, which answers http://{host}/BYTES with so many bytes.
        command: Vec<String>,
        /// Whether it is run again and again, and how long it takes is measured. Otherwise it is a server,
        /// which must not end.
        #[serde(default)]
        repeat: bool,
        /// Whether the guest's page cache is dropped before each run. Only with `repeat`.
        #[serde(default)]
        cold: bool,
    },
    /// Plays a film on the desktop, with sound, again and again; what is late is dropped. An operation is a
    /// frame shown, by the player's own account.
    Play {
        /// Which.
        film: Film,
        /// Where the left upper corner of its window is, in pixels from that of the screen, each 0 to 1000:
        /// films of one desktop must not cover each other.
        #[serde(default = "film_place")]
        at: [u16; 2],
    },
    /// A film, or a game that shows as many frames as it can, with sound, in the simulator only. An operation
    /// is a frame shown, by the player's own account.
    Video {
        /// From one frame of a film to the next: 1 ms to 1 s. If absent it is a game.
        #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
        period: Option<Duration>,
        /// Shortest and longest CPU time that a frame takes until it can be drawn, uniformly distributed,
        /// before `cost_scale`. 0 s to 1 s.
        #[serde(with = "times")]
        cost: [Duration; 2],
        /// What becomes of frames of a film that are late.
        #[serde(default)]
        late: LateFrames,
        /// Who plays its sound.
        #[serde(default)]
        sound: SoundPath,
        /// Time of the graphics processor for each frame, which is waited for: 0 s to 1 s. With 0 s a display
        /// server draws the frames.
        #[serde(default, with = "humantime_serde")]
        gpu: Duration,
        /// What is read from the disk for each frame of a film, in KiB. 0 to 4096.
        #[serde(default)]
        frame_kib: u32,
    },
    /// A program whose output scrolls in a terminal of the desktop, in the simulator only. An operation is
    /// what it writes at a time.
    Scroll {
        /// CPU time before each, before `cost_scale`. 10 us to 10 s.
        #[serde(with = "humantime_serde")]
        cost: Duration,
    },
    /// A program that a person starts with a key, again and again, in the simulator only: what it does until
    /// its window is drawn. An operation is a start.
    App {
        /// Rounds of what follows. 1 to 10000.
        rounds: u32,
        /// CPU time of its main thread in each round, before `cost_scale`. 0 s to 10 s.
        #[serde(with = "humantime_serde")]
        main: Duration,
        /// Parts that the main thread gives to as many other threads in each round, and waits for. 0 to 64.
        #[serde(default)]
        threads: u16,
        /// CPU time of each part, before `cost_scale`. 0 s to 10 s.
        #[serde(default, with = "humantime_serde")]
        part: Duration,
        /// CPU time of the display server in each round, before `cost_scale`. 0 s to 10 s.
        #[serde(default, with = "humantime_serde")]
        draw: Duration,
        /// Whether each round ends with a block that is written to the disk and waited for.
        #[serde(default)]
        sync: bool,
        /// What its main thread reads in each round, somewhere on the disk, in KiB. 0 to 4096.
        #[serde(default)]
        read_kib: u32,
    },
    /// Reads, writes and computes as a system that boots does, again and again, in the simulator only. An
    /// operation is a boot.
    Boot,
    /// The tasks of a workload file of rt-app, in the simulator only.
    RtApp {
        /// The file, relative to the folder of the scenario's.
        file: PathBuf,
    },
    /// What a guest does that wants to harm the host or its neighbours.
    Storm {
        /// Of what.
        of: Storm,
    },
}

fn film_place() -> [u16; 2] {
    [180, 80]
}

/// A film of 640 x 354 pixels and 24 frames a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Film {
    /// As MPEG-4: takes some 40 % of an emulated vCPU.
    Mpeg4,
    /// As H.264: takes some 65 % of one.
    H264,
}

/// What becomes of frames that are late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LateFrames {
    /// They are not shown: the film ends when it should.
    #[default]
    Drop,
    /// They are shown, and all that follow are as late: the film takes longer.
    Delay,
}

/// Who plays the sound of a film.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoundPath {
    /// The player itself, on the sound card.
    #[default]
    Card,
    /// A sound server, for all players of its VM.
    Server,
    /// Nobody: it has none.
    None,
}

/// What a storm is made of. An operation is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storm {
    /// Packets from the host to every port of the guest, which the guest provokes.
    Packets,
    /// Tasks that are created without end, up to 64 at a time.
    Tasks,
    /// Switches between two tasks that wake each other.
    Switches,
}

/// Transport protocol of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// "tcp" or "udp".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// What a VM has that some workloads need.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// A data disk.
    pub disk: bool,
    /// The Debian system.
    pub debian: bool,
    /// Screen and sound.
    pub desktop: bool,
}

impl WorkloadKind {
    /// Whether it waits for I/O and then computes next to nothing.
    #[must_use]
    pub fn is_io_bound(&self) -> bool {
        match self {
            WorkloadKind::Echo { cost, .. } | WorkloadKind::ReadBurn { cost } => cost.is_zero(),
            WorkloadKind::ReadFiles | WorkloadKind::ReadBurst { .. } | WorkloadKind::Shift { .. } => true,
            _ => false,
        }
    }

    /// Whether it wants all the CPU it can get: it never waits, or computes so long at a time that its VM is
    /// hardly ever idle.
    #[must_use]
    pub fn wants_cpu(&self) -> bool {
        match self {
            WorkloadKind::Hog
            | WorkloadKind::Team { .. }
            | WorkloadKind::Churn
            | WorkloadKind::Scroll { .. }
            | WorkloadKind::Messages { .. }
            | WorkloadKind::Storm { .. } => true,
            WorkloadKind::Echo { cost, .. } | WorkloadKind::ReadBurn { cost } => *cost >= LONG_COST,
            WorkloadKind::Program { repeat, cold, .. } => *repeat && !cold,
            _ => false,
        }
    }

    /// Whether it tells each time it wakes from I/O, or does none.
    #[must_use]
    pub fn knows_its_wakes(&self) -> bool {
        matches!(
            self,
            WorkloadKind::Hog
                | WorkloadKind::Echo { .. }
                | WorkloadKind::ReadBurn { .. }
                | WorkloadKind::ReadFiles
                | WorkloadKind::Shift { .. }
                | WorkloadKind::Churn
        )
    }

    /// Whether it writes to the VM's disk.
    #[must_use]
    pub fn writes_disk(&self) -> bool {
        matches!(self, WorkloadKind::WriteSync { .. } | WorkloadKind::ReadBurst { save_kib: 1.., .. })
    }

    /// Whether it has operations that take a measured time.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(self, WorkloadKind::Messages { .. } | WorkloadKind::Program { repeat: true, .. })
    }

    /// Whether it shows frames that count.
    #[must_use]
    pub fn shows_frames(&self) -> bool {
        matches!(self, WorkloadKind::Play { .. } | WorkloadKind::Video { .. })
    }

    /// What its `run` is if only the simulator has it.
    #[must_use]
    pub fn only_modelled(&self) -> Option<&'static str> {
        match self {
            WorkloadKind::RtApp { .. } => Some("rt-app"),
            WorkloadKind::Video { .. } => Some("video"),
            WorkloadKind::Scroll { .. } => Some("scroll"),
            WorkloadKind::App { .. } => Some("app"),
            WorkloadKind::Boot => Some("boot"),
            _ => None,
        }
    }

    /// Protocol and port on which it listens.
    #[must_use]
    pub fn listens(&self) -> Option<(Protocol, u16)> {
        match *self {
            WorkloadKind::Echo { protocol, port, .. } => Some((protocol, port)),
            WorkloadKind::Shift { port, .. } | WorkloadKind::ReadBurst { port, .. } => {
                Some((Protocol::Udp, port))
            }
            WorkloadKind::Sink { port } => Some((Protocol::Tcp, port)),
            _ => None,
        }
    }

    /// Whether it is an ssh server.
    #[must_use]
    pub fn is_sshd(&self) -> bool {
        let WorkloadKind::Program { command, .. } = self else { return false };
        let program = command.first().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|name| name == "sshd")
    }

    /// Checks its values and what it needs of its VM. `key` gives the dotted key of one of its fields.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self, key: impl Fn(&str) -> String, vm: Surroundings) -> Result<(), Violation> {
        let only_with = |run: &str, given, what| {
            require(given, key("run"), format!("{run:?}"), format!("only in a VM with `{what}`"))
        };
        let validate_cost = |cost| period(key("cost"), cost, Duration::ZERO..=Duration::from_secs(10));
        if let Some((_, port)) = self.listens() {
            range(key("port"), port, 1..=65_535)?;
        }
        match self {
            WorkloadKind::Echo { cost, .. } => validate_cost(*cost),
            WorkloadKind::Shift { period: length, .. } => {
                period(key("period"), *length, Duration::from_millis(100)..=Duration::from_secs(600))
            }
            WorkloadKind::ReadFiles => only_with("read-files", vm.disk, "disk"),
            WorkloadKind::Boot => only_with("boot", vm.disk, "disk"),
            WorkloadKind::ReadBurn { cost } => {
                only_with("read-burn", vm.disk, "disk")?;
                validate_cost(*cost)
            }
            WorkloadKind::WriteSync { write_kib } => {
                only_with("write-sync", vm.disk, "disk")?;
                range(key("write_kib"), *write_kib, 4..=4096)
            }
            WorkloadKind::ReadBurst { reads, read_kib, save_kib, .. } => {
                range(key("save_kib"), *save_kib, 0..=4096)?;
                only_with("read-burst", vm.disk, "disk")?;
                range(key("reads"), *reads, 1..=10_000)?;
                range(key("read_kib"), *read_kib, 4..=4096)?;
                require(read_kib.is_multiple_of(4), key("read_kib"), read_kib, "a multiple of 4")
            }
            WorkloadKind::Messages { tasks, rounds } => {
                range(key("tasks"), *tasks, 40..=2000)?;
                require(tasks.is_multiple_of(40), key("tasks"), tasks, "a multiple of 40")?;
                range(key("rounds"), *rounds, 1..=10_000)
            }
            WorkloadKind::Team { threads, barrier } => {
                range(key("threads"), *threads, 1..=64)?;
                let shortest = Duration::from_micros(10);
                period(key("barrier"), barrier.unwrap_or(shortest), shortest..=Duration::from_secs(10))
            }
            WorkloadKind::Program { command, repeat, cold } => {
                only_with("program", vm.debian, "debian = true")?;
                require(!command.is_empty(), key("command"), "[]", "a program and its arguments")?;
                for (index, word) in command.iter().enumerate() {
                    let usable = !word.is_empty() && !word.contains('\0');
                    let key = key(&format!("command.{index}"));
                    require(usable, key, format!("{word:?}"), "a word, not empty and without a zero byte")?;
                }
                require(*repeat || !cold, key("cold"), "true", "only beside `repeat = true`")
            }
            WorkloadKind::Play { at, .. } => {
                only_with("play", vm.desktop, "desktop = true")?;
                range(key("at.0"), at[0], 0..=1000)?;
                range(key("at.1"), at[1], 0..=1000)
            }
            WorkloadKind::Video { period: frame, cost, late, gpu, frame_kib, .. } => {
                let second = Duration::from_secs(1);
                let most = if frame.is_some() { 4096 } else { 0 };
                range(key("frame_kib"), *frame_kib, 0..=most)?;
                period(key("period"), frame.unwrap_or(second), Duration::from_millis(1)..=second)?;
                let [shortest, longest] = *cost;
                period(key("cost.1"), longest, Duration::ZERO..=second)?;
                period(key("cost.0"), shortest, Duration::ZERO..=longest)?;
                period(key("gpu"), *gpu, Duration::ZERO..=second)?;
                let film = frame.is_some() || *late == LateFrames::Drop;
                require(
                    film,
                    key("late"),
                    "\"delay\"",
                    "only beside a `period`: a game's frames are never late",
                )
            }
            WorkloadKind::App { rounds, main, threads, part, draw, read_kib, .. } => {
                range(key("read_kib"), *read_kib, 0..=4096)?;
                range(key("rounds"), *rounds, 1..=10_000)?;
                range(key("threads"), *threads, 0..=64)?;
                for (field, cost) in [("main", main), ("part", part), ("draw", draw)] {
                    period(key(field), *cost, Duration::ZERO..=Duration::from_secs(10))?;
                }
                Ok(())
            }
            WorkloadKind::Scroll { cost } => {
                period(key("cost"), *cost, Duration::from_micros(10)..=Duration::from_secs(10))
            }
            _ => Ok(()),
        }
    }
}
