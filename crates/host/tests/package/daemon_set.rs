//! The DaemonSet of packaging/kubernetes, as podman plays it: the image is built by the Containerfile, and
//! the manifest is run with settings of one's own, on a node that has a VM.

use crate::{
    ansible::metrics,
    bob::Bob,
    guest,
    host::{no_process_is_left, run_for_output, status_of, step, type_in},
    init::{DEB, GUESTS, HOME},
    support::eventually,
};
use anyhow::{Context as _, Result, ensure};
use std::{fs, os::unix::fs::PermissionsExt};

/// On the kernel's command line: that this is what is to be tried.
pub(crate) const PARAMETER: &str = "trial.daemon-set";

/// What the manifest and the Containerfile call the image, and podman the container.
const IMAGE: &str = "registry.example/frontdesk:0.1.0";
const CONTAINER: &str = "frontdesk-pod-frontdesk";

/// On the node: the command in the container.
const COMMAND: &str = "/usr/local/bin/frontdesk";

/// Where the weight of the VM is.
const WEIGHT: &str = "/sys/fs/cgroup/system.slice/bob.scope/cpu.weight";

pub(crate) fn daemon_set() -> Result<()> {
    Bob::prepare()?;

    step("an image");
    // Layers have no room on the system's disk.
    type_in("mkdir -p /var/lib/containers && mount -t tmpfs -o size=3g none /var/lib/containers")?;
    type_in("mount -t tmpfs none /var/tmp && mkdir base && mount -o ro /dev/vdb base")?;
    // There is no network, and no need of one: what the package depends on is there.
    type_in(
        "tar --create --exclude=./etc/apt/sources.list --directory=base . \
         | podman import - docker.io/library/debian:12-slim",
    )?;
    type_in(&format!("tar --extract --file={GUESTS}/kubernetes.tar && mkdir context && cp {DEB} context"))?;
    type_in(&format!("podman build --network=host -f kubernetes/Containerfile -t {IMAGE} context"))?;

    step("a VM on the node, and the manifest");
    // The plugin is QEMU's, on the node.
    type_in(&format!("dpkg-deb --extract {DEB} deb && cp -r deb/usr/lib/frontdesk /usr/lib"))?;
    // Where the manifest has QMP sockets.
    type_in("mkdir /run/vms && mount --bind bob /run/vms")?;
    let bob = Bob::start()?;
    let manifest = format!("{HOME}/kubernetes/daemonset.yaml");
    fs::write(&manifest, with_settings(&fs::read_to_string(&manifest)?)?)?;
    type_in(&format!("podman kube play {manifest}"))?;
    fs::write(COMMAND, format!("#!/bin/sh\nexec podman exec {CONTAINER} frontdesk \"$@\"\n"))?;
    fs::set_permissions(COMMAND, PermissionsExt::from_mode(0o755))?;

    let told = bob.0.is_followed()?;
    ensure!(told["identity"]["exact"] == true, "the plugin is not heard: {told:#}");
    ensure!(told["standing"] == "acting", "{told:#}");
    weight_becomes(50)?;
    bob.0.is_seen_and_boosted()?;
    bob.0.is_reserved_paused_and_released(type_in)?;
    let metrics = metrics()?;
    ensure!(metrics.contains("\nfrontdesk_"), "no metrics: {metrics}");
    run_for_output("podman", &["healthcheck", "run", CONTAINER])?;

    step("another daemon on the node");
    let refused = type_in("deb/usr/bin/frontdesk run").err().context("it is accepted")?.to_string();
    ensure!(refused.contains("another frontdesk"), "{refused}");

    step("death of the daemon");
    let first = daemon()?;
    type_in(&format!("kill -KILL {first}"))?;
    eventually("another daemon runs", || daemon().is_ok_and(|second| second != first))?;
    eventually("it acts", || status_of("bob").is_ok_and(|told| told["standing"] == "acting"))?;
    weight_becomes(50)?;

    step("the end");
    type_in(&format!("podman kube down {manifest}"))?;
    weight_becomes(100)?;
    no_process_is_left()?;
    bob.0.is_untouched()
}

/// The manifest with what makes boosts show, and another weight for the VM.
fn with_settings(manifest: &str) -> Result<String> {
    const TABLE: &str = "    [vms]\n";
    ensure!(manifest.contains(TABLE), "{manifest}");
    let settings = format!("vm.bob.weight = 50\n{}", guest::CONFIGURATION);
    let indented: String = settings.lines().map(|line| format!("    {line}\n")).collect();
    Ok(manifest.replacen(TABLE, &(indented + TABLE), 1))
}

/// The process of the daemon, as the node knows it.
fn daemon() -> Result<String> {
    run_for_output("podman", &["inspect", "--format={{.State.Pid}}", CONTAINER])
}

fn weight_becomes(wanted: u32) -> Result<()> {
    let is = || fs::read_to_string(WEIGHT).unwrap_or_default();
    eventually(&format!("the weight is {wanted}"), || is().trim_end() == wanted.to_string())
        .with_context(|| format!("it is {}", is()))
}
