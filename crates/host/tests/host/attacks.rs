//! What others lose while somebody attacks: response times and shares of real VMs, and the daemon's time.
//!
//! Beside a VM that answers questions and computes, and one that only computes, eight QEMUs that an attacker
//! leads, or one hostile guest, have the same CPU. They compute, and then attack as well, in turns.

use crate::{
    daemon::{Place, Running, heard},
    fake_qemu::FakeQemu,
    support::{eventually, trial},
};
use anyhow::{Context as _, Result, ensure};
use frontdesk_guest_protocol::PORT_NAME;
use frontdesk_lab::{Kernel, RunningVm, TapConfig, VmConfig, write_initramfs};
use frontdesk_linux::cgroup::Group;
use frontdesk_workload::{Protocol, Storm, WorkloadKind};
use libtest_mimic::Trial;
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Of each kind, after as long as that without one.
const REPEATS: usize = 5;
const OVER: Duration = Duration::from_secs(12);
/// What begins or ends is not measured.
const SETTLED: Duration = Duration::from_secs(2);
const FAKES: usize = 8;
/// So often a second each tells 64 switches, which is a little less than a reporter alone may.
const PACED: u32 = 1_100;
/// The part that others' responses may be slower, their shares be off, and the daemon may use of a core.
const SLOWER: f64 = 0.1;
const SHARE: f64 = 0.02;
const DAEMON: f64 = 0.1;

/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 7;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("attacks_by_qemus_cost_others_nothing", by_qemus).with_ignored_flag(true),
        trial("attacks_by_a_guest_cost_others_nothing", by_a_guest).with_ignored_flag(true),
    ]
}

/// What others had for some time.
#[derive(Clone, Copy)]
struct Measured {
    /// Mean time to an answer.
    response_ms: f64,
    /// The longest.
    worst_ms: f64,
    /// Of the two VMs that do no harm, the one that answers first, how much less of the CPU than its part
    /// each had.
    missing: [f64; 2],
    /// What the daemon used of a core.
    daemon: f64,
}

impl Measured {
    /// Of the one with less.
    fn short(&self) -> f64 {
        self.missing[0].max(self.missing[1])
    }
}

/// Two VMs that do no harm, and what is there to attack them.
struct Town {
    answering: RunningVm,
    computing: RunningVm,
    client: UdpSocket,
    kernel: Kernel,
    initrd: PathBuf,
    /// After the VMs: it removes their groups.
    place: Place,
}

fn built(path: &str) -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let path = workspace.join("target").join(path);
    ensure!(path.is_file(), "{} is not there: `make build` makes it", path.display());
    Ok(path)
}

fn ip(arguments: &[&str]) -> Result<()> {
    ensure!(Command::new("ip").args(arguments).status()?.success(), "ip {arguments:?}");
    Ok(())
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, number, 2)
}

impl Town {
    /// In a network of its own, which ends with the calling thread and the VMs.
    fn new() -> Result<(Town, Running)> {
        let kernel = Kernel::resolve("6.1-cloud", None)?;
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        let place = Place::new()?;
        let initrd = place.home.path().join("initrd");
        write_initramfs(
            &kernel,
            &built("x86_64-unknown-linux-gnu/release/frontdesk-lab-guest")?,
            &initrd,
            false,
        )?;
        let mut answering = boot(&place, &kernel, &initrd, 1, 1)?;
        let mut computing = boot(&place, &kernel, &initrd, 2, 1)?;
        answering.wait_ready(PATIENCE)?;
        computing.wait_ready(PATIENCE)?;
        let echo = WorkloadKind::Echo { protocol: Protocol::Udp, port: PORT, cost: Duration::ZERO };
        answering.start("echo", echo)?;
        answering.start("hog", WorkloadKind::Hog)?;
        computing.start("hog", WorkloadKind::Hog)?;
        let client = UdpSocket::bind("0.0.0.0:0")?;
        client.connect((address(1), PORT))?;
        client.set_read_timeout(Some(PATIENCE))?;
        let mut settings = place.settings();
        settings.daemon.cpus = vec![1];
        settings.tavs.io_threshold = Duration::from_millis(3);
        settings.tavs.pb_ratio = 0.5;
        let daemon = Running::start_unrecorded(place.home.path(), settings)?;
        for name in ["vm-1", "vm-2"] {
            heard(&["following the VM", &format!("\"{name}\"")])?;
        }
        Ok((Town { answering, computing, client, kernel, initrd, place }, daemon))
    }

