//! What was moved, and how it is moved back: written down before anything is, so that another process can do
//! it.

use super::cpus::{Cpus, Partition};
use super::system::{Kernel, Thread};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::io;

/// Threads and interrupts that account is kept of, each.
const MAX: usize = 16384;
/// How often all threads are looked at, for those that began meanwhile.
const ROUNDS: usize = 4;
/// Ancestors of a thread that are asked for where it may run.
const GENERATIONS: usize = 16;

/// Where something is that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Where it may be otherwise,
    own: Cpus,
    /// where it was before it was moved last, and may be still,
    before: Cpus,
    /// and where it may be since.
    now: Cpus,
}

impl Place {
    fn unmoved(cpus: Cpus) -> Place {
        Place { own: cpus, before: cpus, now: cpus }
    }

    /// Whether it is where it was put.
    fn is_at(self, cpus: Cpus) -> bool {
        cpus == self.now || cpus == self.before
    }

    /// It is found there: if somebody else has put it there, that is where it may be from now on.
    fn found(self, cpus: Cpus) -> Place {
        if self.is_at(cpus) { Place { before: cpus, now: cpus, ..self } } else { Place::unmoved(cpus) }
    }

    fn put(self, to: Cpus) -> Place {
        Place { before: self.now, now: to, ..self }
    }

    fn parse(fields: &[&str]) -> Option<Place> {
        let [own, before, now] = fields else { return None };
        Some(Place { own: Cpus::parse(own)?, before: Cpus::parse(before)?, now: Cpus::parse(now)? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.own, self.before, self.now)
    }
}

/// A thread of which account is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MovedThread {
    process: u32,
    began: u64,
    place: Place,
    /// The process that told by which list it is background work: its own, or that of an ancestor that was
    /// there when the episode began.
    root: u32,
}

/// What was moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    threads: BTreeMap<u32, MovedThread>,
    interrupts: BTreeMap<u32, Place>,
}

/// How many threads are where they belong in an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Divided {
    pub(crate) background: usize,
    pub(crate) others: usize,
}

/// Why nothing is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Vcpus,
    Threads,
    Kernel,
}

