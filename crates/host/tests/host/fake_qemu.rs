//! A process that passes for a QEMU: it is called one, has threads for vCPUs, and speaks QMP as far as it is
//! asked.

use anyhow::{Context as _, Result};
use frontdesk_guest_protocol::{GuestMessage, MAGIC, MAX_ENCODED, VERSION, encode};
use frontdesk_ring::{Entry, EntryKind, Producer};
use serde_json::{Value, json};
use std::{
    env,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt as _,
        },
    },
    path::Path,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A running one, killed with the value.
pub(crate) struct FakeQemu {
    child: Child,
    orders: ChildStdin,
}

impl FakeQemu {
    /// Starts one, which does nothing before it is told to listen.
    pub(crate) fn start(home: &Path) -> Result<FakeQemu> {
        FakeQemu::start_with(home, &[])
    }

    /// The same, with further words in its command line.
    pub(crate) fn start_with(home: &Path, words: &[String]) -> Result<FakeQemu> {
        // What a process runs is to be a QEMU of root's.
        let program = home.join("qemu-fake");
        if !program.exists() {
            fs::copy(env::current_exe()?, &program)?;
        }
        let mut child = Command::new(&program).arg("fake-qemu").args(words).stdin(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("no standard input")?;
        Ok(FakeQemu { child, orders })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `listen PATH NAME`; `plug`; `mute`, to answer nobody any more; `flood`, to tell whoever connects
    /// events without end; `ring`, to be a QEMU with the plugin, `switch`, to tell of a task, and `spin`, to
    /// fill its ring; `tap NAME`, to have a network device; `reports PATH`, to pass there for a guest's
    /// reporter that has very much to tell, and `reports PATH N`, for one that does so N times a second;
    /// `names`, to call a thread something else without end; `compute`; `vhost`, to have a worker of the
    /// kernel's; `crowd`, to have more threads than are looked at, and `births`, to start others without end;
    /// or an event's name.
    pub(crate) fn order(&mut self, order: &str) -> Result<()> {
        Ok(writeln!(self.orders, "{order}")?)
    }
}

impl Drop for FakeQemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct State {
    name: String,
    vcpus: Vec<i32>,
    paused: bool,
    mute: bool,
    client: Option<UnixStream>,
    ring: Option<Arc<Producer>>,
}

/// Says something to whoever is connected, without end.
fn flood(state: &Mutex<State>) {
    loop {
        let client = state.lock().unwrap_or_else(PoisonError::into_inner).client.take();
        match client {
            Some(mut client) => {
                while client.write_all(b"{\"event\": \"RESET\"}\n{\"event\": \"X\"}\n").is_ok() {}
            }
            None => thread::yield_now(),
        }
    }
}

/// Fills the ring of the first vCPU with switches of tasks, each another one.
fn spin(ring: &Producer) {
    for task in 1_u64.. {
        let at_ns = frontdesk_linux::monotonic_ns();
        ring.push(0, Entry { at_ns, kind: EntryKind::Switch { task: task << 12 } });
    }
}

/// Tells whoever connects of switches of tasks without end, as a guest's reporter does, 64 at a time; so
/// often in a second, or as often as it can.
fn reports(listener: &UnixListener, rate: Option<u32>) {
    let hello = GuestMessage::Hello { magic: MAGIC, version: VERSION, vcpus: 1 };
    for mut client in listener.incoming().flatten() {
        let mut said = Vec::new();
        encode(&hello, MAX_ENCODED, &mut said);
        let mut task = 1_u32;
        let began = Instant::now();
        while client.write_all(&said).is_ok() {
            said.clear();
            if let Some(rate) = rate {
                let due = began + Duration::from_secs(1) * (task / 64) / rate;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            for _ in 0..64 {
                let at_ns = frontdesk_linux::monotonic_ns();
                task = task.wrapping_add(1);
                encode(&GuestMessage::Run { vcpu: 0, at_ns, task }, MAX_ENCODED, &mut said);
            }
            encode(&GuestMessage::Sent { at_ns: frontdesk_linux::monotonic_ns() }, MAX_ENCODED, &mut said);
        }
    }
}

/// Calls its own thread what QEMU's are called, and what is no text, in turns.
fn names() {
    for name in [c"CPU 7/KVM", c"\xff) R 1 \xfe", c"CPU 0/TCG", c"worker"].into_iter().cycle() {
        // SAFETY: the kernel reads the name, which ends with a zero.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

fn compute() {
    for number in 0_u64.. {
        std::hint::black_box(number);
    }
}

/// A device of the kernel's vhost-net, and with it a worker that is called after the calling thread.
pub(crate) fn vhost_device() -> io::Result<File> {
    const SET_OWNER: libc::c_ulong = 0xaf01;
    let device = File::options().read(true).write(true).open("/dev/vhost-net")?;
    // SAFETY: takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), SET_OWNER, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

/// A network device for VMs, as QEMU has it open.
fn tap_device(name: &str) -> io::Result<File> {
    // SAFETY: zeros are such a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.bytes().take(libc::IFNAMSIZ - 1);
    request.ifr_name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from.cast_signed());
    #[allow(clippy::cast_possible_truncation)] // They are bits of a short.
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    let device = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: the kernel reads and writes the request, which outlives the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

/// Has threads that do nothing.
fn crowd() {
    (0..1200).for_each(|_| drop(thread::spawn(thread::park)));
}

/// Starts threads that end at once, one after the other.
fn births() {
    loop {
        let _ = thread::spawn(|| ()).join();
    }
}

impl State {
    fn plug(&mut self) {
        let (tell, told) = mpsc::channel();
        let vcpu = move || {
            // SAFETY: gettid touches no memory.
            let _ = tell.send(unsafe { libc::gettid() });
            loop {
                thread::park();
            }
        };
        let _ = thread::Builder::new().name(format!("CPU {}/TCG", self.vcpus.len())).spawn(vcpu);
        self.vcpus.extend(told.recv());
    }

    fn answer(&self, command: &str) -> Value {
        let cpu = |(index, tid): (usize, &i32)| json!({"cpu-index": index, "thread-id": tid});
        match command {
            "query-name" => json!({"name": self.name}),
            "query-status" => json!({"status": if self.paused { "paused" } else { "running" }}),
            "query-cpus-fast" => self.vcpus.iter().enumerate().map(cpu).collect(),
            "query-iothreads" | "query-block" => json!([]),
            _ => json!({}),
        }
    }
}

/// Is one, until its standard input closes.
pub(crate) fn main() -> ExitCode {
    let state = Arc::new(Mutex::new(State::default()));
    let mut devices = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut now = state.lock().unwrap_or_else(PoisonError::into_inner);
        match words[..] {
            ["listen", path, name] => {
                now.name = name.to_owned();
                now.plug();
                let Ok(listener) = UnixListener::bind(path) else { return ExitCode::FAILURE };
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    listener.incoming().flatten().for_each(|client| drop(serve(&state, client)))
                });
            }
            ["plug"] => now.plug(),
            ["mute"] => now.mute = true,
            ["ring"] => now.ring = Producer::create(1).ok().map(Arc::new),
            ["switch"] => {
                let at_ns = frontdesk_linux::monotonic_ns();
                let entry = Entry { at_ns, kind: EntryKind::Switch { task: 1 << 12 } };
                if let Some(ring) = now.ring.as_deref() {
                    ring.push(0, entry);
                }
            }
            ["spin"] => {
                let ring = now.ring.clone();
                thread::spawn(move || ring.as_deref().map(spin));
            }
            ["reports", path, ref rate @ ..] => {
                let Ok(listener) = UnixListener::bind(path) else { return ExitCode::FAILURE };
                let rate = rate.first().and_then(|rate| rate.parse().ok());
                thread::spawn(move || reports(&listener, rate));
            }
            ["names"] => drop(thread::spawn(names)),
            ["compute"] => drop(thread::spawn(compute)),
            ["vhost"] => match vhost_device() {
                Ok(device) => devices.push(device),
                Err(_) => return ExitCode::FAILURE,
            },
            ["tap", name] => match tap_device(name) {
                Ok(device) => devices.push(device),
                Err(_) => return ExitCode::FAILURE,
            },
            // By a thread that is not the first.
            ["sleep"] => drop(thread::spawn(|| Command::new("sleep").arg("600").exec())),
            ["crowd"] => crowd(),
            ["births"] => drop(thread::spawn(births)),
            ["flood"] => {
                let state = Arc::clone(&state);
                thread::spawn(move || flood(&state));
            }
            [event] => {
                now.paused = event == "STOP" || now.paused && event != "RESUME";
                let told = format!("{}\n", json!({"event": event, "data": {}}));
                let tell = |client: &mut UnixStream| client.write_all(told.as_bytes()).is_ok();
                // Between two turns of the client nobody hears it.
                while !now.client.as_mut().is_some_and(tell) {
                    drop(now);
                    thread::yield_now();
                    now = state.lock().unwrap_or_else(PoisonError::into_inner);
                }
            }
            _ => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}

fn serve(state: &Mutex<State>, client: UnixStream) -> Result<()> {
    let now = || state.lock().unwrap_or_else(PoisonError::into_inner);
    if now().mute {
        loop {
            thread::park();
        }
    }
    // In one piece each, for events may come in between.
    let say = |message: Value| (&client).write_all(format!("{message}\n").as_bytes());
    say(json!({"QMP": {"version": {}}}))?;
    now().client = Some(client.try_clone()?);
    for line in BufReader::new(client.try_clone()?).lines() {
        let command: Value = serde_json::from_str(&line?)?;
        let answer = now().answer(command["execute"].as_str().unwrap_or_default());
        say(json!({"return": answer}))?;
    }
    now().client = None;
    Ok(())
}
