//! A profile, and the scenario that it names, from what a recording tells.

use crate::account::{Asked, Film, ObservedVm};
use crate::error::CapacityError;
use crate::observed::Observed;
use frontdesk_engine::{Config, Protocol};
use frontdesk_scenario::GuestCosts;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A vCPU that runs or waits for a CPU in this part of the time or more always has something to do.
const ALWAYS: f64 = 0.95;
/// CPU time that nothing explains is modelled from this part of a CPU on.
const REST: f64 = 0.005;
/// The rest comes in turns of this length.
const REST_PERIOD: Duration = Duration::from_millis(100);
/// Of a host and of a VM, as the model has them.
const MOST_PCPUS: usize = 128;
const MOST_VCPUS: u16 = 16;
/// A recording of less tells of chance.
const SHORTEST_S: f64 = 1.0;

/// Files by their names, with what is in them.
#[derive(Clone, Debug)]
pub struct Derived {
    /// The profile's name, which is that of one of the files.
    pub profile: &'static str,
    /// The files.
    pub files: Vec<(String, String)>,
}

impl Derived {
    /// The profile of what was observed in a recording of this name.
    ///
    /// # Errors
    /// The recording is too short, or nobody asked a VM for anything while it was made.
    pub fn of(observed: &Observed, recording: &str) -> Result<Derived, CapacityError> {
        let recording = recording.to_owned();
        if observed.seconds < SHORTEST_S {
            return Err(CapacityError::TooShort { recording, seconds: observed.seconds });
        }
        // Who is asked comes first: of one desktop the limit is to be of somebody.
        let mut vms: Vec<&ObservedVm> = observed.vms.iter().collect();
        vms.sort_by_key(|vm| vm.asked.is_empty());
        if vms.first().is_none_or(|vm| vm.asked.is_empty()) {
            return Err(CapacityError::NobodyAsked { recording });
        }
        let mut names = BTreeSet::new();
        let mut files = Vec::new();
        let (mut scenario, mut profile) = (head(observed, &recording), profile_head(&recording));
        let mut loads = String::new();
        for vm in vms {
            let name = entry_name(&vm.name, &mut names);
            let rest = rest(vm).map(|share| {
                let file = format!("rest-of-{name}.json");
                files.push((file.clone(), rest_tasks(share)));
                file
            });
            add_vm(&mut scenario, &mut loads, vm, &name, rest.as_deref());
            let _ = writeln!(profile, "{name} = 1");
        }
        scenario += &loads;
        scenario += "[arms.stock]\n\n[arms.frontdesk]\ndaemon = \"act\"\n\n";
        // As Debian's kernels tick.
        scenario += "[sim]\nguest = { tick = \"4ms\" }\n";
        if let Some(latency) = observed.decision_latency_ns {
            let latency = time((latency / 1e9).clamp(0.0, 1.0));
            let _ = writeln!(scenario, "# The mean of the recording's.\ndecision_latency = {latency}");
        }
        scenario.push('\n');
        scenario += "# Those of the recording.\n";
        scenario += &policy(&observed.config);
        files.push(("scenario.toml".to_owned(), scenario));
        files.push(("profile.toml".to_owned(), profile));
        Ok(Derived { profile: "profile.toml", files })
    }

    /// Writes the files into a folder, which is made if it is not there, and replaces none.
    ///
    /// # Errors
    /// One of them is there already, or cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, CapacityError> {
        fs::create_dir_all(folder)
            .map_err(|source| CapacityError::Write { path: folder.to_owned(), source })?;
        for (name, content) in &self.files {
            let path = folder.join(name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            let written = file.and_then(|mut file| file.write_all(content.as_bytes()));
            written.map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => CapacityError::InTheWay { path },
                _ => CapacityError::Write { path, source },
            })?;
        }
        Ok(folder.join(self.profile))
    }
}

fn head(observed: &Observed, recording: &str) -> String {
    let pcpus = observed.pcpus.clamp(1, MOST_PCPUS);
    let cpus: Vec<String> = (0..pcpus).map(|cpu| cpu.to_string()).collect();
    let lost = match observed.lost {
        0 => String::new(),
        lost => format!("# {lost} events were lost meanwhile: the numbers are that far off.\n"),
    };
    format!(
        "# A host as `frontdesk capacity --from` made it out of a recording of {:.0} s. docs/capacity.md says how,\n\
         # and what is not in it. The recording: {}\n{lost}\
         name = \"recorded\"\n\
         description = \"Desktops like those of a recording.\"\n\
         repeats = 1\nduration = \"20s\"\nwarmup = \"3s\"\nthink_scale = 1.0\n\n\
         # What the host's guests run is not known; the model needs a kernel of theirs.\n\
         [guest]\nkernel = \"6.1-amd64\"\n\n\
         # VMs ran on so many CPUs.\n[host]\nvm_cpus = [{}]\nclient_cpus = [{pcpus}]\n\n",
        observed.seconds,
        one_line(recording),
        cpus.join(", "),
    )
}

fn profile_head(recording: &str) -> String {
    format!(
        "# Desktops like the VMs of a recording, each of them as often as any other: {}\n\
         # Take out those that are there whatever the number of desktops, and change the proportions.\n\
         scenario = \"scenario.toml\"\n\n[mix]\n",
        one_line(recording)
    )
}

