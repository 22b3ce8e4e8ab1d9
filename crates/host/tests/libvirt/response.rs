//! How soon a VM of libvirt answers with the installed package and without it, in turn: a VM that answers
//! requests beside work of its own, among four that compute, all on one CPU. As in
//! scenarios/kvm/echo-mixed.toml everything takes many times as long.

use crate::{
    PASSED,
    guest::{self, HARDWARE, TAP},
    host::{run_for_output, systemctl},
    init::{DEB, GUESTS, HOME},
    libvirt_trial::{CONFIGURATION, group_of, running, virsh},
    plain,
};
use anyhow::{Context as _, Result, bail, ensure};
use frontdesk_lab_guest::{CONTROL_PORT, DILATION_PARAMETER, IP_PARAMETER, LabMessage, LabRequest, Op};
use frontdesk_linux::sched::{self, Attributes};
use serde_json::json;
use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    thread::sleep,
    time::{Duration, Instant},
};

/// How many times as long as elsewhere everything takes.
const DILATION: u32 = 30;
const REPEATS: usize = 2;
const WARMUP: Duration = Duration::from_millis(800).saturating_mul(DILATION);
const TIME: Duration = Duration::from_millis(2500).saturating_mul(DILATION);
/// Between an answer and the next request, in ms, before dilation; the same in each arm.
const THINK: [u32; 7] = [22, 5, 34, 12, 40, 16, 6];
/// Of a request and its answer.
const BYTES: usize = 40;
const ANSWER: Duration = Duration::from_secs(300);
/// Ahead of boosts and of the daemon, but not of its guardian.
const AHEAD: u32 = 55;

const MIXED: &str = "mixed";
const VMS: [&str; 5] = [MIXED, "cpu1", "cpu2", "cpu3", "cpu4"];
const GUEST_ADDRESS: &str = "10.99.0.2";

const SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arm {
    Stock,
    Frontdesk,
    /// The same without work of its own: the bound to reach.
    IoOnlyActing,
}

/// What came out of a repeat.
struct Repeat {
    /// In ms, divided by the dilation, in order.
    responses: Vec<f64>,
    boosts: u64,
    /// Of each VM's fair share of the CPU.
    shares: Vec<f64>,
}

/// Measures, and says on the console what came out.
pub(crate) fn measure() -> Result<()> {
    guest::prepare()?;
    plain::prepare()?;
    // As udev has it where it runs.
    run_for_output("chmod", &["666", "/dev/kvm"])?;
    let slice: u64 = fs::read_to_string(SLICE).context(SLICE)?.trim().parse()?;
    fs::write(SLICE, (slice * u64::from(DILATION)).to_string())?;
    run_for_output("dpkg", &["-i", DEB])?;
    let shipped = fs::read_to_string(CONFIGURATION)?;
    fs::write(CONFIGURATION, format!("{}{shipped}", parameters()))?;
    systemctl(&["stop", "frontdesk"])?;
    let mut controls = Vec::new();
    for vm in VMS {
        fs::write(format!("{HOME}/{vm}.xml"), definition(vm))?;
        virsh(&["create", &format!("{HOME}/{vm}.xml")])?;
        controls.push(Control::connect(vm)?);
    }
    for control in &mut controls {
        control.ready()?;
        control.start("hog", &json!("hog"))?;
    }
    controls[0].start("echo", &json!({"echo": {"protocol": "tcp", "port": 7, "cost": "0s"}}))?;
    // What asks stands for another machine.
    sched::set(0, Attributes::fifo(AHEAD))?;
    let arms = [("stock", Arm::Stock), ("frontdesk", Arm::Frontdesk), ("io-only-acting", Arm::IoOnlyActing)];
    let mut of_arms = arms.map(|_| Vec::new());
    for _ in 0..REPEATS {
        for ((_, arm), of_arm) in arms.iter().zip(&mut of_arms) {
            of_arm.push(repeat(*arm, &mut controls[0])?);
        }
    }
    let mut said = String::new();
    for ((name, _), repeats) in arms.iter().zip(&of_arms) {
        for repeat in repeats.iter().map(Some).chain([None]) {
            tell(&mut said, name, repeat, repeats)?;
        }
    }
    let mean_of = |arm: usize| mean(&all(&of_arms[arm]));
    let (gain, against) = (mean_of(0) / mean_of(1), mean_of(1) / mean_of(2));
    writeln!(said, "response: stock / frontdesk {gain:.2}, frontdesk / io-only-acting {against:.2}")?;
    print!("{said}");
    ensure!(gain > 1.0, "frontdesk makes it answer later");
    println!("{PASSED}");
    Ok(())
}

