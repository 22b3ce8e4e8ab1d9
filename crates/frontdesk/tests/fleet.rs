//! The Ansible role: the configuration that it writes, what it refuses, and that a second run changes
//! nothing. The DaemonSet: that it is one, with the rights of the unit.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use serde_json::Value;
use std::collections::BTreeSet;
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

/// What a YAML file says, by the parser that Ansible has.
fn yaml(path: &Path) -> Vec<Value> {
    let script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
    let program = root().join("target/python/bin/python");
    let output = Command::new(&program).args(["-c", script]).arg(path).output();
    let output = output
        .unwrap_or_else(|error| panic!("{}: {error}; tools/setup.sh python installs it", program.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_daemon_set_has_the_rights_of_the_unit_and_no_more() {
    let documents = yaml(&root().join("packaging/kubernetes/daemonset.yaml"));
    let kinds: Vec<&str> = documents.iter().map(|of| of["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Namespace", "ConfigMap", "DaemonSet"]);

    let settings = documents[1]["data"]["frontdesk.toml"].as_str().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), settings).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_frontdesk"));
    let output = check.args(["run", "--check", "--config"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let pod = &documents[2]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let rights = &container["securityContext"];
    let unit = fs::read_to_string(root().join("packaging/frontdesk.service")).unwrap();
    let of_unit = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let added = rights["capabilities"]["add"].as_array().unwrap();
    assert_eq!(
        added.iter().map(|name| format!("CAP_{}", name.as_str().unwrap())).collect::<BTreeSet<_>>(),
        of_unit.split(' ').map(str::to_owned).collect()
    );
    assert_eq!(rights["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!([&rights["privileged"], &rights["allowPrivilegeEscalation"]], [false, false]);
    assert_eq!(pod["hostPID"], true);

    // Each mount has a volume, and each volume a mount.
    let named = |list: &Value| -> BTreeSet<String> {
        let names = list.as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(named(&container["volumeMounts"]), named(&pod["volumes"]));
}
