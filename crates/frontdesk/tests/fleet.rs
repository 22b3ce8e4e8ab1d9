//! The Ansible role: the configuration that it writes, what it refuses, and that a second run changes
//! nothing.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// `ansible-playbook` in the environment that `tools/setup.sh python` makes.
///
/// In place of `systemctl` there is a program that does nothing: the host's own daemon is none of its
/// business.
fn playbook(arguments: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", home.path().join("systemctl")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let program = root().join("target/python/bin/ansible-playbook");
    let output = Command::new(&program)
        .args(["-i", "localhost,", "-c", "local"])
        .args(arguments)
        .env("HOME", home.path())
        .env("PATH", format!("{}:{path}", home.path().display()))
        .env("ANSIBLE_NOCOWS", "1")
        .env("ANSIBLE_ROLES_PATH", root().join("packaging/ansible/roles"))
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; tools/setup.sh python installs it", program.display()));
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(told).unwrap())
}

#[test]
fn the_example_is_a_play() {
    let site = root().join("packaging/ansible/site.yml");
    let (fine, told) = playbook(&["--syntax-check", site.to_str().unwrap()]);
    assert!(fine, "{told}");
}

#[test]
fn what_is_written_is_a_configuration_and_what_is_none_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (play, config) = (folder.path().join("play.yml"), folder.path().join("frontdesk.toml"));
    let write = |settings: &str| {
        let text = format!(
            "- hosts: all\n  gather_facts: false\n  vars:\n    frontdesk_config: {}\n    frontdesk_program: {}\n    \
             ansible_python_interpreter: '{{{{ ansible_playbook_python }}}}'\n    \
             frontdesk_settings: {settings}\n  tasks:\n    - include_role:\n        name: frontdesk\n        \
             tasks_from: configure.yml\n        apply:\n          tags: [configure]\n",
            config.display(),
            env!("CARGO_BIN_EXE_frontdesk")
        );
        fs::write(&play, text).unwrap();
        playbook(&[play.to_str().unwrap()])
    };
    let settings = "{vms: {qmp: ['/run/vms/*.qmp'], libvirt: false}, tavs: {pb_ratio: 0.25}, \
                    vm: {'build-*': {weight: 50, off: true}}}";
    let (fine, told) = write(settings);
    // The configuration, and the reload.
    assert!(fine && told.contains("changed=2"), "{told}");
    let written = fs::read_to_string(&config).unwrap();
    let table: toml::Table = written.parse().unwrap();
    assert_eq!(table["vms"]["qmp"].as_array().unwrap()[0].as_str(), Some("/run/vms/*.qmp"), "{written}");
    assert_eq!(table["tavs"]["pb_ratio"].as_float(), Some(0.25));
    assert_eq!(table["vm"]["build-*"]["weight"].as_integer(), Some(50));
    let (fine, told) = write(settings);
    assert!(fine && told.contains("changed=0"), "{told}");
    let (fine, told) = write("{tavs: {pb_ration: 0.25}}");
    assert!(!fine && told.contains("unknown field `pb_ration`"), "{told}");
    assert_eq!(fs::read_to_string(&config).unwrap(), written);
}
