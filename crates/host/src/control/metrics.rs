//! The metrics of a daemon, for Prometheus: names and help texts are stable, units are in the names, and
//! labels are a VM's name, and a vCPU's index, or a disk's name and a class, at most.

use frontdesk_control_protocol::{Status, VmStatus};
use frontdesk_engine::{AsymmetricExplain, MultimediaExplain, Standing, StarvationExplain, VcpuExplain};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

type Labels = Vec<(&'static str, String)>;

/// The state in the OpenMetrics text format.
#[must_use]
pub fn exposition(status: &Status) -> String {
    let mut metrics = Metrics(Registry::with_prefix("frontdesk"));
    metrics.daemon(status);
    metrics.vms(&status.vms);
    metrics.media(&status.vms);
    metrics.interaction(&status.vms);
    metrics.starvation(&status.vms);
    metrics.vcpus(&status.vms);
    metrics.disks(&status.vms);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &metrics.0);
    text
}

struct Metrics(Registry);

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create_owned(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    /// The encoder appends `_total` to the name.
    fn counter(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create_owned(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    fn daemon(&mut self, status: &Status) {
        let daemon = &status.daemon;
        let one = |value: f64| [(Labels::new(), value)];
        self.gauge("build_info", "The daemon's version", [(vec![("version", daemon.version.clone())], 1.0)]);
        self.gauge(
            "up_seconds",
            "Time since the daemon began to follow",
            one(seconds(status.at_ns.saturating_sub(daemon.since_ns))),
        );
        self.gauge("acting", "1 if the daemon acts, 0 if it only observes", one(flag(daemon.acting)));
        self.gauge("followed_vms", "VMs followed", one(status.vms.len() as f64));
        self.counter("cpu_seconds", "CPU time of the daemon itself", one(daemon.cpu_seconds));
        self.counter("events", "Events handled", one(count(daemon.events)));
        self.counter("actions", "Actions applied", one(count(daemon.actions)));
        self.counter("lost_events", "Events lost because a buffer was full", one(count(daemon.lost_events)));
        self.counter("late_events", "Events older than one handled before", one(count(daemon.late_events)));
        self.counter(
            "unknown_events",
            "Events about a VM or vCPU that is not followed",
            one(count(daemon.unknown_events)),
        );
        let latency = &daemon.decision_latency;
        let quantiles = [
            ("0.5", latency.p50_ns),
            ("0.9", latency.p90_ns),
            ("0.99", latency.p99_ns),
            ("1", latency.max_ns),
        ];
        self.gauge(
            "decision_latency_seconds",
            "Time from the event that causes a boost to its effect, in the last one or two minutes",
            quantiles.map(|(quantile, ns)| (vec![("quantile", quantile.to_owned())], seconds(ns))),
        );
    }

    fn vms(&mut self, vms: &[VmStatus]) {
        let each = |value: fn(&VmStatus) -> f64| {
            vms.iter().map(move |vm| (vec![("vm", vm.name.clone())], value(vm)))
        };
        self.gauge("vm_weight", "Weight of the VM among the others", each(|vm| f64::from(vm.engine.weight)));
        self.gauge(
            "vm_share_ratio",
            "Fraction of its weight that the VM has at the moment",
            each(|vm| f64::from(vm.engine.share_permille) / 1000.0),
        );
        self.gauge(
            "vm_debt_seconds",
            "CPU time the VM got beyond its fair share and has not repaid; negative if it is owed",
            each(|vm| vm.engine.debt_ns as f64 / 1e9),
        );
        self.gauge(
            "vm_trouble",
            "1 if something is wrong with the VM",
            each(|vm| flag(vm.trouble.is_some())),
        );
        self.gauge(
            "vm_acting",
            "1 if the VM is acted on, 0 if it is only observed or has a reservation",
            each(|vm| flag(vm.engine.standing == Standing::Acting)),
        );
        self.gauge("vm_paused", "1 if the VM is paused", each(|vm| flag(vm.engine.paused)));
        self.gauge(
            "vm_identity",
            "How well the VM's guest tasks are told apart: 0 not at all, 1 by samples, 2 exactly",
            each(|vm| vm.identity.as_ref().map_or(0.0, |identity| 1.0 + flag(identity.exact))),
        );
        self.gauge(
            "vm_pb_allowed_ratio",
            "Fraction of the CPU time of its vCPUs that the VM may use boosted (PBratio)",
            each(|vm| vm.engine.pb_allowed_ratio),
        );
        self.gauge(
            "vm_pb_used_ratio",
            "Fraction of the CPU time of its vCPUs that the VM used boosted lately",
            each(|vm| vm.engine.pb_used_ratio),
        );
        self.gauge(
            "vm_patience_seconds",
            "CPU time that a boosted vCPU of the VM is given to answer an event, as learnt so far",
            each(|vm| seconds(vm.engine.patience_ns)),
        );
        self.gauge("vm_tasks", "Guest tasks remembered", each(|vm| vm.engine.task_count as f64));
        self.gauge(
            "vm_io_bound_tasks",
            "Guest tasks that are believed to be I/O-bound",
            each(|vm| vm.engine.io_bound_count as f64),
        );
        self.gauge(
            "vm_memory_bytes",
            "Memory the engine holds for the VM",
            each(|vm| vm.memory_bytes as f64),
        );
        self.counter(
            "vm_emulator_cpu_seconds",
            "CPU time of the VM's emulator threads",
            each(|vm| seconds(vm.engine.emulator_ran_ns)),
        );
        self.counter(
            "vm_lost_events",
            "Events of this VM alone that were lost",
            each(|vm| count(vm.engine.lost_events)),
        );
    }

    /// Of VMs that have played something.
    fn media(&mut self, vms: &[VmStatus]) {
        let each = |value: fn(&MultimediaExplain) -> f64| {
            vms.iter().filter_map(move |vm| {
                Some((vec![("vm", vm.name.clone())], value(vm.engine.multimedia.as_ref()?)))
            })
        };
        self.gauge(
            "vm_players",
            "Guest tasks that show frames and play sound",
            each(|of| of.players.len() as f64),
        );
        self.gauge(
            "vm_frame_rate",
            "Frames that they show a second, all together",
            each(|of| of.players.iter().map(|player| player.frame_rate).sum()),
        );
        self.gauge(
            "vm_desired_frame_rate",
            "Frames that they seem to want to show a second, all together",
            each(|of| of.players.iter().map(|player| player.desired_rate).sum()),
        );
        self.gauge(
            "vm_media_share_ratio",
            "What the weight of the VM is multiplied by for what it plays",
            each(|of| f64::from(of.share_permille) / 1000.0),
        );
        self.counter("vm_media_boosts", "Boosts for what the VM plays", each(|of| count(of.boosts)));
        self.counter(
            "vm_media_boosts_refused",
            "Boosts for what the VM plays that were refused, as it owed CPU time or boost_limit was used up",
            each(|of| count(of.in_debt.saturating_add(of.limited))),
        );
        self.counter(
            "vm_media_boosted_seconds",
            "CPU time that the VM's threads used boosted for what it plays alone",
            each(|of| seconds(of.boosted_ns)),
        );
    }

    /// Of VMs that somebody has used.
    fn interaction(&mut self, vms: &[VmStatus]) {
        let each = |value: fn(&AsymmetricExplain) -> f64| {
            vms.iter().filter_map(move |vm| {
                Some((vec![("vm", vm.name.clone())], value(vm.engine.asymmetric.as_ref()?)))
            })
        };
        self.gauge(
            "vm_episode",
            "Whether somebody probably waits for what they have just started",
            each(|of| flag(of.episode.is_some())),
        );
        self.gauge(
            "vm_slow_vcpus",
            "vCPUs that are slow because they run background work in such a time",
            each(|of| of.episode.as_ref().map_or(0.0, |episode| episode.slow.len() as f64)),
        );
        self.gauge(
            "vm_background_tasks",
            "Guest tasks that were background work when somebody did something last",
            each(|of| of.background.len() as f64),
        );
        self.counter("vm_vcpus_slowed", "Times that a vCPU was made slow", each(|of| count(of.slowed)));
        self.counter(
            "vm_vcpus_restored",
            "Of these, those that ended with an interrupt for something else than background work",
            each(|of| count(of.restored)),
        );
    }

    /// Of VMs whose threads the host's scheduler has kept waiting.
    fn starvation(&mut self, vms: &[VmStatus]) {
        let each = |value: fn(&StarvationExplain) -> f64| {
            vms.iter().filter_map(move |vm| {
                Some((vec![("vm", vm.name.clone())], value(vm.engine.starvation.as_ref()?)))
            })
        };
        self.gauge(
            "vm_longest_wait_seconds",
            "The longest time that a thread of the VM was runnable and got no CPU by itself",
            each(|of| seconds(of.longest_wait_ns)),
        );
        self.counter(
            "vm_starvation_turns",
            "Boosts for threads of the VM that waited too long",
            each(|of| count(of.turns)),
        );
    }

    /// Of VMs with a disk that `frontdesk disk` serves.
    fn disks(&mut self, vms: &[VmStatus]) {
        let classes = ["high", "common", "low"];
        let served = vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
        self.counter(
            "vm_disk_requests",
            "Requests that frontdesk disk served in each class, parts of large ones counted apart",
            served.flat_map(|(vm, disk)| {
                classes.iter().zip(disk.report.served).map(move |(class, served)| {
                    let label = |key, value: &str| (key, value.to_owned());
                    (
                        vec![label("vm", &vm.name), label("disk", &disk.name), label("class", class)],
                        count(served),
                    )
                })
            }),
        );
    }

    fn vcpus(&mut self, vms: &[VmStatus]) {
        let each = |value: fn(&VcpuExplain) -> f64| {
            vms.iter().flat_map(move |vm| {
                vm.engine.vcpus.iter().map(move |vcpu| {
                    (vec![("vm", vm.name.clone()), ("vcpu", vcpu.index.to_string())], value(vcpu))
                })
            })
        };
        self.counter("vcpu_cpu_seconds", "CPU time of the vCPU", each(|vcpu| seconds(vcpu.ran_ns)));
        self.counter(
            "vcpu_stolen_seconds",
            "Time the vCPU was runnable but did not run",
            each(|vcpu| seconds(vcpu.stolen_ns)),
        );
        self.counter(
            "vcpu_boosted_seconds",
            "CPU time the vCPU used boosted",
            each(|vcpu| seconds(vcpu.boosted_ns)),
        );
        self.counter("vcpu_boosts", "Boosts of the vCPU", each(|vcpu| count(vcpu.boosts)));
        self.counter(
            "vcpu_boost_hits",
            "Boosts that ended and in which an I/O-bound task ran",
            each(|vcpu| count(vcpu.hits)),
        );
        self.counter(
            "vcpu_boosts_expired",
            "Boosts that ended only by time",
            each(|vcpu| count(vcpu.expired)),
        );
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn count(count: u64) -> f64 {
    count as f64
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}
