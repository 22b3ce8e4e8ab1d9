//! A hundred VMs of another user, beside the unit as the package ships it: all are followed, and each is
//! boosted.

use crate::{
    bob::{add_user, give_to_user},
    guest::{self, USER, first_vcpu, make_tap, sees_a_boost},
    host::{active_daemon, run_for_output, systemctl},
    init::{DEB, HOME},
    package_trial::CONFIGURATION,
    support::eventually,
};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

/// On the kernel's command line: that this is what is to be tried.
pub(crate) const PARAMETER: &str = "trial.many";

const MANY: usize = 100;

pub(crate) fn many() -> Result<()> {
    add_user()?;
    fs::create_dir(format!("{HOME}/many"))?;
    give_to_user("many")?;
    fs::copy(format!("{HOME}/trial"), format!("{HOME}/qemu-fake"))?;
    let vms = (0..MANY).map(Vm::start).collect::<Result<Vec<_>>>()?;
    let listen = || vms.iter().all(|vm| Path::new(&format!("{HOME}/many/{}.qmp", vm.name)).exists());
    eventually("all listen", listen)?;

    run_for_output("dpkg", &["-i", DEB])?;
    let shipped = fs::read_to_string(CONFIGURATION)?;
    let settings = format!("vms.qmp = ['{HOME}/many/*.qmp']\n{}{shipped}", guest::CONFIGURATION);
    fs::write(CONFIGURATION, settings)?;
    systemctl(&["restart", "frontdesk"])?;
    active_daemon()?;
    let began = Instant::now();
    eventually("all are followed", || followed().is_ok_and(|count| count == MANY))
        .with_context(|| format!("{:?} are", followed()))?;
    println!("measured: {MANY} VMs under the unit followed {:?} after its start was told", began.elapsed());

    // In a thread of its own, which becomes real-time.
    let boosted = thread::spawn(move || {
        let boosted = vms.iter().filter(|vm| match vm.is_boosted() {
            Ok(()) => true,
            Err(error) => {
                println!("{}: {error:#}", vm.name);
                false
            }
        });
        boosted.count()
    });
    let boosted = boosted.join().map_err(|_| anyhow!("it panicked"))?;
    println!("measured: {boosted} of {MANY} VMs were seen boosted");
    ensure!(boosted == MANY, "{boosted} were boosted");
    Ok(())
}

/// How many VMs the daemon follows, of which it knows the tasks.
fn followed() -> Result<usize> {
    let status: serde_json::Value =
        serde_json::from_str(&run_for_output("frontdesk", &["status", "--json"])?)?;
    let vms = status["vms"].as_array().context("no VMs")?;
    Ok(vms.iter().filter(|vm| vm["trouble"].is_null() && vm["identity"].is_object()).count())
}

/// A process that passes for a QEMU with the plugin, in a control group of its own; killed with the value.
struct Vm {
    name: String,
    address: String,
    process: Child,
}

impl Vm {
    fn start(number: usize) -> Result<Vm> {
        let (name, tap) = (format!("many-{number}"), format!("many{number}"));
        let address = format!("10.98.{number}.2");
        make_tap(&tap, &format!("10.98.{number}.1"), &address)?;
        // systemd-run becomes the process that it starts.
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--scope", "--property=CPUWeight=100"]);
        command.args([&format!("--unit={name}"), &format!("--uid={USER}")]);
        command.args([&format!("{HOME}/qemu-fake"), "fake-qemu"]).current_dir("/").stdin(Stdio::piped());
        let mut process = command.spawn().context("start systemd-run")?;
        let orders = process.stdin.as_mut().context("no standard input")?;
        for order in
            ["ring", "switch", &format!("tap {tap}"), &format!("listen {HOME}/many/{name}.qmp {name}")]
        {
            writeln!(orders, "{order}")?;
        }
        Ok(Vm { name, address, process })
    }

    fn is_boosted(&self) -> Result<()> {
        sees_a_boost(first_vcpu(self.process.id())?, &self.address)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
