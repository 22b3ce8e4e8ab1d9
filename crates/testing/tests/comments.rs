//! Comments are readable: none is wider than 110 columns, which rustfmt does not see to, and a word is
//! written in one way.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::fs;
use std::path::Path;

const COLUMNS: usize = 110;
/// A tab of the C programs, which are indented as the kernel is.
const TAB: &str = "        ";

/// What is wrong with a line of a source, if anything is.
fn trouble(line: &str) -> Option<&'static str> {
    let line = line.replace('\t', TAB);
    let text = line.trim_start();
    if !["//", "/*", "* ", "#"].iter().any(|mark| text.starts_with(mark)) || text.starts_with("#[") {
        return None;
    }
    let text = text.to_lowercase();
    if line.chars().count() > COLUMNS {
        return Some("longer than 110 columns");
    }
    ["can't", concat!("can", " not")].iter().any(|word| text.contains(word)).then_some("write `cannot`")
}

#[test]
fn comments_are_readable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut folders = vec![root.join("crates"), root.join("scenarios"), root.join("tools")];
    let (mut files, mut found) = (0, String::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let ending = path.extension().unwrap_or_default();
            if !["rs", "c", "h", "toml", "sh"].iter().any(|known| ending == *known) {
                continue;
            }
            files += 1;
            for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
                if let Some(what) = trouble(line) {
                    found += &format!("{}:{}: {what}\n", path.display(), number + 1);
                }
            }
        }
    }
    assert!(files > 400, "{files} files were found");
    assert!(found.is_empty(), "{found}");
}

#[test]
fn what_is_wrong_with_a_comment_is_seen() {
    assert_eq!(trouble("    // One that you cannot complain about."), None);
    assert_eq!(trouble("    /// It can't."), Some("write `cannot`"));
    assert_eq!(trouble(&format!("// {}", "x ".repeat(60))), Some("longer than 110 columns"));
    assert_eq!(trouble(&format!("let it = \"{}\";", "x".repeat(120))), None);
}
