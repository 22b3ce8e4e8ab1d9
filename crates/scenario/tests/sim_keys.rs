//! The page about the keys of `[sim]` names all of them, with their defaults.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_scenario::{DiskScheduler, Extension, GuestScheduler, Sim, SimDisk, SimReservation};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use toml::{Table, Value};

/// The dotted keys in a table, and their values.
fn flat(prefix: &str, table: &Table, out: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = format!("{prefix}.{key}");
        match value {
            Value::Table(inner) => flat(&key, inner, out),
            value => drop(out.insert(key, value.to_string())),
        }
    }
}

fn keys(sim: &Sim) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    flat("sim", &Table::try_from(sim).unwrap(), &mut keys);
    keys
}

/// A machine with everything that can be left out.
fn full() -> Sim {
    let mut sim = Sim {
        pcpus: Some(1),
        host_cpus: Some(1),
        driver_vm: Some("VM".to_owned()),
        extension: Some(Extension::default()),
        ..Sim::default()
    };
    let reservation = SimReservation { period: Duration::ZERO, slice: Duration::ZERO, hard: false };
    sim.reservations.insert("VM".to_owned(), reservation);
    sim.cap.insert("VM".to_owned(), 1);
    sim.pin.insert("VM".to_owned(), vec![vec![0]]);
    sim.nice.insert("\"VM/WORKLOAD\"".to_owned(), 0);
    sim.guest.scheduler = Some(GuestScheduler::Eevdf);
    sim.network.delayed_ack = Some(Duration::ZERO);
    // Left out where they are the defaults: others, so that they are there.
    sim.disk.scheduler = DiskScheduler::Vsip;
    sim.disk.first = vec!["VM".to_owned()];
    sim.disk.names = true;
    sim.disk.vsip.carry += 1;
    sim
}

#[test]
fn the_page_names_every_key_with_its_default() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sim-keys.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `sim.")?.split_once("` | "));
    let rows = rows.map(|(key, rest)| (format!("sim.{key}"), rest.split(" | ").next().unwrap().to_owned()));
    let told: BTreeMap<String, String> = rows.collect();
    let (full, defaults) = (keys(&full()), keys(&Sim::default()));
    assert_eq!(told.keys().collect::<Vec<_>>(), full.keys().collect::<Vec<_>>());
    for (key, default) in &defaults {
        assert_eq!(told[key], format!("`{default}`"), "{key}");
    }
    let machine = SimDisk::default();
    let vsip = Table::try_from(&machine.vsip).unwrap();
    let mut own = BTreeMap::from([
        ("sim.disk.scheduler".to_owned(), "\"fair\"".to_owned()),
        ("sim.disk.first".to_owned(), "[]".to_owned()),
        ("sim.disk.names".to_owned(), "false".to_owned()),
        ("sim.extension.pin_interrupts".to_owned(), "true".to_owned()),
        ("sim.reservations.VM.hard".to_owned(), "false".to_owned()),
    ]);
    flat("sim.disk.vsip", &vsip, &mut own);
    for (key, default) in &own {
        assert_eq!(told[key], format!("`{default}`"), "{key}");
    }
    for key in full.keys().filter(|key| !defaults.contains_key(*key) && !own.contains_key(*key)) {
        assert_eq!(told[key], "none", "{key}");
    }
}
