//! A trace in the JSON trace-event format, which Perfetto and Chrome open.

use frontdesk_scenario::{Timeline, float};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Result, Write};

/// The process that stands for the physical CPUs; that of VM `i` is this plus 1 plus `i`.
const PCPUS: u64 = 1;
/// Threads of a VM's process: its vCPUs from here on,
const VCPUS: u64 = 1;
/// the boosts of each,
const BOOSTS: u64 = 100_000;
/// when each of them is slow,
const WEIGHTS: u64 = 150_000;
/// its episodes,
const EPISODES: u64 = 190_000;
/// its packets,
const PACKETS: u64 = 200_000;
/// the blocks that it reads,
const READS: u64 = 300_000;
/// what its disk does,
const DISK: u64 = 350_000;
/// what it draws,
const DISPLAY: u64 = 400_000;
/// and when it is at its sound card.
const SOUND: u64 = 500_000;

/// Writes what happened in one repeat as a trace that <https://ui.perfetto.dev> opens: a track for each
/// physical CPU with the VM thread on it, and for each VM a track for each vCPU with the guest task on it,
/// the boosts, when a vCPU is slow and in which episode, the packets, the blocks read, what its disk does, in
/// which class and for which task, what is drawn, accesses to the sound card, frame rates and the degrees of
/// belief. The slices of a track are sorted and do not overlap.
///
/// # Errors
/// When `out` cannot be written to.
pub fn perfetto(timeline: &Timeline, out: &mut impl Write) -> Result<()> {
    let mut trace = Trace::begin(out)?;
    trace.name("process_name", PCPUS, 0, "physical CPUs")?;
    for index in 0..timeline.vms.len() {
        trace.name("process_name", vm_process(index), 0, &format!("VM {}", vm_name(timeline, index)))?;
    }
    for run in &timeline.runs {
        let label = format!("{} {}", vm_name(timeline, run.vm), run.thread);
        let cpu = Track { process: PCPUS, thread: u64::from(run.pcpu), name: format!("CPU {}", run.pcpu) };
        trace.slice(cpu, label, [run.start, run.end], Value::Null);
    }
    for task in &timeline.tasks {
        let thread = VCPUS + u64::from(task.vcpu);
        let vcpu = Track { process: vm_process(task.vm), thread, name: format!("vCPU {}", task.vcpu) };
        trace.slice(vcpu, task.task.clone(), [task.start, task.end], Value::Null);
    }
    for boost in &timeline.boosts {
        let thread = BOOSTS + u64::from(boost.vcpu);
        let name = format!("boosts of vCPU {}", boost.vcpu);
        let boosts = Track { process: vm_process(boost.vm), thread, name };
        trace.slice(boosts, "boost".to_owned(), [boost.start, boost.end], json!({ "hit": boost.hit }));
    }
    for weight in &timeline.weights {
        let thread = WEIGHTS + u64::from(weight.vcpu);
        let name = format!("weight of vCPU {}", weight.vcpu);
        let weights = Track { process: vm_process(weight.vm), thread, name };
        let pace = if weight.permille < 1000 { "slow" } else { "fast" };
        let args = json!({ "permille": weight.permille });
        trace.slice(weights, pace.to_owned(), [weight.start, weight.end], args);
    }
    for episode in &timeline.episodes {
        let name = "episodes".to_owned();
        let episodes = Track { process: vm_process(episode.vm), thread: EPISODES, name };
        trace.slice(episodes, episode.cause.clone(), [episode.start, episode.end], Value::Null);
    }
    trace.slices()?;
    let receiving: BTreeSet<_> = timeline.packets.iter().map(|packet| packet.vm).collect();
    for vm in receiving {
        trace.name("thread_name", vm_process(vm), PACKETS, "packets")?;
    }
    for packet in &timeline.packets {
        let args = json!({ "protocol": packet.protocol, "port": packet.port, "decision": packet.decision });
        let name = format!("{} {}", packet.protocol, packet.port);
        let process = vm_process(packet.vm);
        trace.event(&Event { s: Some("t"), args, ..Event::new("i", &name, process, PACKETS, packet.at) })?;
    }
    let reading: BTreeSet<_> = timeline.reads.iter().map(|read| read.vm).collect();
    for vm in reading {
        trace.name("thread_name", vm_process(vm), READS, "block reads")?;
    }
    for (index, read) in timeline.reads.iter().enumerate() {
        let args = json!({ "decision": read.decision });
        let event = |ph, at| Event::new(ph, "read", vm_process(read.vm), READS, at);
        // Reads overlap, which slices of a track must not; asynchronous events may.
        let asynchronous = |ph, at| Event { cat: Some("block"), id: Some(index), ..event(ph, at) };
        match read.done {
            Some(done) => {
                trace.event(&Event { args, ..asynchronous("b", read.at) })?;
                trace.event(&asynchronous("e", done.max(read.at)))?;
            }
            None => trace.event(&Event { s: Some("t"), args, ..event("i", read.at) })?,
        }
    }
    trace.disk_work(timeline)?;
    let drawing: BTreeSet<_> = timeline.updates.iter().map(|update| update.vm).collect();
    for vm in drawing {
        trace.name("thread_name", vm_process(vm), DISPLAY, "display")?;
    }
    for update in &timeline.updates {
        let event = Event::new("i", &update.region, vm_process(update.vm), DISPLAY, update.at);
        trace.event(&Event { s: Some("t"), ..event })?;
    }
    let sounding: BTreeSet<_> = timeline.sounds.iter().map(|sound| sound.vm).collect();
    for vm in sounding {
        trace.name("thread_name", vm_process(vm), SOUND, "sound card")?;
    }
    for sound in &timeline.sounds {
        let name = sound.task.as_deref().unwrap_or("interrupt");
        let args = json!({ "vcpu": sound.vcpu });
        let event = Event::new("i", name, vm_process(sound.vm), SOUND, sound.at);
        trace.event(&Event { s: Some("t"), args, ..event })?;
    }
    for point in &timeline.frame_rates {
        let mut count = |what, args| {
            let name = format!("{what} {}", point.task);
            trace.event(&Event { args, ..Event::new("C", &name, vm_process(point.vm), 0, point.at) })
        };
        count("frames/s of", json!({ "shown": point.rate, "desired": point.desired }))?;
        count("share for", json!({ "permille": point.share_permille }))?;
    }
    for point in &timeline.beliefs {
        let args = json!({ "belief": point.belief });
        let name = format!("belief in {}", point.task);
        trace.event(&Event { args, ..Event::new("C", &name, vm_process(point.vm), 0, point.at) })?;
    }
    trace.end()
}

