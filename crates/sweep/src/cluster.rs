//! A cluster over a day: which desktops are on which host, and which of them are in use. Hosts know nothing
//! of each other, so that each host with who is in use there, in each part of the day, is a run of its own.

use frontdesk_scenario::float;
use frontdesk_sim::Rng;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use toml::Table;

/// Desktops of a cluster at most.
const MOST_DESKTOPS: u32 = 100_000;
/// Parts of a day at most.
const MOST_PARTS: usize = 288;
/// Of a draw between 0 and 1.
const UNIT: u64 = 1 << 53;
/// Streams of random numbers, so that more failures do not change who is in use.
const PLACED: u64 = 0;
const IN_USE: u64 = 1;
const FAILED: u64 = 2;

/// A table `cluster`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Cluster {
    /// All desktops, in use or not.
    desktops: u32,
    /// Hosts, each as the scenario has it.
    hosts: u32,
    /// Desktops that a host takes.
    room: u32,
    /// Where a desktop goes.
    placement: Placement,
    #[serde(default = "first")]
    seed: u64,
    /// The scenario's VM entries that are desktops, and in what proportion.
    pub(crate) mix: IndexMap<String, u32>,
    /// The part of the desktops that is in use, in each part of the day.
    in_use: Vec<f64>,
    #[serde(default, rename = "failure")]
    failures: Vec<Failure>,
    #[serde(default, rename = "change")]
    pub(crate) changes: Vec<Change>,
    /// What a desktop's response times are to keep.
    pub(crate) limit: DesktopLimit,
}

/// Where a desktop goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Placement {
    /// To the host with the fewest.
    Spread,
    /// To the first host with room.
    Fill,
    /// To any host with room.
    Random,
}

/// Hosts that fail.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failure {
    /// How many.
    hosts: u32,
    /// The part of the day in which they fail, from 0: their desktops are placed on others at once.
    from: usize,
    /// The part in which they are back, with nobody on them. Never if left out.
    to: Option<usize>,
}

/// What is another way in some parts of the day: programs are started in the morning, and backups made at
/// night.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// The part of the day from which on, from 0.
    from: usize,
    /// The part before which it ends. If that is not after the first, it lasts over midnight.
    to: usize,
    /// Keys of the scenario, and their values. Of VMs whose `count` is 0 there are none.
    pub(crate) set: Table,
}

impl Change {
    /// Whether it is so in a part of the day.
    pub(crate) fn holds(&self, part: usize) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&part)
        } else {
            part >= self.from || part < self.to
        }
    }
}

/// What a desktop's response times are to keep.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DesktopLimit {
    /// The column: mean_ms, p50_ms, p95_ms, p99_ms or max_ms.
    pub(crate) measure: String,
    /// The most that it may be, in milliseconds.
    pub(crate) most: f64,
    /// The same of kinds of desktops in which something else is waited for.
    #[serde(default)]
    kinds: IndexMap<String, f64>,
}

impl DesktopLimit {
    /// The most that it may be for a kind of desktops.
    pub(crate) fn of(&self, kind: &str) -> f64 {
        self.kinds.get(kind).copied().unwrap_or(self.most)
    }
}

impl fmt::Display for DesktopLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <= {}", self.measure, self.most)?;
        self.kinds.iter().try_for_each(|(kind, most)| write!(f, ", {most} of {kind}"))
    }
}

/// A part of the day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayPart {
    /// Hosts that are up.
    pub(crate) up: u32,
    /// Desktops in use that are on none.
    pub(crate) homeless: u32,
    /// Of each host with somebody on it: its number, and how many of each kind are in use.
    pub(crate) hosts: Vec<(u32, Vec<u32>)>,
}

fn first() -> u64 {
    1
}

