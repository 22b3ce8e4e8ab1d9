//! `docs/architecture.md` is true of the crates: it lists each with those that it depends on, and each has a
//! README of the same form.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The crates of ours that a manifest names as what the library or program needs.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let ours = lines.filter_map(|line| line.strip_prefix("frontdesk-")?.split_once(['.', ' ']));
    let mut names: Vec<String> = ours.map(|(name, _)| name.to_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_page_lists_each_crate_with_what_it_depends_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut built = BTreeMap::new();
    for folder in fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        let headings: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(
            headings,
            ["Synopsis", "Where to begin reading", "What it must not do"],
            "{name}/README.md"
        );
        built.insert(name, dependencies(&fs::read_to_string(folder.join("Cargo.toml")).unwrap()));
    }
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let listed = page.lines().filter(|line| line.contains("](../crates/") && line.starts_with("| ["));
    let listed: BTreeMap<String, Vec<String>> = listed
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let name = cells[0].split(['[', ']']).nth(1).unwrap();
            assert_eq!(cells[0], format!("[{name}](../crates/{name}/README.md)"));
            let known = cells[2].split(", ").filter(|name| !name.is_empty()).map(str::to_owned);
            (name.to_owned(), known.collect())
        })
        .collect();
    for (name, known) in &built {
        assert_eq!(listed.get(name), Some(known), "docs/architecture.md says of {name}");
    }
    assert_eq!(listed.len(), built.len(), "docs/architecture.md lists what is no crate");
}
