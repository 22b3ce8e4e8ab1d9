//! Of which sources a build is: two that may make other rows can be told apart.

#![allow(clippy::unwrap_used)] // A test that panics fails.

#[path = "../build/sources.rs"]
mod sources;

use std::fs;
use std::path::Path;

/// A workspace of three crates: the first is made from the second, and the third is for tests only.
fn workspace(folder: &Path) {
    let manifest = "[package]\nname = \"frontdesk-a\"\n\n[dependencies]\nbytes.workspace = true\n\
                    frontdesk-b.workspace = true\n\n[dev-dependencies]\nfrontdesk-c.workspace = true\n";
    for (name, manifest) in [("a", manifest), ("b", "[dependencies]\n"), ("c", "")] {
        fs::create_dir_all(folder.join(name).join("src/inner")).unwrap();
        fs::write(folder.join(name).join("Cargo.toml"), manifest).unwrap();
        fs::write(folder.join(name).join("src/lib.rs"), "mod inner;\n").unwrap();
        fs::write(folder.join(name).join("src/inner/mod.rs"), "//! Inside.\n").unwrap();
    }
    fs::write(folder.join("Cargo.lock"), "version = 4\n").unwrap();
}

fn hash(folder: &Path) -> u64 {
    sources::hash(&sources::crates(&folder.join("a")).unwrap(), &folder.join("Cargo.lock")).unwrap()
}

#[test]
fn what_rows_follow_from_changes_the_hash_and_nothing_else() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    workspace(one.path());
    workspace(other.path());
    let before = hash(one.path());
    assert_eq!(hash(other.path()), before, "where it is does not matter");
    for file in ["c/src/lib.rs", "a/README.md", "a/tests.rs"] {
        fs::write(one.path().join(file), "// Something else.\n").unwrap();
        assert_eq!(hash(one.path()), before, "{file}");
    }
    for file in ["a/src/lib.rs", "b/src/inner/mod.rs", "a/src/new.rs", "Cargo.lock"] {
        let path = one.path().join(file);
        let text = fs::read_to_string(&path).ok();
        fs::write(&path, "// Something else.\n").unwrap();
        assert_ne!(hash(one.path()), before, "{file}");
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        assert_eq!(hash(one.path()), before, "{file}");
    }
    // Where one file ends and the next begins.
    fs::rename(one.path().join("b/src/lib.rs"), one.path().join("b/src/inner/lib.rs")).unwrap();
    assert_ne!(hash(one.path()), before);
}

#[test]
fn a_build_says_of_which_sources_it_is() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = sources::crates(own).unwrap();
    let names: Vec<_> = crates.iter().map(|folder| folder.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["engine", "scenario", "sim", "sweep", "workload"]);
    let sources = sources::hash(&crates, &own.join("../../Cargo.lock")).unwrap();
    let built = frontdesk_sweep::BUILT;
    assert!(built.starts_with(env!("CARGO_PKG_VERSION")), "{built}");
    assert!(built.ends_with(&format!(" sources {sources:016x}")), "{built}");
}