fn add_vm(scenario: &mut String, loads: &mut String, vm: &ObservedVm, name: &str, rest: Option<&str>) {
    let told = vm.cpu * 100.0;
    let emulator = vm.emulator_cpu * 100.0;
    let _ = writeln!(
        scenario,
        "# {}: its vCPUs used {told:.1} % of a CPU, its emulator {emulator:.1} %, which is the model's own here.\n\
         [[vm]]\nname = \"{name}\"\nvcpus = {}\nweight = {}\nworkloads = [",
        one_line(&vm.name),
        vm.vcpus.clamp(1, MOST_VCPUS),
        vm.weight.clamp(2, 262_144),
    );
    for asked in &vm.asked {
        let protocol = asked.protocol_name();
        let workload = format!("asked-{protocol}-{}", asked.port);
        let unknown = if asked.cost_s.is_none() { " # what an answer costs is not known" } else { "" };
        let cost = time((asked.cost_s.unwrap_or(0.0) - of_the_kernel()).clamp(0.0, 10.0));
        let _ = writeln!(
            scenario,
            "    {{ name = \"{workload}\", run = \"echo\", protocol = \"{protocol}\", port = {}, cost = {cost} }},{unknown}",
            asked.port
        );
        let [shortest, longest] = uniform(asked.think_s).map(time);
        let _ = writeln!(
            loads,
            "# Of {} requests.\n[[load]]\nvm = \"{name}\"\nprotocol = \"{protocol}\"\nport = {}\nbytes = 40\n\
             think = [{shortest}, {longest}]\n",
            asked.requests, asked.port
        );
    }
    if let Some(Film { rate, cost_s }) = vm.film {
        let period = time((1.0 / rate).clamp(0.001, 1.0));
        let cost = time(cost_s.clamp(0.0, 1.0));
        let _ = writeln!(
            scenario,
            "    {{ name = \"film\", run = \"video\", period = {period}, cost = [{cost}, {cost}], sound = \"none\" }},"
        );
    }
    for number in 1..=hogs(vm) {
        let _ = writeln!(scenario, "    {{ name = \"work-{number}\", run = \"hog\" }},");
    }
    if let Some(file) = rest {
        let _ = writeln!(scenario, "    {{ name = \"rest\", run = \"rt-app\", file = \"{file}\" }},");
    }
    *scenario += "]\n\n";
}

/// vCPUs that always have something to do.
fn hogs(vm: &ObservedVm) -> usize {
    vm.wanted.iter().filter(|wanted| **wanted >= ALWAYS).count()
}

/// The part of a CPU that a VM used for what is neither an answer nor a frame; nothing where that is next to
/// nothing, or what computes always takes it.
fn rest(vm: &ObservedVm) -> Option<f64> {
    let answers =
        vm.asked.iter().map(|asked| asked.cost_s.unwrap_or(0.0) * asked.requests as f64 / vm.seconds);
    let frames = vm.film.map_or(0.0, |film| film.rate * film.cost_s);
    let rest = vm.cpu - answers.sum::<f64>() - frames;
    (hogs(vm) == 0 && rest >= REST).then_some(rest)
}

/// Tasks of rt-app that together take this part of a CPU.
fn rest_tasks(share: f64) -> String {
    let tasks = share.ceil().clamp(1.0, f64::from(MOST_VCPUS));
    let period = REST_PERIOD.as_secs_f64() * 1e6;
    let run = (period * share / tasks).min(period);
    format!(
        "{{ \"tasks\": {{ \"rest\": {{ \"instance\": {tasks:.0}, \"loop\": -1, \"run\": {run:.0}, \
         \"timer\": {{ \"ref\": \"unique\", \"period\": {period:.0} }} }} }} }}\n"
    )
}

/// What the model's guests do for a request beside its `cost`, in seconds.
fn of_the_kernel() -> f64 {
    let kernel = GuestCosts::default();
    (kernel.receive + kernel.request + kernel.send).as_secs_f64()
}

/// Shortest and longest of times that are uniformly distributed with this mean and standard deviation: none
/// is below 0, and the mean stays.
fn uniform((mean, deviation): (f64, f64)) -> [f64; 2] {
    let away = (deviation * 3.0_f64.sqrt()).min(mean);
    [mean - away, mean + away].map(|time| time.clamp(0.0, 3600.0))
}

/// Seconds as the scenario has them, in quotes.
fn time(seconds: f64) -> String {
    let micros =
        Duration::from_micros(Duration::from_secs_f64(seconds.max(0.0)).as_micros().try_into().unwrap_or(0));
    format!("\"{}\"", humantime::format_duration(micros))
}

/// Letters, digits and `-`; and as entries with several VMs are called NAME-1, none ends like that.
fn entry_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let mut entry: String =
        name.chars().take(40).map(allowed).collect::<String>().trim_matches('-').to_owned();
    let digits = entry.len() - entry.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (front, number) = entry.split_at(entry.len() - digits);
    entry = front.trim_end_matches('-').to_owned() + number;
    if entry.is_empty() {
        entry.push_str("vm");
    }
    while !taken.insert(entry.clone()) {
        entry.push('x');
    }
    entry
}

fn one_line(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn policy(config: &Config) -> String {
    #[derive(Serialize)]
    struct Table<'a> {
        policy: &'a Config,
    }
    // A table of numbers, texts and lists of them.
    toml::to_string(&Table { policy: config }).unwrap_or_default()
}

impl Asked {
    fn protocol_name(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}