/// The process of a VM.
fn vm_process(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX).saturating_add(PCPUS + 1)
}

/// The name of a VM, or its index if the timeline has no name for it.
fn vm_name(timeline: &Timeline, index: usize) -> String {
    timeline.vms.get(index).cloned().unwrap_or_else(|| format!("#{index}"))
}

/// One trace event, with the field names of the format.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    name: &'a str,
    pid: u64,
    tid: u64,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    /// Of an asynchronous event: what makes its id unique,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// and the id, which its begin and end have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

impl<'a> Event<'a> {
    fn new(ph: &'static str, name: &'a str, pid: u64, tid: u64, at: u64) -> Self {
        Event {
            ph,
            name,
            pid,
            tid,
            ts: micros(at),
            dur: None,
            s: None,
            cat: None,
            id: None,
            args: Value::Null,
        }
    }
}

fn micros(nanos: u64) -> f64 {
    float(nanos) / 1000.0
}

struct Track {
    process: u64,
    thread: u64,
    name: String,
}

struct Slice {
    name: String,
    start: u64,
    end: u64,
    args: Value,
}

struct Trace<'a, W> {
    out: &'a mut W,
    first: bool,
    tracks: BTreeMap<(u64, u64), (String, Vec<Slice>)>,
}

impl<'a, W: Write> Trace<'a, W> {
    fn begin(out: &'a mut W) -> Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        Ok(Trace { out, first: true, tracks: BTreeMap::new() })
    }

    fn event(&mut self, event: &Event<'_>) -> Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn name(&mut self, what: &'static str, process: u64, thread: u64, name: &str) -> Result<()> {
        self.event(&Event { args: json!({ "name": name }), ..Event::new("M", what, process, thread, 0) })
    }

    fn slice(&mut self, track: Track, name: String, [start, end]: [u64; 2], args: Value) {
        let (_, slices) =
            self.tracks.entry((track.process, track.thread)).or_insert_with(|| (track.name, Vec::new()));
        slices.push(Slice { name, start, end, args });
    }

    /// Writes the slices, track by track. Where one begins before the last has ended, as after lost events,
    /// the last ends there: Perfetto would nest or drop them otherwise.
    fn slices(&mut self) -> Result<()> {
        for ((process, thread), (track, mut slices)) in std::mem::take(&mut self.tracks) {
            self.name("thread_name", process, thread, &track)?;
            slices.sort_by_key(|slice| slice.start);
            let starts: Vec<_> = slices.iter().skip(1).map(|next| next.start).chain([u64::MAX]).collect();
            for (slice, next) in slices.into_iter().zip(starts) {
                let end = slice.end.clamp(slice.start, next);
                let dur = Some(micros(end - slice.start));
                let event = Event::new("X", &slice.name, process, thread, slice.start);
                self.event(&Event { dur, args: slice.args, ..event })?;
            }
        }
        Ok(())
    }

    /// What waits, and what the disk is at, overlap: both are asynchronous, the one within the other.
    fn disk_work(&mut self, timeline: &Timeline) -> Result<()> {
        let served: BTreeSet<_> = timeline.disk_work.iter().map(|work| work.vm).collect();
        for vm in served {
            self.name("thread_name", vm_process(vm), DISK, "disk")?;
        }
        for (index, work) in timeline.disk_work.iter().enumerate() {
            let event = |ph, name, at| {
                let event = Event::new(ph, name, vm_process(work.vm), DISK, at);
                Event { cat: Some("disk"), id: Some(index), ..event }
            };
            let name = format!("{} {}", work.class, work.operation);
            let (begun, end) = (work.begun.max(work.start), work.end.max(work.begun).max(work.start));
            let args = json!({ "task": work.task, "why": work.why, "bytes": work.bytes });
            self.event(&Event { args, ..event("b", &name, work.start) })?;
            self.event(&event("b", "at the disk", begun))?;
            self.event(&event("e", "at the disk", end))?;
            self.event(&event("e", &name, end))?;
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.out.write_all(b"\n]}\n")
    }
}