impl Cluster {
    /// What makes no sense: a key below `cluster`, and what would be allowed.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let whole = |key, value: u32, allowed: Range<u32>| {
            let message = format!("{value}: allowed is {} to {}", allowed.start, allowed.end - 1);
            if allowed.contains(&value) { Ok(()) } else { Err((key, message)) }
        };
        whole("desktops", self.desktops, 1..MOST_DESKTOPS + 1)?;
        whole("hosts", self.hosts, 1..10_001)?;
        whole("room", self.room, 1..1025)?;
        let wrong = |key, message: &str| Err((key, message.to_owned()));
        if self.mix.is_empty() || self.mix.values().any(|part| !(1..=1000).contains(part)) {
            return wrong("mix", "allowed is a part of 1 to 1000 for each of one or more VM entries");
        }
        if u64::from(self.hosts) * u64::from(self.room) < u64::from(self.desktops) {
            let room = u64::from(self.hosts) * u64::from(self.room);
            return Err(("room", format!("{} desktops do not fit: there is room for {room}", self.desktops)));
        }
        let in_use = |part: &f64| (0.0..=1.0).contains(part);
        if !(1..=MOST_PARTS).contains(&self.in_use.len()) || !self.in_use.iter().all(in_use) {
            return Err(("in-use", format!("allowed are 1 to {MOST_PARTS} numbers from 0 to 1")));
        }
        for failure in &self.failures {
            whole("failure.hosts", failure.hosts, 1..self.hosts + 1)?;
            let parts = self.in_use.len();
            if failure.from >= parts || failure.to.is_some_and(|to| to <= failure.from || to > parts) {
                let message =
                    format!("allowed are parts of the day, 0 to {}, the first before the second", parts - 1);
                return Err(("failure.from, failure.to", message));
            }
        }
        let parts = self.in_use.len();
        if self.changes.iter().any(|change| change.from >= parts || change.to > parts) {
            return Err((
                "change.from, change.to",
                format!("allowed are parts of the day, 0 to {}", parts - 1),
            ));
        }
        if !["mean_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"].contains(&self.limit.measure.as_str()) {
            return wrong("limit.measure", "allowed is mean_ms, p50_ms, p95_ms, p99_ms or max_ms");
        }
        if self.limit.kinds.values().chain([&self.limit.most]).any(|most| most.is_nan() || *most <= 0.0) {
            return wrong("limit.most, limit.kinds", "allowed are times above 0, in milliseconds");
        }
        if let Some(kind) = self.limit.kinds.keys().find(|kind| !self.mix.contains_key(*kind)) {
            return Err((
                "limit.kinds",
                format!("{kind:?} is no kind of desktops: allowed are those of mix"),
            ));
        }
        Ok(())
    }

    /// The kind of each desktop: as near to the proportions as whole numbers can be, in no order.
    fn kinds(&self, rng: &mut Rng) -> Vec<usize> {
        let all: u64 = self.mix.values().map(|part| u64::from(*part)).sum();
        // The end of each kind, if they stood in a row.
        let ends: Vec<u64> = self
            .mix
            .values()
            .scan(0, |sum, part| {
                *sum += u64::from(*part);
                Some((*sum * u64::from(self.desktops) + all / 2) / all)
            })
            .collect();
        let kind = |number: u64| ends.iter().position(|end| number < *end).unwrap_or(ends.len() - 1);
        let mut kinds: Vec<usize> = (0..u64::from(self.desktops)).map(kind).collect();
        for last in (1..kinds.len()).rev() {
            let other = usize::try_from(rng.uniform(0, last as u64)).unwrap_or(0);
            kinds.swap(last, other);
        }
        kinds
    }

    /// The day, part by part. The same seed gives the same day.
    pub(crate) fn day(&self) -> Vec<DayPart> {
        let mut placing = Rng::new(self.seed, PLACED);
        let (mut using, mut failing) = (Rng::new(self.seed, IN_USE), Rng::new(self.seed, FAILED));
        let kinds = self.kinds(&mut placing);
        let mut hosts = Hosts {
            up: vec![true; self.hosts as usize],
            taken: vec![0; self.hosts as usize],
            room: u64::from(self.hosts) * u64::from(self.room),
        };
        let mut place: Vec<Option<usize>> = vec![None; kinds.len()];
        // The hosts that each failure took.
        let mut down: Vec<Vec<usize>> = vec![Vec::new(); self.failures.len()];
        let mut day = Vec::new();
        for (part, in_use) in self.in_use.iter().enumerate() {
            for (failure, down) in self.failures.iter().zip(&mut down) {
                if failure.to == Some(part) {
                    for host in down.drain(..) {
                        hosts.up[host] = true;
                        hosts.room += u64::from(self.room);
                    }
                }
            }
            for (failure, down) in
                self.failures.iter().zip(&mut down).filter(|(failure, _)| failure.from == part)
            {
                for _ in 0..failure.hosts {
                    let up: Vec<usize> = (0..hosts.up.len()).filter(|host| hosts.up[*host]).collect();
                    let Some(last) = up.len().checked_sub(1) else { break };
                    let host = up[usize::try_from(failing.uniform(0, last as u64)).unwrap_or(0)];
                    hosts.room -= u64::from(self.room - hosts.taken[host]);
                    (hosts.up[host], hosts.taken[host]) = (false, 0);
                    down.push(host);
                }
            }
            for own in &mut place {
                *own = own.filter(|host| hosts.up[*host]).or_else(|| hosts.place(self, &mut placing));
            }
            let (mut homeless, mut used) = (0, vec![vec![0; self.mix.len()]; hosts.up.len()]);
            for (own, kind) in place.iter().zip(&kinds) {
                if float(using.uniform(0, UNIT - 1)) / float(UNIT) < *in_use {
                    match own {
                        Some(host) => used[*host][*kind] += 1,
                        None => homeless += 1,
                    }
                }
            }
            let somebody = (0..).zip(used).filter(|(_, used)| used.iter().any(|count| *count > 0));
            let up = hosts.up.iter().map(|up| u32::from(*up)).sum();
            day.push(DayPart { up, homeless, hosts: somebody.collect() });
        }
        day
    }
}