/// Those of the scenario, and durations as long as everything takes.
fn parameters() -> String {
    let ms = |ms: u32| format!("'{}ms'", ms * DILATION);
    format!(
        "daemon.cpus = [1]\ntavs.io_threshold = {}\ntavs.max_boost = {}\ntavs.pb_ratio = 0.5\ntavs.patience = {}\n\
         tavs.pb_period = {}\ntavs.time_slice = {}\nledger.period = {}\nledger.horizon = {}\n",
        ms(1),
        ms(7),
        ms(6),
        ms(1000),
        ms(30),
        ms(50),
        ms(250)
    )
}

fn repeat(arm: Arm, mixed: &mut Control) -> Result<Repeat> {
    if arm == Arm::IoOnlyActing {
        mixed.stop("hog")?;
    }
    if arm != Arm::Stock {
        systemctl(&["start", "frontdesk"])?;
        running(MIXED)?.is_followed()?;
    }
    let mut server = TcpStream::connect((GUEST_ADDRESS, 7)).context("the server in the VM")?;
    server.set_nodelay(true)?;
    server.set_read_timeout(Some(ANSWER))?;
    ask(&mut server, WARMUP)?;
    let before = used()?;
    let responses = ask(&mut server, TIME)?;
    let after = used()?;
    let boosts = || -> Result<u64> {
        let told = running(MIXED)?.is_followed()?;
        told["vcpus"][0]["boosts"].as_u64().context("boosts")
    };
    let boosts = if arm != Arm::Stock { boosts()? } else { 0 };
    if arm == Arm::IoOnlyActing {
        mixed.start("hog", &json!("hog"))?;
    }
    if arm != Arm::Stock {
        systemctl(&["stop", "frontdesk"])?;
    }
    let spent: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    let fair = spent.iter().sum::<f64>() / f64::from(u32::try_from(spent.len())?);
    Ok(Repeat { responses, boosts, shares: spent.iter().map(|spent| spent / fair).collect() })
}

/// Asks for so long. Returns how long the answers took.
fn ask(server: &mut TcpStream, time: Duration) -> Result<Vec<f64>> {
    let begin = Instant::now();
    let (mut responses, mut answer) = (Vec::new(), [0; BYTES]);
    for think in THINK.iter().cycle() {
        if begin.elapsed() >= time {
            break;
        }
        let sent = Instant::now();
        server.write_all(&[b'?'; BYTES])?;
        server.read_exact(&mut answer).context("an answer")?;
        responses.push(sent.elapsed().as_secs_f64() * 1000.0 / f64::from(DILATION));
        sleep(Duration::from_millis((think * DILATION).into()));
    }
    responses.sort_by(f64::total_cmp);
    Ok(responses)
}

/// CPU time of each VM so far.
fn used() -> Result<Vec<f64>> {
    VMS.iter()
        .map(|vm| {
            let group = group_of(&running(vm)?)?;
            let stat = fs::read_to_string(format!("{group}/cpu.stat"))?;
            let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
            Ok(usage.context("no usage_usec")?.parse()?)
        })
        .collect()
}

