//! Trials of boosts that the kernel gives by itself.

use super::work::{Work, used};
use super::{VMS, adopt, three};
use crate::support::{start_guardian, trial};
use crate::wire::{Wire, ethernet, ipv4, udp};
use anyhow::{Context as _, Result, anyhow, ensure};
use frontdesk_engine::{
    ActionKind, Boost, BoostTarget, Capabilities, Config, Engine, Event, EventKind, Foreseen, Protocol,
    Reason, TaskId, Thread, Time, VmId,
};
use frontdesk_guardian::Guardian;
use frontdesk_host::threads::Threads;
use frontdesk_linux::{monotonic_ns, realtime, sched};
use frontdesk_probes::bpf::BpfSource;
use frontdesk_probes::scx::Scx;
use libtest_mimic::Trial;
use rustix::event::{Timespec, epoll};
use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("scx_kernel_boosts_once_for_a_known_port", || on_a_wire(boosts_once_for_a_known_port)),
        trial("scx_kernel_gives_what_the_engine_takes_over", || on_a_wire(gives_what_the_engine_takes_over)),
        trial("scx_kernel_boosts_sooner", || on_a_wire(boosts_sooner)),
    ]
}

const VM: VmId = VMS[0];
const PORT: u16 = 9;
const MS: u64 = 1_000_000;

/// Runs a trial on a thread with a [`Wire`], so that its namespace ends with it.
fn on_a_wire(test: fn(&Wire) -> Result<()>) -> Result<()> {
    let thread = thread::spawn(move || test(&Wire::new()?));
    thread.join().unwrap_or_else(|_| Err(anyhow!("the trial's thread panicked")))
}

fn packet(wire: &Wire, port: u16) -> Result<()> {
    wire.send(&ethernet(0x0800, &ipv4(17, 0, &udp(port))))
}

/// The vCPU that answers, for so long.
fn foreseen(lasts: Duration) -> Result<Foreseen> {
    Ok(Foreseen { vcpus: vec![1], level: Boost::Io, lasts_ns: u64::try_from(lasts.as_nanos())? })
}

/// Longer than any trial.
const LONG: Duration = Duration::from_secs(600);

/// How many boosts the kernel has given a VM by itself.
fn gifts(threads: &Threads) -> Result<u64> {
    Ok(threads.usage(VM)?.context("not adopted")?.gifts)
}

/// Whether the VM, which has a thread that wakes every 5 ms, is boosted by now.
fn becomes_boosted(threads: &Threads, boosted: bool) -> Result<()> {
    // What is to come true may take a while; what is not boosted may be in the middle of a boosted run.
    let mut windows = 0;
    while windows < 50 {
        let found = used(threads, &[VM], Duration::ZERO, |used| used[0].runs >= 20)?;
        if (found[0].boosted_runs > 0) == boosted {
            return Ok(());
        }
        windows += 1;
    }
    Err(anyhow!("boosted is not {boosted}"))
}

/// A VM with the fast path, beside two others that compute, and who listens to its packets.
fn beside(wire: &Wire, guardian: &Guardian) -> Result<([Work; 3], Threads, BpfSource)> {
    let (work, mut threads) = three([1024; 3], 1, guardian, Scx::load(true)?)?;
    let mut source = BpfSource::open()?;
    source.follow(VM, &[], &[wire.tap()])?;
    threads.set_taps(VM, &[wire.tap()]);
    ensure!(threads.has_fast_path() && !threads.learn_port(VM, Protocol::Udp, PORT, true));
    Ok((work, threads, source))
}

/// When the last packet came that was heard of.
fn last_packet(source: &mut BpfSource) -> Result<Time> {
    let mut events = Vec::new();
    source.drain(&mut events)?;
    let packets = events.iter().filter(|event| matches!(event.kind, EventKind::Packet { .. }));
    packets.map(|event| event.at).max().context("no packet was heard of")
}

