//! A process that passes for a QEMU: it is called one, has threads for vCPUs, and speaks QMP as far as it is
//! asked.

use anyhow::{Context as _, Result};
use frontdesk_ring::{Entry, EntryKind, Producer};
use serde_json::{Value, json};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

/// A running one, killed with the value.
pub(crate) struct FakeQemu {
    child: Child,
    orders: ChildStdin,
}

impl FakeQemu {
    /// Starts one, which does nothing before it is told to listen.
    pub(crate) fn start(home: &Path) -> Result<FakeQemu> {
        // What a process runs is to be a QEMU of root's.
        let program = home.join("qemu-fake");
        if !program.exists() {
            fs::copy(env::current_exe()?, &program)?;
        }
        let mut child = Command::new(&program).arg("fake-qemu").stdin(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("no standard input")?;
        Ok(FakeQemu { child, orders })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `listen PATH NAME`; `plug`; `mute`, to answer nobody any more; `flood`, to tell whoever connects
    /// events without end; `ring`, to be a QEMU with the plugin, and `spin`, to fill its ring; or an event's
    /// name.
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

impl State {
    fn plug(&mut self) {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: gettid touches no memory.
            let _ = tell.send(unsafe { libc::gettid() });
            loop {
                thread::park();
            }
        });
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
            ["spin"] => {
                let ring = now.ring.clone();
                thread::spawn(move || ring.as_deref().map(spin));
            }
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