    /// Asks as a person does, for some time. `harmful` are the processes that have the same CPU, and a group
    /// each.
    fn measure(&mut self, harmful: &[i32]) -> Result<Measured> {
        thread::sleep(SETTLED);
        let pids = [self.answering.pid(), self.computing.pid()].into_iter().chain(harmful.iter().copied());
        let pids: Vec<i32> = pids.collect();
        let used = |pids: &[i32]| pids.iter().map(|pid| seconds_of(*pid)).collect::<Result<Vec<f64>>>();
        let (before, own, began) = (used(&pids)?, daemons_seconds(), Instant::now());
        let mut times = Vec::new();
        while began.elapsed() < OVER {
            let asked = Instant::now();
            self.client.send(b"is somebody there?")?;
            let mut answer = [0; 64];
            ensure!(self.client.recv(&mut answer)? == 18, "another answer");
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            // Of the lengths that thinking takes, none is in step with anything. The answers take a fifth of
            // what the VM is due: if they took half of that, `pb_ratio`, it would not be boosted for some.
            thread::sleep(Duration::from_micros(60_000 + times.len() as u64 * 7919 % 40_000));
        }
        let lasted = began.elapsed().as_secs_f64();
        let got: Vec<f64> = used(&pids)?.iter().zip(&before).map(|(now, before)| now - before).collect();
        let all: f64 = got.iter().sum();
        let part = 1.0 / pids.len() as f64;
        Ok(Measured {
            response_ms: times.iter().sum::<f64>() / times.len() as f64,
            worst_ms: times.iter().copied().fold(0.0, f64::max),
            missing: [got[0], got[1]].map(|got| part - got / all),
            daemon: (daemons_seconds() - own) / lasted,
        })
    }
}

/// A VM on the first CPU, in a group of its own.
fn boot(place: &Place, kernel: &Kernel, initrd: &Path, number: u8, vcpus: u16) -> Result<RunningVm> {
    let ifname = format!("attack{number}");
    ip(&["tuntap", "add", &ifname, "mode", "tap"])?;
    ip(&["address", "add", &format!("10.79.{number}.1/24"), "dev", &ifname])?;
    ip(&["link", "set", &ifname, "up"])?;
    let name = format!("frontdesk-attack-{number}-{}", std::process::id());
    let group = place.keeper.create_group(&place.root, &name)?;
    let mac = format!("52:54:00:12:35:{number:02x}");
    Ok(RunningVm::boot(&VmConfig {
        vcpus,
        memory_mib: 160,
        tap: Some(TapConfig { ifname, mac, guest_ip: address(number), prefix: 24, vhost: false }),
        plugin: Some(built("release/libfrontdesk_tcg_plugin.so")?),
        cpus: vec![0],
        cgroup_procs: vec![group.procs_file()],
        ..VmConfig::new(&format!("vm-{number}"), kernel, initrd, place.home.path())
    })?)
}

