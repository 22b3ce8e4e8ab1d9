//! What an operator has: VMs that were started by hand, with plain QEMU lines, and a daemon beside them.

#![allow(dead_code)] // Not all that use this module use all of it.

pub(crate) mod desk;
pub(crate) mod had;

use frontdesk_linux::cgroup::Group;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const FRONTDESK: &str = env!("CARGO_BIN_EXE_frontdesk");
/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QMP client of the operator's.
pub(crate) struct Qmp(BufReader<UnixStream>);

impl Qmp {
    /// Connects, and waits until it is its turn.
    pub(crate) fn connect(path: &Path) -> Qmp {
        eventually("the socket is there", || UnixStream::connect(path).is_ok());
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut qmp = Qmp(BufReader::new(stream));
        let mut greeting = String::new();
        qmp.0.read_line(&mut greeting).unwrap();
        assert!(greeting.contains("QMP"), "{greeting}");
        qmp.execute("qmp_capabilities", &json!({}));
        qmp
    }

    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Value {
        // At once: one that ends QEMU is carried out before the line does.
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer.get("event").is_none() {
                assert!(answer.get("return").is_some(), "{command}: {answer}");
                return answer["return"].clone();
            }
        }
    }

    /// The thread of each vCPU.
    pub(crate) fn vcpus(&mut self) -> Vec<u64> {
        let all = self.execute("query-cpus-fast", &json!({}));
        all.as_array().unwrap().iter().map(|vcpu| vcpu["thread-id"].as_u64().unwrap()).collect()
    }

    /// Somebody presses Enter, and lets it go.
    pub(crate) fn press_enter(&mut self) {
        self.execute("send-key", &json!({"keys": [{"type": "qcode", "data": "ret"}]}));
    }

    /// Puts another vCPU into one of the VM's free slots.
    pub(crate) fn add_vcpu(&mut self) {
        let slots = self.execute("query-hotpluggable-cpus", &json!({}));
        let slot = slots.as_array().unwrap().iter().find(|slot| slot.get("qom-path").is_none()).unwrap();
        let mut device = slot["props"].clone();
        device["driver"] = slot["type"].clone();
        device["id"] = json!("another");
        self.execute("device_add", &device);
    }
}

/// A firmware with which all vCPUs compute for ever.
pub(crate) fn firmware(home: &Path) -> PathBuf {
    // In real mode, in a segment of 64 KiB. The others begin at its first byte.
    const OTHERS: [u8; 2] = [0xeb, 0xfe]; // jmp $
    const FIRST: [u8; 34] = [
        0x66, 0xb9, 0x1b, 0x00, 0x00, 0x00, // mov ecx, the register of the APIC's base
        0x0f, 0x32, // rdmsr
        0x0d, 0x00, 0x0c, // or ax, x2APIC
        0x0f, 0x30, // wrmsr
        0xb9, 0x30, 0x08, // mov cx, the register of its interrupt command
        0x66, 0x31, 0xd2, // xor edx, edx
        0x66, 0xb8, 0x00, 0x45, 0x0c, 0x00, // mov eax, all others are to initialise
        0x0f, 0x30, // wrmsr
        0xb8, 0xf0, 0x46, // mov ax, and to begin in page 0xf0
        0x0f, 0x30, // wrmsr
        0xeb, 0xfe, // jmp $
    ];
    const RESET: [u8; 3] = [0xe9, 0x1d, 0x00]; // jmp 0x10
    let mut image = vec![0; 0x1_0000];
    image[..OTHERS.len()].copy_from_slice(&OTHERS);
    image[0x10..][..FIRST.len()].copy_from_slice(&FIRST);
    image[0xfff0..][..RESET.len()].copy_from_slice(&RESET);
    let file = home.join("firmware");
    fs::write(&file, image).unwrap();
    file
}

/// A VM in a group of its own, with one socket for frontdesk and one for the operator. `more` are further
/// words for QEMU.
pub(crate) fn boot(home: &Path, group: &Group, name: &str, more: &[&str]) -> (Process, Qmp) {
    let file = |suffix: &str| home.join(format!("{name}.{suffix}"));
    let server = |socket: PathBuf| format!("unix:{},server=on,wait=off", socket.display());
    // The shell is in the group before it becomes QEMU.
    let mut command = Command::new("sh");
    command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(group.procs_file());
    command.args(["qemu-system-x86_64", "-nodefaults", "-display", "none", "-m", "32", "-machine", "q35"]);
    command.args(["-cpu", "EPYC,+x2apic", "-accel", "tcg,thread=multi", "-name", name, "-qmp"]);
    command.arg(server(file("qmp"))).arg("-qmp").arg(server(file("operator"))).args(more);
    let vm = Process(command.stdin(Stdio::null()).spawn().unwrap());
    (vm, Qmp::connect(&file("operator")))
}

/// `frontdesk run`.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    /// The first line that it says.
    pub(crate) line: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts it and waits for the first line.
    pub(crate) fn start(home: &Path, config: &Path, more: &[&str]) -> Daemon {
        let log = home.join("log");
        let mut command = Command::new(FRONTDESK);
        command.args(["run", "--config"]).arg(config).args(more).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Daemon { process, line, log }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn said(&self, words: &[&str]) -> bool {
        self.log().lines().any(|line| words.iter().all(|word| line.contains(word)))
    }

    pub(crate) fn says(&self, words: &[&str]) {
        eventually(&format!("the daemon says {words:?}"), || self.said(words));
    }

    /// Ends it, as Ctrl-C does.
    pub(crate) fn end(&mut self) {
        self.process.signal(Signal::TERM);
        assert!(self.process.0.wait().unwrap().success(), "{}", self.log());
    }
}
