//! Which module of a crate knows which others, from the paths in its sources, through re-exports to where an
//! item is defined.
//!
//! `cargo modules dependencies --acyclic` (0.27) looks at all items before it leaves any out, and so takes a
//! method with `self` for a circle of its type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module, as its path from the crate on.
pub type Module = Vec<String>;

/// The modules of a crate: which paths each names, and by which names it has what it imports.
pub struct Modules(BTreeMap<Module, Named>);

#[derive(Default)]
struct Named {
    /// From the crate on.
    paths: Vec<Vec<String>>,
    imports: BTreeMap<String, Vec<String>>,
}

impl Modules {
    /// Reads the sources of a library in this folder.
    ///
    /// # Panics
    /// They cannot be read.
    #[must_use]
    pub fn read(root: &Path) -> Modules {
        let mut files = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let module = path.strip_prefix(root).unwrap().with_extension("");
                    let module = module.iter().map(|part| part.to_str().unwrap().to_owned());
                    files.insert(module.filter(|part| part != "lib").collect::<Module>(), path);
                }
            }
        }
        // They may use whatever they test.
        files.retain(|module, _| module.last().is_none_or(|name| name != "tests" && name != "fuzzing"));
        let names: BTreeSet<Module> = files.keys().cloned().collect();
        let named = |(module, path): (&Module, &_)| {
            let text = fs::read_to_string(path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code: String =
                text.lines().flat_map(|line| [line.split("//").next().unwrap(), "\n"]).collect();
            (module.clone(), Named::of(module, &code, &names))
        };
        Modules(files.iter().map(named).collect())
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
    ///
    /// # Panics
    /// A path leads out of the crate.
    #[must_use]
    pub fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let edges = self.0.iter().map(|(module, named)| {
            let mut known: BTreeSet<Module> = named.paths.iter().map(|path| self.definer(path)).collect();
            let own = self.0.keys().filter(|other| other.split_last().is_some_and(|(_, of)| of == *module));
            known.extend(own.cloned());
            known.remove(module);
            (module.clone(), known)
        });
        edges.collect()
    }

    /// Modules that know each other, directly or by others: each with those of them that it knows.
    #[must_use]
    pub fn circles(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let edges = self.edges();
        let mut circles = BTreeMap::new();
        for (module, known) in &edges {
            let back: BTreeSet<Module> =
                known.iter().filter(|other| reaches(&edges, other, module)).cloned().collect();
            if !back.is_empty() {
                circles.insert(module.clone(), back);
            }
        }
        circles
    }
}

/// Whether there is a way from a module to another.
fn reaches(edges: &BTreeMap<Module, BTreeSet<Module>>, from: &Module, to: &Module) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        next.extend(edges[module].iter().filter(|known| seen.insert(known)));
    }
    false
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
                "super" => above(module),
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
            "super" => above(base),
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

fn above(module: &[String]) -> Module {
    module.split_last().map_or_else(Vec::new, |(_, above)| above.to_owned())
}
