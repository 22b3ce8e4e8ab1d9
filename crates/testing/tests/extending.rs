//! `docs/extending.md` is true: its recipes, followed word by word, give a workspace that compiles, and the
//! small ones stay small.
//!
//! A block of `rust` in a recipe is a new file, a block of `diff` changes one: where its old lines stand,
//! which is one place, the new ones come. The line before a block names the file.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many files a recipe may touch.
const MOST: [(&str, usize); 3] = [("A policy", 4), ("A workload", 3), ("A scenario key", 2)];
/// The crates of the copy. Another folder than theirs, for cargo tells crates of one target folder apart by
/// it, and compiled dependencies are to be shared.
const COPY: &str = "extended";

struct Block {
    recipe: String,
    file: String,
    is_diff: bool,
    lines: Vec<String>,
}

/// The blocks of a page, in its order.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut recipe, mut file) = (String::new(), String::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut recipe);
        } else if let Some(kind) = line.strip_prefix("```") {
            let lines = lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
            if kind == "rust" || kind == "diff" {
                let (recipe, file) = (recipe.clone(), std::mem::take(&mut file));
                blocks.push(Block { recipe, file, is_diff: kind == "diff", lines });
            }
        } else if !line.is_empty() {
            let named = line.split('`').nth(1).filter(|_| line.starts_with('`'));
            named.unwrap_or_default().clone_into(&mut file);
        }
    }
    blocks
}

/// A file with the changes of a block.
fn change(file: &str, mut text: String, block: &Block) -> String {
    for hunk in block.lines.split(|line| line == "@@") {
        let side = |without: char| {
            let lines = hunk.iter().filter(|line| !line.starts_with(without));
            lines.fold(String::new(), |side, line| side + line.get(1..).unwrap_or_default() + "\n")
        };
        let (old, new) = (side('+'), side('-'));
        let begins_line = |(at, _): &(usize, &str)| *at == 0 || text.as_bytes()[*at - 1] == b'\n';
        let places: Vec<usize> = text.match_indices(&old).filter(begins_line).map(|(at, _)| at).collect();
        let [at] = places[..] else {
            panic!("{}: this is in {file} {} times:\n{old}", block.recipe, places.len());
        };
        text.replace_range(at..at + old.len(), &new);
    }
    text
}

/// Adds what is below a folder to `found`, by path.
fn walk(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.insert(path);
        }
    }
}

/// Makes a folder hold these files and no others, and leaves alone what is right already, so that it is not
/// compiled again.
fn place(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    let mut there = BTreeSet::new();
    walk(folder, &mut there);
    there.iter().filter(|path| !files.contains_key(*path)).for_each(|path| fs::remove_file(path).unwrap());
    for (path, content) in files {
        if fs::read(path).ok().as_ref() != Some(content) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}

#[test]
fn recipes_compile_and_touch_few_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let copy = target.join("tmp/extending");
    let at = |file: &str| copy.join(COPY).join(Path::new(file).strip_prefix("crates").unwrap());

    let mut sources = BTreeSet::new();
    walk(&root.join("crates"), &mut sources);
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for path in sources {
        files.insert(at(path.strip_prefix(root).unwrap().to_str().unwrap()), fs::read(&path).unwrap());
    }
    let mut touched: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for block in blocks(&fs::read_to_string(root.join("docs/extending.md")).unwrap()) {
        let path = at(&block.file);
        let before = files.remove(&path).map(|content| String::from_utf8(content).unwrap());
        assert_eq!(before.is_some(), block.is_diff, "{}: {}", block.recipe, block.file);
        let after = match before {
            Some(text) => change(&block.file, text, &block),
            None => block.lines.join("\n") + "\n",
        };
        files.insert(path, after.into_bytes());
        touched.entry(block.recipe).or_default().insert(block.file);
    }
    for (recipe, most) in MOST {
        let files = &touched[recipe];
        assert!(files.len() <= most, "{recipe} touches more than {most} files: {files:?}");
    }

    place(&copy.join(COPY), &files);
    for name in ["docs", "packaging", "scenarios"].into_iter().filter(|name| !copy.join(name).exists()) {
        symlink(root.join(name), copy.join(name)).unwrap();
    }
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    fs::write(copy.join("Cargo.toml"), workspace.replace("\"crates/", &format!("\"{COPY}/"))).unwrap();
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--release", "--workspace", "--locked", "--offline", "--target-dir"]).arg(target);
    // What Cargo tells this test of its package. Build scripts that look at such names would run again, here
    // and once more when the workspace is compiled next, with all that needs their crates: for minutes.
    for (name, _) in env::vars_os() {
        let told = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| told.iter().any(|prefix| name.starts_with(prefix))) {
            check.env_remove(name);
        }
    }
    assert!(check.current_dir(&copy).status().unwrap().success(), "the recipes do not compile");
}