/// The hosts while desktops are placed: which are up, and how many desktops are on each.
struct Hosts {
    up: Vec<bool>,
    taken: Vec<u32>,
    /// Desktops for which those that are up have room yet.
    room: u64,
}

impl Hosts {
    /// A host for another desktop, if there is one.
    fn place(&mut self, cluster: &Cluster, rng: &mut Rng) -> Option<usize> {
        if self.room == 0 {
            return None;
        }
        let room = |host: &usize| self.up[*host] && self.taken[*host] < cluster.room;
        let mut hosts = (0..self.up.len()).filter(room);
        let host = match cluster.placement {
            Placement::Spread => hosts.min_by_key(|host| self.taken[*host]),
            Placement::Fill => hosts.next(),
            Placement::Random => {
                let hosts: Vec<usize> = hosts.collect();
                let last = hosts.len().checked_sub(1)?;
                hosts.get(usize::try_from(rng.uniform(0, last as u64)).unwrap_or(0)).copied()
            }
        }?;
        self.taken[host] += 1;
        self.room -= 1;
        Some(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cluster(text: &str) -> Cluster {
        let rest = "limit = { measure = \"p95_ms\", most = 100.0 }\nmix = { a = 3, b = 1 }\n";
        let cluster: Cluster = toml::from_str(&format!("{rest}{text}")).unwrap();
        cluster.check().unwrap();
        cluster
    }

    fn taken(part: &DayPart) -> Vec<(u32, u32)> {
        part.hosts.iter().map(|(host, used)| (*host, used.iter().sum())).collect()
    }

    #[test]
    fn desktops_go_where_the_rule_says() {
        let text = |placement: &str| {
            cluster(&format!("desktops = 10\nhosts = 4\nroom = 4\nplacement = {placement:?}\nin-use = [1.0]"))
        };
        assert_eq!(taken(&text("spread").day()[0]), [(0, 3), (1, 3), (2, 2), (3, 2)]);
        assert_eq!(taken(&text("fill").day()[0]), [(0, 4), (1, 4), (2, 2)]);
        let random = text("random").day();
        assert_eq!(taken(&random[0]).iter().map(|(_, count)| count).sum::<u32>(), 10);
        assert_eq!(random, text("random").day(), "the same seed, the same day");
        // Of ten 7.5 and 2.5, so 8 and 2.
        let kinds =
            random[0].hosts.iter().fold([0, 0], |sum, (_, used)| [sum[0] + used[0], sum[1] + used[1]]);
        assert_eq!(kinds, [8, 2]);
    }

    #[test]
    fn desktops_of_a_failed_host_go_elsewhere_and_stay_there() {
        let text = "desktops = 8\nhosts = 4\nroom = 3\nplacement = \"spread\"\nin-use = [1.0, 1.0, 1.0, 1.0]\n\
                    failure = [{ hosts = 2, from = 1, to = 3 }]";
        let day = cluster(text).day();
        assert_eq!(day.iter().map(|part| part.up).collect::<Vec<_>>(), [4, 2, 2, 4]);
        assert_eq!(day.iter().map(|part| part.homeless).collect::<Vec<_>>(), [0, 2, 2, 0]);
        assert_eq!(taken(&day[1]).iter().map(|(_, count)| *count).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(taken(&day[3]).iter().map(|(_, count)| *count).max(), Some(3), "nobody moves back");
    }

    #[test]
    fn what_makes_no_sense_is_told_by_its_key() {
        let with = |from: &str, to: &str| {
            let text = "desktops = 8\nhosts = 4\nroom = 3\nplacement = \"spread\"\nin-use = [1.0, 0.5]\n\
                        limit = { measure = \"p95_ms\", most = 100.0 }\nmix = { a = 3 }\n\
                        failure = [{ hosts = 2, from = 1, to = 2 }]\n\
                        change = [{ from = 1, to = 0, set = {} }]";
            let cluster: Cluster = toml::from_str(&text.replace(from, to)).unwrap();
            cluster.check().map_err(|(key, _)| key)
        };
        assert_eq!(with("", ""), Ok(()));
        for (from, to, key) in [
            ("desktops = 8", "desktops = 0", "desktops"),
            ("desktops = 8", "desktops = 13", "room"),
            ("hosts = 4", "hosts = 0", "hosts"),
            ("room = 3", "room = 2000", "room"),
            ("a = 3", "a = 0", "mix"),
            ("0.5", "1.5", "in-use"),
            ("[1.0, 0.5]", "[]", "in-use"),
            ("hosts = 2", "hosts = 5", "failure.hosts"),
            ("to = 2", "to = 1", "failure.from, failure.to"),
            ("from = 1, to = 0", "from = 2, to = 0", "change.from, change.to"),
            ("p95_ms", "requests", "limit.measure"),
            ("most = 100.0", "most = 0.0", "limit.most, limit.kinds"),
            ("most = 100.0", "most = 1.0, kinds = { a = -1.0 }", "limit.most, limit.kinds"),
            ("most = 100.0", "most = 1.0, kinds = { b = 1.0 }", "limit.kinds"),
        ] {
            assert_eq!(with(from, to), Err(key), "{to}");
        }
    }

    #[test]
    fn a_change_may_last_over_midnight() {
        let parts = |from, to| {
            let change = Change { from, to, set: Table::new() };
            (0..6).filter(|part| change.holds(*part)).collect::<Vec<_>>()
        };
        assert_eq!(parts(1, 3), [1, 2]);
        assert_eq!(parts(4, 1), [0, 4, 5]);
        assert_eq!(parts(2, 2), [0, 1, 2, 3, 4, 5]);
    }

    proptest! {
        /// Whatever fails: who is in use is on one host that is up and has room, or on none because there is
        /// no room.
        #[test]
        fn nobody_is_lost_and_no_host_has_too_many(
            desktops in 1_u32..60,
            hosts in 1_u32..8,
            spare in 0_u32..4,
            placement in prop::sample::select(vec![Placement::Spread, Placement::Fill, Placement::Random]),
            failures in prop::collection::vec((1_u32..4, 0_usize..4, 1_usize..4), 0..3),
        ) {
            let failure = |(count, from, length): &(u32, usize, usize)| Failure {
                hosts: (*count).min(hosts), from: *from, to: Some(from + length).filter(|to| *to <= 4),
            };
            let cluster = Cluster {
                desktops,
                hosts,
                room: desktops.div_ceil(hosts) + spare,
                placement,
                seed: 7,
                mix: [("a".to_owned(), 2), ("b".to_owned(), 3)].into_iter().collect(),
                in_use: vec![1.0; 4],
                failures: failures.iter().map(failure).collect(),
                changes: Vec::new(),
                limit: DesktopLimit { measure: "p95_ms".to_owned(), most: 1.0, kinds: IndexMap::new() },
            };
            prop_assert_eq!(cluster.check(), Ok(()));
            for part in cluster.day() {
                let placed: u32 = taken(&part).iter().map(|(_, count)| count).sum();
                prop_assert_eq!(placed + part.homeless, desktops);
                prop_assert!(taken(&part).iter().all(|(_, count)| *count <= cluster.room));
                prop_assert!(part.hosts.len() <= part.up as usize);
                prop_assert!(part.homeless == 0 || placed == part.up * cluster.room);
            }
        }
    }
}