impl Ledger {
    /// Whether nothing is moved.
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.interrupts.is_empty()
    }

    /// Divides the CPUs between processes on the `list` and what they begin from now on, and all others.
    /// What is moved is `noted` before.
    pub(crate) fn divide(
        &mut self,
        kernel: &mut impl Kernel,
        partition: Partition,
        list: &BTreeSet<u32>,
        mut note: impl FnMut(&Ledger) -> io::Result<()>,
    ) -> Result<Divided, Trouble> {
        let (first, mut divided) = (self.threads.is_empty(), Divided::default());
        for round in 0..ROUNDS {
            let threads = kernel.threads().map_err(|_| Trouble::Kernel)?.ok_or(Trouble::Vcpus)?;
            if threads.len() > MAX {
                return Err(Trouble::Threads);
            }
            let mut moves = Vec::new();
            let mut next = BTreeMap::new();
            divided = Divided::default();
            for thread in &threads {
                let known = self.threads.get(&thread.id).filter(|known| known.began == thread.began).copied();
                let mut entry = known.unwrap_or_else(|| self.adopt(thread, &threads, first && round == 0));
                entry.place = entry.place.found(thread.cpus);
                let background = list.contains(&entry.process) || list.contains(&entry.root);
                *(if background { &mut divided.background } else { &mut divided.others }) += 1;
                let target = partition.target(entry.place.own, background);
                if target != thread.cpus {
                    entry.place = entry.place.put(target);
                    moves.push((thread.id, target));
                }
                next.insert(thread.id, entry);
            }
            // Ancestors that have ended are asked for where their children may run.
            let ended = self.threads.iter().filter(|(id, _)| !next.contains_key(id));
            let ended: Vec<_> = ended.map(|(id, thread)| (*id, *thread)).take(MAX).collect();
            next.extend(ended);
            self.threads = next;
            let routes = if round == 0 { self.route(kernel, partition) } else { Vec::new() };
            if moves.is_empty() && routes.is_empty() && round > 0 {
                break;
            }
            note(self).map_err(|_| Trouble::Kernel)?;
            // What has ended, or must be where it is, is found there at the next look.
            for (id, to) in moves {
                let _ = kernel.move_thread(id, to);
            }
            for (number, to) in routes {
                let _ = kernel.move_interrupt(number, to);
            }
        }
        Ok(divided)
    }

    /// Where interrupts are to go, of those that do not go there. Those of queues that have a CPU of their
    /// own cannot be moved, which only trying tells.
    fn route(&mut self, kernel: &impl Kernel, partition: Partition) -> Vec<(u32, Cpus)> {
        let mut routes = Vec::new();
        for (number, cpus) in kernel.interrupts().into_iter().take(MAX) {
            let known = self.interrupts.get(&number).copied().unwrap_or(Place::unmoved(cpus));
            let place = known.found(cpus);
            let to = partition.interrupt_target(place.own);
            if to != cpus {
                self.interrupts.insert(number, place.put(to));
                routes.push((number, to));
            }
        }
        routes
    }

    /// A thread that there was none of before has what its process, or an ancestor, has: unless all have
    /// begun only now (`first`).
    fn adopt(&self, thread: &Thread, threads: &[Thread], first: bool) -> MovedThread {
        let Thread { process, began, cpus, .. } = *thread;
        let new = MovedThread { process, began, place: Place::unmoved(cpus), root: process };
        if first {
            return new;
        }
        match self.origin(thread, threads) {
            Some((origin, true)) => {
                let place = Place { own: origin.place.own, before: cpus, now: cpus };
                MovedThread { place, root: origin.root, ..new }
            }
            Some((origin, false)) => MovedThread { root: origin.root, ..new },
            None => new,
        }
    }

    /// Whom a thread that is not known has its CPUs from, as far as can be told: somebody of its process or
    /// its nearest ancestors who may run just there; else whoever was moved there. The ancestor itself
    /// otherwise, and `false`: it has its CPUs from somebody else.
    fn origin(&self, thread: &Thread, threads: &[Thread]) -> Option<(MovedThread, bool)> {
        let mut process = thread.process;
        let mut nearest = None;
        for _ in 0..GENERATIONS {
            let family = || self.threads.values().filter(|known| known.process == process);
            if let Some(same) = family().find(|known| known.place.is_at(thread.cpus)) {
                return Some((*same, true));
            }
            nearest = nearest.or_else(|| family().next().copied());
            match threads.iter().find(|other| other.process == process).map(|other| other.parent) {
                Some(parent) if parent > 0 && parent != process => process = parent,
                _ => break,
            }
        }
        // Its parent has ended, and init is its parent now.
        let mut candidates: HashMap<(Cpus, u32), (usize, MovedThread)> = HashMap::new();
        let here = |known: &&MovedThread| known.place.is_at(thread.cpus) && known.place.own != thread.cpus;
        for known in self.threads.values().filter(here) {
            candidates.entry((known.place.own, known.root)).or_insert((0, *known)).0 += 1;
        }
        let likely =
            candidates.into_values().max_by_key(|(count, known)| (*count, known.place.own, known.root));
        likely.map(|(_, known)| (known, true)).or_else(|| nearest.map(|known| (known, false)))
    }

    /// Moves everything back that is where it was moved to.
    pub(crate) fn undo(&mut self, kernel: &mut impl Kernel) {
        for (number, place) in std::mem::take(&mut self.interrupts) {
            if kernel.interrupt(number).is_some_and(|cpus| cpus != place.own && place.is_at(cpus)) {
                // One that is gone needs nothing.
                let _ = kernel.move_interrupt(number, place.own);
            }
        }
        if self.threads.is_empty() {
            return;
        }
        for _ in 0..ROUNDS {
            // Without `/proc` those that are known are moved all the same.
            let Ok(Some(threads)) = kernel.threads() else {
                for (id, thread) in
                    self.threads.iter().filter(|(_, thread)| thread.place.own != thread.place.now)
                {
                    let _ = kernel.move_thread(*id, thread.place.own);
                }
                break;
            };
            let mut moved = false;
            for thread in &threads {
                let known = self.threads.get(&thread.id).filter(|known| known.began == thread.began).copied();
                let entry = known.unwrap_or_else(|| self.adopt(thread, &threads, false));
                if entry.place.is_at(thread.cpus) && entry.place.own != thread.cpus {
                    moved |= kernel.move_thread(thread.id, entry.place.own).is_ok();
                }
            }
            if !moved {
                break;
            }
        }
        self.threads.clear();
    }

    /// As text, for whoever undoes it.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        for (id, MovedThread { process, began, place, root }) in &self.threads {
            let _ = writeln!(text, "thread {id} {process} {began} {root} {place}");
        }
        for (number, place) in &self.interrupts {
            let _ = writeln!(text, "interrupt {number} {place}");
        }
        text
    }

    /// Reads it; a line that is none is left out.
    pub(crate) fn parse(text: &str) -> Ledger {
        let mut ledger = Ledger::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let _ = ledger.parse_line(&fields);
        }
        ledger
    }

    fn parse_line(&mut self, fields: &[&str]) -> Option<()> {
        match fields {
            ["thread", id, process, began, root, place @ ..] => {
                let thread = MovedThread {
                    process: process.parse().ok()?,
                    began: began.parse().ok()?,
                    place: Place::parse(place)?,
                    root: root.parse().ok()?,
                };
                self.threads.insert(id.parse().ok()?, thread);
            }
            ["interrupt", number, place @ ..] => {
                self.interrupts.insert(number.parse().ok()?, Place::parse(place)?);
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