fn boosts_once_for_a_known_port(wire: &Wire) -> Result<()> {
    let guardian = start_guardian()?;
    let (_work, mut threads, mut source) = beside(wire, &guardian)?;
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 0, "there is no mandate yet");
    threads.mandate(VM, None, Some(&foreseen(LONG)?))?;
    packet(wire, PORT + 1)?;
    wire.send(&ethernet(0x0800, &ipv4(6, 0, &udp(PORT))))?;
    ensure!(gifts(&threads)? == 0, "another port, another protocol");
    becomes_boosted(&threads, false)?;
    let before = last_packet(&mut source)?;
    // A flood gains no more than one packet.
    (0..1000).try_for_each(|_| packet(wire, PORT))?;
    ensure!(gifts(&threads)? == 1, "{} boosts", gifts(&threads)?);
    becomes_boosted(&threads, true)?;
    ensure!(!threads.is_boosted(VM), "nobody ordered that");
    // Who has not heard of the packet cannot take back what it was given.
    threads.mandate(VM, Some(before), Some(&foreseen(LONG)?))?;
    becomes_boosted(&threads, true)?;
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 1, "nor give a mandate for another one");
    threads.mandate(VM, Some(last_packet(&mut source)?), None)?;
    becomes_boosted(&threads, false)?;
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 1, "there is no mandate any more");
    // One that is not known any more.
    threads.mandate(VM, None, Some(&foreseen(LONG)?))?;
    ensure!(threads.learn_port(VM, Protocol::Udp, PORT, false), "it was known");
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 1, "the port was forgotten");
    // With its account, a VM loses what was mandated.
    threads.learn_port(VM, Protocol::Udp, PORT, true);
    threads.release(VM, &guardian)?;
    packet(wire, PORT)?;
    ensure!(threads.usage(VM)?.is_none() && threads.ejected().is_none());
    Ok(())
}

fn gives_what_the_engine_takes_over(wire: &Wire) -> Result<()> {
    let guardian = start_guardian()?;
    let (_work, mut threads, mut source) = beside(wire, &guardian)?;
    // The daemon hangs: the boost ends by itself.
    threads.mandate(VM, None, Some(&foreseen(Duration::from_millis(50))?))?;
    packet(wire, PORT)?;
    becomes_boosted(&threads, false)?;
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 1, "and there is no other one");
    // The engine decides the same: the boost is its own, and ends when it says so.
    threads.mandate(VM, Some(last_packet(&mut source)?), Some(&foreseen(LONG)?))?;
    ensure!(threads.take_over(VM, 1, Time(u64::MAX))?.is_none(), "what was given first is taken back");
    packet(wire, PORT)?;
    ensure!(gifts(&threads)? == 2);
    let came = last_packet(&mut source)?;
    ensure!(
        threads.take_over(VM, 1, Time(came.0 - 1_000_000_000))?.is_none(),
        "what came before got nothing"
    );
    ensure!(threads.take_over(VM, 0, came)?.is_none(), "another vCPU");
    // For all that is ordered because of the packet.
    ensure!(threads.take_over(VM, 1, came)?.is_some_and(|took| took > 0));
    ensure!(threads.take_over(VM, 1, came)?.is_some() && threads.taken_over(VM) == 1);
    for target in [BoostTarget::Emulators, BoostTarget::Vcpu(1)] {
        threads.boost(VM, target, Boost::Io)?;
    }
    threads.mandate(VM, Some(came), None)?;
    becomes_boosted(&threads, true)?;
    for target in [BoostTarget::Vcpu(1), BoostTarget::Emulators] {
        threads.boost(VM, target, Boost::None)?;
    }
    becomes_boosted(&threads, false)?;
    Ok(())
}

/// Packets by each of the two ways.
const PACKETS: usize = 150;
/// Of the guest.
const HOG: TaskId = TaskId(1);
const SERVER: TaskId = TaskId(2);

/// What is done between the packet and the boost: that of the daemon's loop.
struct PacketLoop<'a> {
    engine: Engine,
    threads: &'a mut Threads,
    source: &'a mut BpfSource,
    /// Whether the kernel may boost by itself.
    mandates: bool,
    /// Hears of a packet before the kernel does anything about it.
    early: &'a mut BpfSource,
}