/// CPU time of a process.
fn seconds_of(pid: i32) -> Result<f64> {
    let stat = procfs::process::Process::new(pid)?.stat()?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// CPU time of this process, which is the daemon, but of the thread that asks.
fn daemons_seconds() -> f64 {
    let seconds = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    seconds(ClockId::ProcessCPUTime) - seconds(ClockId::ThreadCPUTime)
}

/// Eight that are followed and compute, on the first CPU, and do what `attack` says besides.
fn fakes(place: &Place, attack: &str, round: usize) -> Result<(Vec<FakeQemu>, Vec<Group>)> {
    let mut cpu = CpuSet::new();
    cpu.set(0);
    let (mut all, mut groups) = (Vec::new(), Vec::new());
    let name_of = |n| format!("{}-{round}-{n}", attack.replace(' ', "-"));
    for n in 0..FAKES {
        let name = name_of(n);
        let tasks = place.path(&format!("{name}.tasks"));
        let words = match attack {
            "reports" | "paced reports" => [
                "-chardev".into(),
                format!("socket,id=tasks,path={tasks},server=on,wait=off"),
                "-device".into(),
                format!("virtserialport,chardev=tasks,name={PORT_NAME}"),
            ]
            .into(),
            _ => Vec::new(),
        };
        let mut vm = FakeQemu::start_with(place.home.path(), &words)?;
        sched_setaffinity(Pid::from_raw(vm.pid().cast_signed()), &cpu)?;
        let group = place.keeper.create_group(&place.root, &format!("frontdesk-{name}-{}", vm.pid()))?;
        group.add(vm.pid())?;
        match attack {
            "rings" => vm.order("ring")?,
            "reports" => vm.order(&format!("reports {tasks}"))?,
            "paced reports" => vm.order(&format!("reports {tasks} {PACED}"))?,
            _ => {}
        }
        vm.order(&format!("listen {} {name}", place.path(&format!("{name}.qmp"))))?;
        vm.order("compute")?;
        all.push(vm);
        groups.push(group);
    }
    for n in 0..FAKES {
        heard(&["following the VM", &format!("\"{}\"", name_of(n))])?;
    }
    for vm in &mut all {
        match attack {
            "rings" => vm.order("spin")?,
            "events" => vm.order("flood")?,
            "names" => vm.order("names")?,
            _ => {}
        }
    }
    Ok((all, groups))
}

fn by_qemus() -> Result<()> {
    let (mut town, daemon) = Town::new()?;
    let mut found = BTreeMap::<&str, Vec<Measured>>::new();
    for round in 0..REPEATS {
        for attack in ["none", "rings", "events", "reports", "paced reports", "names"] {
            let (all, _groups) = fakes(&town.place, attack, round)?;
            let pids: Vec<i32> = all.iter().map(|vm| vm.pid().cast_signed()).collect();
            found.entry(attack).or_default().push(town.measure(&pids)?);
            drop(all);
            eventually("they are gone", || {
                pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            })?;
        }
    }
    daemon.end()?;
    judge(&found)
}

fn by_a_guest() -> Result<()> {
    let (mut town, daemon) = Town::new()?;
    let (place, kernel, initrd) = (&town.place, &town.kernel, &town.initrd);
    let mut hostile = boot(place, kernel, initrd, 3, 8)?;
    hostile.wait_ready(PATIENCE)?;
    heard(&["following the VM", "\"vm-3\""])?;
    let storm = |of| WorkloadKind::Storm { of };
    let attacks = [
        ("none", WorkloadKind::Hog, 1),
        ("packets", storm(Storm::Packets), 1),
        ("tasks", storm(Storm::Tasks), 1),
        ("switches", storm(Storm::Switches), 1),
        ("switches on eight vCPUs", storm(Storm::Switches), 8),
    ];
    let mut found = BTreeMap::<&str, Vec<Measured>>::new();
    for _ in 0..REPEATS {
        for (attack, kind, count) in &attacks {
            for n in 0..*count {
                hostile.start(&format!("attack-{n}"), kind.clone())?;
            }
            found.entry(*attack).or_default().push(town.measure(&[hostile.pid()])?);
            for n in 0..*count {
                hostile.stop(&format!("attack-{n}"))?;
            }
        }
    }
    daemon.end()?;
    judge(&found)
}

/// Each attack against none, in the median of the repeats.
fn judge(found: &BTreeMap<&str, Vec<Measured>>) -> Result<()> {
    let median = |attack: &str, of: fn(&Measured) -> f64| -> Result<f64> {
        let mut values: Vec<f64> = found.get(attack).context("not measured")?.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().context("not measured")
    };
    let mut missed = Vec::new();
    let calm = median("none", |of| of.response_ms)?;
    for attack in found.keys() {
        let response = median(attack, |of| of.response_ms)?;
        let (short, daemon) = (median(attack, Measured::short)?, median(attack, |of| of.daemon)?);
        let worst = median(attack, |of| of.worst_ms)?;
        let of_repeats = found[attack].iter().map(|of| {
            let [one, other] = of.missing.map(|missing| missing * 100.0);
            format!("{:.2} {one:+.1} {other:+.1} %", of.response_ms)
        });
        println!(
            "measured: {attack}: {response:.2} ms to an answer ({}), {:.3} of without; longest {worst:.1} ms; \
             {short:+.3} of the CPU missing; daemon {daemon:.3} of a core",
            of_repeats.collect::<Vec<_>>().join(", "),
            response / calm
        );
        for (is_missed, what) in [
            (response > calm * (1.0 + SLOWER), "responses"),
            (short > SHARE, "shares"),
            (daemon > DAEMON, "the daemon's time"),
        ] {
            missed.extend(is_missed.then(|| format!("{what} under {attack}")));
        }
    }
    ensure!(missed.is_empty(), "not held: {}", missed.join(", "));
    Ok(())
}
