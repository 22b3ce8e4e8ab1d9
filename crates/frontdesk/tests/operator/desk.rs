//! A VM in which somebody works: it answers questions from outside, and computes.

use super::FRONTDESK;
use frontdesk_lab::{Kernel, RunningVm, TapConfig, VmConfig};
use frontdesk_lab_guest::Job;
use frontdesk_linux::cgroup::Group;
use frontdesk_scenario::{Protocol, WorkloadKind};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Generous: emulated machines on a busy one are slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long one waits for an answer that may be lost.
const IMPATIENCE: Duration = Duration::from_secs(5);
const PORT: u16 = 7;
/// A person thinks before the next question.
const THINK: Duration = Duration::from_millis(20);

/// A file that another build makes.
pub(crate) fn built(path: &str) -> PathBuf {
    let release = Path::new(FRONTDESK).parent().unwrap();
    let path = release.parent().unwrap().join(path);
    assert!(path.is_file(), "{} is not there: `make build` makes it", path.display());
    path.canonicalize().unwrap()
}

pub(crate) fn reporter() -> PathBuf {
    built("x86_64-unknown-linux-gnu/release/frontdesk-guest")
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

/// How a VM's guest tasks are told apart.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum IdentitySource {
    Plugin,
    Reporter,
}

pub(crate) struct Desk {
    pub(crate) vm: RunningVm,
    client: UdpSocket,
}

impl Desk {
    /// A VM that answers and computes, on the first CPU, beside what else runs there.
    pub(crate) fn boot(
        home: &Path,
        initrd: &Path,
        kernel: &Kernel,
        group: &Group,
        number: u8,
        told: IdentitySource,
    ) -> Desk {
        let ifname = format!("desk{number}");
        ip(&["tuntap", "add", &ifname, "mode", "tap"]);
        ip(&["address", "add", &format!("10.78.{number}.1/24"), "dev", &ifname]);
        ip(&["link", "set", &ifname, "up"]);
        let guest_ip = Ipv4Addr::new(10, 78, number, 2);
        let vm = RunningVm::boot(&VmConfig {
            memory_mib: 160,
            tap: Some(TapConfig {
                ifname,
                mac: format!("52:54:00:12:34:{number:02x}"),
                guest_ip,
                prefix: 24,
                vhost: false,
            }),
            reporter: told == IdentitySource::Reporter,
            plugin: (told == IdentitySource::Plugin).then(|| built("release/libfrontdesk_tcg_plugin.so")),
            cpus: vec![0],
            cgroup_procs: vec![group.procs_file()],
            ..VmConfig::new(&format!("desk-{number}"), kernel, initrd, home)
        });
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect((guest_ip, PORT)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        Desk { vm: vm.unwrap(), client }
    }

    pub(crate) fn begin(&mut self, told: IdentitySource) {
        self.vm.wait_ready(PATIENCE).unwrap();
        if told == IdentitySource::Reporter {
            let program = reporter().to_str().unwrap().to_owned();
            self.vm.start("reporter", Job::Reporter { program, isolate: false }).unwrap();
        }
        self.vm
            .start("echo", WorkloadKind::Echo { protocol: Protocol::Udp, port: PORT, cost: Duration::ZERO })
            .unwrap();
        self.vm.start("hog", WorkloadKind::Hog).unwrap();
    }

    pub(crate) fn ask(&self) {
        self.client.send(b"is somebody there?").unwrap();
        let mut answer = [0; 64];
        assert_eq!(self.client.recv(&mut answer).unwrap(), 18);
        std::thread::sleep(THINK);
    }

    /// Asks until the test ends, in a thread of its own. A question that is lost is asked again.
    pub(crate) fn keep_asking(&self) {
        let client = self.client.try_clone().unwrap();
        client.set_read_timeout(Some(IMPATIENCE)).unwrap();
        std::thread::spawn(move || {
            let mut answer = [0; 64];
            loop {
                let _ = client.send(b"is somebody there?").and_then(|_| client.recv(&mut answer));
                std::thread::sleep(THINK);
            }
        });
    }

    /// Scheduling policies of all its threads; ordinary is 0.
    pub(crate) fn policies(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.vm.pid())).unwrap();
        let policy = |task: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            // The name may contain blanks; the policy is field 41, and the field after the name the third.
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap().parse().unwrap()
        };
        tasks.map(policy).collect()
    }
}