impl PacketLoop<'_> {
    fn feed(&mut self, at: u64, kind: EventKind) -> Result<()> {
        self.engine.on_event(&Event { at: Time(at), kind });
        while let Some(action) = self.engine.poll_action() {
            if let ActionKind::Boost { vm, target, level } = action.kind {
                self.threads.boost(vm, target, level)?;
            }
        }
        Ok(())
    }

    fn mandate(&mut self, handled: Option<Time>) -> Result<()> {
        let foreseen = self.engine.foresee(VM).filter(|_| self.mandates);
        Ok(self.threads.mandate(VM, handled, foreseen.as_ref())?)
    }

    /// The guest takes the packet, its server runs for a fifth of a millisecond, and the other task goes on.
    fn answer(&mut self) -> Result<()> {
        let (at, emulator) = (monotonic_ns(), Thread::Emulator(0));
        self.feed(at, EventKind::Run { vm: VM, thread: emulator, pcpu: 1 })?;
        self.feed(at + 1, EventKind::Stop { vm: VM, thread: emulator, runnable: false })?;
        self.feed(at + 2, EventKind::TaskSwitch { vm: VM, vcpu: 0, task: SERVER })?;
        self.feed(at + MS / 5, EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG })
    }

    /// A guest whose server is known for what it is before anything is measured.
    fn learn(&mut self) -> Result<()> {
        let mut at = monotonic_ns() - 2_000 * MS;
        let vcpu = Thread::Vcpu(0);
        self.feed(at, EventKind::World(Capabilities { charges_boosts: true, ..Capabilities::default() }))?;
        self.feed(at, EventKind::VmAdded { vm: VM, vcpus: 1, weight: 1024 })?;
        self.feed(at, EventKind::Run { vm: VM, thread: vcpu, pcpu: 0 })?;
        self.feed(at, EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG })?;
        for _ in 0..8 {
            at += 100 * MS;
            self.feed(at, EventKind::Packet { vm: VM, protocol: Protocol::Udp, port: PORT })?;
            self.feed(at, EventKind::Run { vm: VM, thread: Thread::Emulator(0), pcpu: 1 })?;
            let asleep = EventKind::Stop { vm: VM, thread: Thread::Emulator(0), runnable: false };
            self.feed(at + MS / 20, asleep)?;
            self.feed(at + MS / 10, EventKind::TaskSwitch { vm: VM, vcpu: 0, task: SERVER })?;
            self.feed(at + MS / 4, EventKind::TaskSwitch { vm: VM, vcpu: 0, task: HOG })?;
        }
        Ok(())
    }

    /// Asks for packets, every other one of which the kernel may boost by itself, and waits after each until
    /// its vCPU has run.
    fn run(&mut self, ask: &Sender<()>) -> Result<[Measured; 2]> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, self.source.fd(), epoll::EventData::new_u64(0), edge)?;
        let (mut waits, mut heard, mut measured) = (false, Vec::new(), [(); 2].map(|()| Measured::default()));
        for number in 0..2 * PACKETS {
            self.mandates = number % 2 == 1;
            let measured = &mut measured[number % 2];
            let (mut came, mut asked, start) = (None, false, Instant::now());
            loop {
                ensure!(start.elapsed() < Duration::from_secs(300), "packet {number}: it came at {came:?}");
                let (mut events, tick) = (Vec::with_capacity(1), Timespec { tv_sec: 0, tv_nsec: 5_000_000 });
                epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick))?;
                self.source.drain(&mut heard)?;
                heard.sort_by_key(|event| event.at);
                let (mut handled, mut ran) = (None, None);
                for event in heard.drain(..) {
                    self.feed(event.at.0, event.kind)?;
                    match event.kind {
                        EventKind::Packet { protocol, port, .. } => {
                            // What tells of it is told after what the kernel did about it.
                            let first = if self.mandates { event.at } else { Time(monotonic_ns()) };
                            let at = last_packet(self.early)?;
                            measured.first.push(first.since(at));
                            let awaited = self.engine.awaits(VM, protocol, port);
                            ensure!(awaited, "the port is known");
                            self.threads.learn_port(VM, protocol, port, awaited);
                            let decision = self.engine.decision(VM).map(|decision| decision.verdict);
                            measured.boosts += usize::from(decision == Some(Reason::Boosted));
                            (came, handled) = (Some((at, waits)), Some(event.at));
                        }
                        EventKind::Run { .. } => {
                            waits = false;
                            ran = ran.or(came.map(|_| event.at));
                        }
                        EventKind::Stop { runnable, .. } => waits = runnable,
                        _ => {}
                    }
                }
                self.mandate(handled)?;
                // One that ran when the packet came goes on.
                if let Some((at, waited)) = came
                    && (ran.is_some() || !waited)
                {
                    measured.ran.extend(ran.filter(|_| waited).map(|ran| ran.since(at)));
                    self.answer()?;
                    self.mandate(None)?;
                    break;
                }
                if !asked {
                    asked = true;
                    ask.send(())?;
                }
            }
            let given = gifts(self.threads)?;
            ensure!(
                given == u64::try_from(number.div_ceil(2))?,
                "packet {number}: {given} given by the kernel"
            );
        }
        Ok(measured)
    }
}

