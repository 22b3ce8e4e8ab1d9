//! Actions as they were once decided, in a compressed text, and as they are decided now.

use std::collections::BTreeMap;
use std::path::Path;

/// Set to `freeze`, what is decided now is frozen.
const VARIABLE: &str = "ORACLE";
const LEVEL: i32 = 19;
/// Actions shown before the first that differs.
const BEFORE: usize = 3;

/// The actions of one run.
pub struct Section {
    /// Which run, and of what events.
    pub title: String,
    /// The number of the event or line that each follows, and its words.
    pub actions: Vec<(usize, String)>,
}

/// The text of a compressed fixture.
///
/// # Panics
/// There is none.
#[must_use]
pub fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text =
        zstd::decode_all(bytes.as_slice()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    String::from_utf8(text).unwrap()
}

/// Compares with what is frozen in `NAME.actions.zst` in a folder, or freezes it. `context` tells what
/// happened up to a number.
///
/// # Panics
/// Something differs.
pub fn check(folder: &str, name: &str, sections: &[Section], context: impl Fn(&Section, usize) -> String) {
    let path = Path::new(folder).join(format!("{name}.actions.zst"));
    let now: String = sections.iter().map(render).collect();
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "freeze") {
        let before = if path.exists() { read(&path) } else { String::new() };
        let (gone, new) = changed(&before, &now);
        if gone + new > 0 {
            std::fs::write(&path, zstd::encode_all(now.as_bytes(), LEVEL).unwrap()).unwrap();
        }
        println!("{name}: {gone} lines gone, {new} lines new, {} in all", now.lines().count());
        return;
    }
    let frozen = read(&path);
    if frozen != now {
        panic!("{}", difference(name, &frozen, sections, context));
    }
}

/// How many lines there are, and their FNV-1a of 64 bits.
#[must_use]
pub fn digest(lines: &[String]) -> String {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{} lines, {:016x}", lines.len(), bytes.fold(0xcbf2_9ce4_8422_2325, mix))
}

fn render(section: &Section) -> String {
    let actions = section.actions.iter().map(|(after, action)| format!("{after}: {action}\n"));
    format!("= {}\n{}", section.title, actions.collect::<String>())
}

/// Lines that only the first text has, and that only the second has.
fn changed(before: &str, now: &str) -> (usize, usize) {
    let mut counts: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    let mut title = "";
    for line in before.lines() {
        title = if line.starts_with('=') { line } else { title };
        counts.entry((title, line)).or_default().0 += 1;
    }
    for line in now.lines() {
        title = if line.starts_with('=') { line } else { title };
        counts.entry((title, line)).or_default().1 += 1;
    }
    counts.values().fold((0, 0), |(gone, new), (before, now)| {
        (gone + before.saturating_sub(*now), new + now.saturating_sub(*before))
    })
}

fn difference(
    name: &str,
    frozen: &str,
    sections: &[Section],
    context: impl Fn(&Section, usize) -> String,
) -> String {
    let (gone, new) = changed(frozen, &sections.iter().map(render).collect::<String>());
    let mut lines = frozen.lines();
    let mut place = None;
    for section in sections {
        let title = format!("= {}", section.title);
        let found = lines.next();
        if found != Some(&title) {
            place = Some(format!("frozen:  {}\nnow:     {title}", found.unwrap_or("nothing more")));
            break;
        }
        let mut rest = lines.clone();
        let until = rest.position(|line| line.starts_with('=')).unwrap_or_else(|| lines.clone().count());
        let mut theirs: Vec<&str> = lines.by_ref().take(until).collect();
        theirs.push("nothing more");
        let ours = render(section);
        let mut ours: Vec<&str> = ours.lines().skip(1).collect();
        ours.push("nothing more");
        let Some(at) = theirs.iter().zip(&ours).position(|(theirs, ours)| theirs != ours) else { continue };
        let number = |line: &str| line.split_once(':').and_then(|(after, _)| after.parse().ok());
        let after = [number(theirs[at]), number(ours[at])].into_iter().flatten().min().unwrap_or(0);
        let same: String =
            ours[at.saturating_sub(BEFORE)..at].iter().map(|line| format!("both:    {line}\n")).collect();
        let context = context(section, after);
        place = Some(format!("{title}\n{same}frozen:  {}\nnow:     {}\n{context}", theirs[at], ours[at]));
        break;
    }
    let place = place
        .unwrap_or_else(|| format!("frozen:  {}\nnow:     nothing more", lines.next().unwrap_or_default()));
    format!(
        "{name}: other actions than frozen: {gone} lines gone, {new} lines new. The first difference:\n{place}\n\
         If that is what you want, freeze them with {VARIABLE}=freeze, and say why in the commit."
    )
}
