//! The engine's rooms follow each other, and no file knows one that knows it.
//!
//! From the paths in the sources, through re-exports to where an item is defined. `cargo modules dependencies
//! --acyclic` (0.27) looks at all items before it leaves any out, and so takes a method with `self` for a
//! circle of its type.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Each may know those before it, and all what is in no room: events, actions, parameters.
const ROOMS: [&str; 6] = ["observe", "infer", "explain", "policy", "knob", "engine"];

/// A module, as its path from the crate on.
type Module = Vec<String>;

/// The modules of the crate: which paths each names, and by which names it has what it imports.
struct Sources(BTreeMap<Module, Named>);

#[derive(Default)]
struct Named {
    /// From the crate on.
    paths: Vec<Vec<String>>,
    imports: BTreeMap<String, Vec<String>>,
}

impl Sources {
    fn read() -> Sources {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = BTreeMap::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let module = path.strip_prefix(&root).unwrap().with_extension("");
                    let module = module.iter().map(|part| part.to_str().unwrap().to_owned());
                    files.insert(module.filter(|part| part != "lib").collect::<Module>(), path);
                }
            }
        }
        // They may use whatever they test.
        files.retain(|module, _| module.last().is_none_or(|name| name != "tests"));
        let names: BTreeSet<Module> = files.keys().cloned().collect();
        let named = |(module, path): (&Module, &_)| {
            let text = fs::read_to_string(path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code: String =
                text.lines().flat_map(|line| [line.split("//").next().unwrap(), "\n"]).collect();
            (module.clone(), Named::of(module, &code, &names))
        };
        Sources(files.iter().map(named).collect())
    }

    /// The module that defines what a path names.
    fn definer(&self, path: &[String]) -> Module {
        let known = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length])).unwrap();
        let (module, rest) = path.split_at(known);
        match rest.first().and_then(|name| self.0[module].imports.get(name)) {
            Some(imported) => self.definer(imported),
            None => module.to_owned(),
        }
    }

    /// Which module knows which others: those whose items it names, and those that are its own.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let edges = self.0.iter().map(|(module, named)| {
            let mut known: BTreeSet<Module> = named.paths.iter().map(|path| self.definer(path)).collect();
            let own = self.0.keys().filter(|other| other.split_last().is_some_and(|(_, of)| of == *module));
            known.extend(own.cloned());
            known.remove(module);
            (module.clone(), known)
        });
        edges.collect()
    }
}

impl Named {
    /// The paths in code that begin in the crate, in a module above, or in one of the module's own.
    fn of(module: &Module, code: &str, modules: &BTreeSet<Module>) -> Named {
        let mut named = Named::default();
        let mut at = 0;
        while let Some(found) = code[at..].find("::") {
            let end = at + found;
            let begin = code[..end].rfind(|c| !is_of_name(c)).map_or(0, |before| before + 1);
            at = end + 2;
            let first = &code[begin..end];
            let own = [&module[..], &[first.to_owned()]].concat();
            let base = match first {
                "crate" => Vec::new(),
                "super" => module[..module.len() - 1].to_owned(),
                _ if modules.contains(&own) => own,
                _ => continue,
            };
            let imports = code[..begin].rsplit(['\n', ';']).next().unwrap().trim().ends_with("use");
            at = code.len() - named.tree(&base, &code[at..], imports).len();
        }
        named
    }

    /// Takes a path, or several in braces, that go on from another one. Returns what comes after.
    fn tree<'a>(&mut self, base: &[String], code: &'a str, imports: bool) -> &'a str {
        if let Some(mut inner) = code.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if let Some(after) = inner.strip_prefix('}') {
                    return after;
                }
                inner = self.tree(base, inner, imports);
            }
        }
        let (name, mut after) = code.split_at(code.find(|c| !is_of_name(c)).unwrap_or(code.len()));
        let path = match name {
            // All of it, or parameters of a type.
            "" | "self" => base.to_owned(),
            "super" => base[..base.len() - 1].to_owned(),
            name => [base, &[name.to_owned()]].concat(),
        };
        if let Some(further) = after.strip_prefix("::") {
            return self.tree(&path, further, imports);
        }
        let mut called = path.last().cloned();
        if let Some(alias) = after.strip_prefix(" as ") {
            let length = alias.find(|c| !is_of_name(c)).unwrap_or(alias.len());
            (called, after) = (Some(alias[..length].to_owned()), &alias[length..]);
        }
        if imports && let Some(called) = called {
            self.imports.insert(called, path.clone());
        }
        self.paths.push(path);
        after.strip_prefix('*').unwrap_or(after)
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}

/// A way from a module back to it, if there is one.
fn circle(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let mut left = edges.clone();
    // Who knows nobody that is left is in no circle.
    while let Some(end) = left.iter().find(|(_, known)| known.is_empty()).map(|(end, _)| end.clone()) {
        left.remove(&end);
        for known in left.values_mut() {
            known.remove(&end);
        }
    }
    // From anywhere there is always a next one now, until one comes again.
    let mut way = vec![left.keys().next()?.clone()];
    loop {
        let next = left[way.last()?].first()?.clone();
        if let Some(from) = way.iter().position(|seen| *seen == next) {
            way.push(next);
            return Some(way.split_off(from));
        }
        way.push(next);
    }
}

#[test]
fn no_file_knows_one_that_knows_it() {
    let edges = Sources::read().edges();
    let knows = |one: &str, other: &str| edges[&module(one)].contains(&module(other));
    // The paths are found: by name, through a re-export, in an attribute, and by belonging.
    for (one, other) in [
        ("engine::vm", "policy::view"),
        ("policy::view", "infer::routing"),
        ("infer::reads", "lru"),
        ("policy::reservation", "policy::reservation::levels"),
    ] {
        assert!(knows(one, other), "{one} knows {other}: {:?}", edges[&module(one)]);
    }
    assert!(!knows("policy::view", "infer"), "what is re-exported there is none of its own");
    let told = circle(&edges).map(|way| way.iter().map(|module| module.join("::")).collect::<Vec<_>>());
    assert_eq!(told.map(|way| way.join(" -> ")), None);
}

#[test]
fn each_room_knows_only_those_before_it() {
    let room =
        |module: &Module| ROOMS.iter().position(|room| module.first().is_some_and(|name| name == room));
    let edges = Sources::read().edges();
    for (one, known) in edges.iter().filter(|(one, _)| !one.is_empty()) {
        for other in known {
            assert!(room(other) <= room(one), "{} is not to know {}", one.join("::"), other.join("::"));
        }
    }
}