/// Of the packets of one way.
#[derive(Default)]
struct Measured {
    /// Boosts that the engine decided.
    boosts: usize,
    /// Nanoseconds from the packet until its vCPU is one of those that go first,
    first: Vec<u64>,
    /// and until it runs, of those that waited for a CPU.
    ran: Vec<u64>,
}

impl Measured {
    fn tell(&mut self, who: &str) {
        for (until, took) in [("goes first", &mut self.first), ("runs, if it waits", &mut self.ran)] {
            took.sort_unstable();
            let quantile = |permille| took.get(took.len() * permille / 1000).map_or(0, |ns| ns / 1000);
            println!(
                "measured: boosted by {who}, from a packet until its vCPU {until}: {} us (p50), {} us (p90), {} us (p99) of {}",
                quantile(500),
                quantile(900),
                quantile(990),
                took.len()
            );
        }
    }
}

/// Sends a packet each time that it is asked for one, some time later.
fn send(wire: &Wire, asked: &Receiver<()>) -> Result<()> {
    let mut pause = 0;
    while asked.recv().is_ok() {
        // At different places of the vCPU's turns.
        pause = (pause + 7) % 20;
        thread::sleep(Duration::from_millis(8 + pause));
        packet(wire, PORT)?;
    }
    Ok(())
}

/// From the packet until the vCPU runs, with three VMs that compute on one CPU: through the engine, and by
/// the kernel. What comes before the vCPU on the other CPU, sender and daemon, does not keep it from running.
fn boosts_sooner(wire: &Wire) -> Result<()> {
    let guardian = start_guardian()?;
    let work = [Work::start(1, 0)?, Work::start(1, 0)?, Work::start(1, 0)?];
    let mut early = BpfSource::open()?;
    early.follow(VM, &[], &[wire.tap()])?;
    let mut threads = Threads::by_sched_ext(Scx::load(true)?);
    for (vm, work) in VMS.into_iter().zip(&work) {
        sched::set_affinity(work.workers[0].tid, &[0])?;
        adopt(&mut threads, vm, 1024, work, &guardian)?;
    }
    let mut source = BpfSource::open()?;
    source.follow(VM, &[(work[0].workers[0].tid, Thread::Vcpu(0))], &[wire.tap()])?;
    threads.set_taps(VM, &[wire.tap()]);
    threads.learn_port(VM, Protocol::Udp, PORT, true);
    let mut config = Config::default();
    config.tavs.pb_ratio = 1.0;
    let (ask, asked) = channel();
    let mut measured = thread::scope(|scope| -> Result<[Measured; 2]> {
        let (threads, source, early) = (&mut threads, &mut source, &mut early);
        let engine = Engine::new(config)?;
        let daemon = scope.spawn(move || -> Result<[Measured; 2]> {
            // As the daemon.
            realtime::enter(50, &[1])?;
            let mut own = PacketLoop { engine, threads, source, mandates: false, early };
            own.learn()?;
            own.run(&ask)
        });
        realtime::pin(&[1])?;
        send(wire, &asked)?;
        daemon.join().unwrap_or_else(|_| Err(anyhow!("the loop panicked")))
    })?;
    ensure!(threads.ejected().is_none(), "{:?}", threads.ejected());
    for (who, measured) in ["user space", "the kernel"].into_iter().zip(&mut measured) {
        measured.tell(who);
        // The engine does not know who gave a boost first.
        ensure!(measured.boosts == PACKETS, "{} boosts decided for {PACKETS} packets", measured.boosts);
    }
    Ok(())
}