fn all(repeats: &[Repeat]) -> Vec<f64> {
    let mut all: Vec<f64> = repeats.iter().flat_map(|repeat| repeat.responses.iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn mean(responses: &[f64]) -> f64 {
    responses.iter().sum::<f64>() / responses.len() as f64
}

/// A line about a repeat, or all.
fn tell(said: &mut String, arm: &str, repeat: Option<&Repeat>, repeats: &[Repeat]) -> Result<()> {
    let responses = repeat.map_or_else(|| all(repeats), |repeat| repeat.responses.clone());
    let at = |part: usize| responses[((responses.len() - 1) * part).div_ceil(1000)];
    let boosts: u64 = repeat.map_or(repeats, std::slice::from_ref).iter().map(|of| of.boosts).sum();
    let shares = repeat.map_or_else(String::new, |of| format!("{:.3?}", of.shares));
    writeln!(
        said,
        "response: {arm:14} {} requests {:3}, mean {:.3} ms, p50 {:.3}, p99 {:.3}, max {:.3}, boosts {boosts} {shares}",
        if repeat.is_some() { "repeat" } else { "all   " },
        responses.len(),
        mean(&responses),
        at(500),
        at(990),
        at(1000),
    )?;
    Ok(())
}

/// The lab's own port into a guest.
struct Control {
    vm: &'static str,
    stream: BufReader<UnixStream>,
    last: u64,
}

impl Control {
    fn connect(vm: &'static str) -> Result<Control> {
        let stream = UnixStream::connect(socket(vm)).context("the guest's port")?;
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(Control { vm, stream: BufReader::new(stream), last: 0 })
    }

    fn hear(&mut self) -> Result<LabMessage> {
        let mut line = String::new();
        self.stream.read_line(&mut line).with_context(|| format!("{} says nothing", self.vm))?;
        serde_json::from_str(&line).with_context(|| format!("{} says {line:?}", self.vm))
    }

    fn ready(&mut self) -> Result<()> {
        match self.hear()? {
            LabMessage::Ready { .. } => Ok(()),
            other => bail!("{}: {other:?}", self.vm),
        }
    }

    fn start(&mut self, name: &str, kind: &serde_json::Value) -> Result<()> {
        let job = serde_json::from_value(json!({"workload": {"kind": kind, "steps_per_s": 0}}))?;
        self.tell(Op::Start { name: name.to_owned(), job })
    }

    fn stop(&mut self, name: &str) -> Result<()> {
        self.tell(Op::Stop { name: name.to_owned() })
    }

    fn tell(&mut self, op: Op) -> Result<()> {
        self.last += 1;
        let line = serde_json::to_string(&LabRequest { id: self.last, op })?;
        writeln!(self.stream.get_mut(), "{line}")?;
        match self.hear()? {
            LabMessage::Done { .. } => Ok(()),
            other => bail!("{}: {other:?}", self.vm),
        }
    }
}

fn socket(vm: &str) -> String {
    format!("{HOME}/vms/{vm}.control")
}

/// A VM in libvirt's words.
fn definition(vm: &str) -> String {
    let mut network = String::new();
    let mut parameters = format!("{DILATION_PARAMETER}={DILATION}");
    if vm == MIXED {
        parameters += &format!(" {IP_PARAMETER}={GUEST_ADDRESS}/24");
        network = format!(
            "<interface type='ethernet'>
      <mac address='{HARDWARE}'/><target dev='{TAP}' managed='no'/><model type='virtio'/>
      <driver name='qemu'/><rom enabled='no'/>
    </interface>"
        );
    }
    format!(
        "<domain type='kvm'>
  <name>{vm}</name>
  <memory unit='MiB'>128</memory>
  <vcpu placement='static' cpuset='0'>1</vcpu>
  <cputune><emulatorpin cpuset='0'/></cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{GUESTS}/kernel</kernel><initrd>{GUESTS}/initrd</initrd>
    <cmdline>mitigations=off quiet panic=-1 no_timer_check console=ttyS0 {parameters}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <channel type='unix'>
      <source mode='bind' path='{}'/><target type='virtio' name='{CONTROL_PORT}'/>
    </channel>
    {network}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
",
        socket(vm)
    )
}
