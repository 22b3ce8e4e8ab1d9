//! No module of a library knows one that knows it.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use frontdesk_testing::modules::Modules;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

#[test]
fn no_module_of_a_library_knows_one_that_knows_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let sources = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut libraries = 0;
    let mut told = BTreeMap::new();
    for source in sources.filter(|source| source.join("lib.rs").exists()) {
        libraries += 1;
        let name = |module: &Vec<String>| match module.join("::") {
            root if root.is_empty() => "crate".to_owned(),
            name => name,
        };
        let mut text = String::new();
        for (module, known) in Modules::read(&source).circles() {
            let known: Vec<String> = known.iter().map(name).collect();
            writeln!(text, "  {} knows {}", name(&module), known.join(", ")).unwrap();
        }
        let library = source.parent().unwrap().file_name().unwrap().to_owned();
        if !text.is_empty() {
            told.insert(library, text);
        }
    }
    assert!(libraries > 15, "{libraries} libraries were found");
    let told =
        told.iter().fold(String::new(), |all, (name, text)| format!("{all}{}:\n{text}", name.display()));
    assert!(told.is_empty(), "modules that know each other:\n{told}");
}
