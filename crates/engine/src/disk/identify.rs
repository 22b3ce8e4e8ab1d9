//! Which applications are interactive (§3.1.2): those whose requests come after a person's inputs rather than
//! before.
//!
//! An application is a guest task, or a name where the guest says what its tasks are called: then what is
//! known outlives the task. What the guest's kernel writes back is nobody's: only reads are counted, and a
//! write or a flush is taken for that of the task that runs only while a person may wait for it.

use super::config::{DiskConfig, Inputs, LONGEST_NAME};
use super::recent::Recent;
use super::request::{DiskClass, DiskOperation, Verdict};
use super::whitelist::WhiteList;
use crate::event::{TaskId, Time, UserInput};
use crate::nanos::nanos;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Most applications of a VM, and most of its tasks that have names; who asked least recently is forgotten.
const APPLICATIONS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// An application of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Application {
    Task(TaskId),
    Named(Arc<str>),
}

/// What is known of an application, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationExplain {
    /// Its name, if the guest tells.
    pub name: Option<String>,
    /// The task, if there is no name.
    pub task: Option<TaskId>,
    /// Requests after inputs, of late.
    pub post: u32,
    /// Requests before inputs, of late.
    pub pre: u32,
    /// What is thought of it.
    pub verdict: Verdict,
    /// Its requests that were served in each class, `High` first.
    pub served: [u64; 3],
}

/// The counts of an application.
#[derive(Clone, Debug, Default)]
struct Counts {
    post: u32,
    pre: u32,
    /// When they were halved last.
    halved: Time,
    /// Its requests since the last input.
    recent: Recent,
    /// Requests in each class.
    served: [u64; 3],
}

impl Counts {
    fn halve(&mut self, now: Time, half_life: u64) {
        let times = now.since(self.halved) / half_life;
        if times > 0 {
            let by = u32::try_from(times).unwrap_or(u32::MAX);
            self.post = self.post.checked_shr(by).unwrap_or(0);
            self.pre = self.pre.checked_shr(by).unwrap_or(0);
            self.halved = self.halved.plus(times.saturating_mul(half_life));
        }
    }

    fn interactive(&self, config: &DiskConfig) -> bool {
        let (post, pre) = (f64::from(self.post), f64::from(self.pre));
        post > config.threshold * (post + pre)
    }
}

/// The applications of a VM.
#[derive(Debug)]
pub(super) struct Identifier {
    names: LruCache<TaskId, Arc<str>>,
    counts: LruCache<Application, Counts>,
    input: Option<Time>,
}

impl Default for Identifier {
    fn default() -> Self {
        let (names, counts) = (LruCache::new(APPLICATIONS), LruCache::new(APPLICATIONS));
        Identifier { names, counts, input: None }
    }
}

impl Identifier {
    /// A person did something: what came before it counts against its application.
    pub(super) fn input(&mut self, input: UserInput, now: Time, config: &DiskConfig, list: &mut WhiteList) {
        if config.inputs == Inputs::Start && input == UserInput::Key {
            return;
        }
        let before = Time(now.0.saturating_sub(nanos(config.pre_input)));
        let last = self.input.replace(now);
        let from = match (config.inputs, last) {
            // Nearer to this one than to that.
            (Inputs::Start, Some(last)) => before.max(last.plus(now.since(last) / 2)),
            (Inputs::All, Some(last)) => before.max(last),
            (_, None) => before,
        };
        for (application, counts) in self.counts.iter_mut() {
            counts.halve(now, nanos(config.half_life));
            let recent = std::mem::take(&mut counts.recent);
            if recent.is_empty() {
                continue;
            }
            counts.pre = counts.pre.saturating_add(recent.between(from, None));
            if let (Inputs::Start, Some(last)) = (config.inputs, last) {
                // They were taken for requests after that one.
                let taken = recent.between(from, Some(last.plus(nanos(config.post_input))));
                counts.post = counts.post.saturating_sub(taken);
            }
            if let Application::Named(name) = application {
                list.identified(name, counts.interactive(config));
            }
        }
    }

    /// The guest says what a task is called.
    pub(super) fn named(&mut self, task: TaskId, name: &str) {
        let end = name.floor_char_boundary(LONGEST_NAME);
        let name: Arc<str> = Arc::from(&name[..end]);
        // What it asked before it had a name, or as another program, is that one's.
        if let Some(counts) = self.counts.pop(&Application::Task(task)) {
            let named = Application::Named(name.clone());
            if self.counts.peek(&named).is_none() {
                self.counts.put(named, counts);
            }
        }
        self.names.put(task, name);
    }

    /// A task asks for something: whose request it is, and what is thought of that.
    pub(super) fn request(
        &mut self,
        task: TaskId,
        operation: DiskOperation,
        now: Time,
        config: &DiskConfig,
        list: &WhiteList,
    ) -> (Option<Application>, Verdict) {
        let soon = self.input.is_some_and(|input| now.since(input) <= nanos(config.post_input));
        let name = self.names.get(&task).cloned();
        let player = name.as_deref().is_some_and(|name| config.players.iter().any(|player| player == name));
        if operation != DiskOperation::Read && !soon {
            return (None, Verdict::Nobody);
        }
        let application = name.map_or(Application::Task(task), Application::Named);
        let fresh = || Counts { halved: now, ..Counts::default() };
        let counts = self.counts.get_or_insert_mut(application.clone(), fresh);
        counts.halve(now, nanos(config.half_life));
        if operation == DiskOperation::Read {
            counts.recent.note(now, Time(now.0.saturating_sub(nanos(config.pre_input))));
            counts.post = counts.post.saturating_add(u32::from(soon));
        }
        let verdict = verdict(&application, player, counts, config, list);
        (Some(application), verdict)
    }

    /// One of its requests was submitted.
    pub(super) fn served(&mut self, application: &Application, class: DiskClass) {
        if let Some(counts) = self.counts.peek_mut(application) {
            let served = &mut counts.served[class as usize];
            *served = served.saturating_add(1);
        }
    }

    pub(super) fn explain(&self, config: &DiskConfig, list: &WhiteList) -> Vec<ApplicationExplain> {
        let explain = |(application, counts): (&Application, &Counts)| {
            let (name, task) = match application {
                Application::Task(task) => (None, Some(*task)),
                Application::Named(name) => (Some(name.to_string()), None),
            };
            let player = name.as_ref().is_some_and(|name| config.players.contains(name));
            let verdict = verdict(application, player, counts, config, list);
            let Counts { post, pre, served, .. } = *counts;
            ApplicationExplain { name, task, post, pre, verdict, served }
        };
        self.counts.iter().map(explain).collect()
    }
}

fn verdict(
    application: &Application,
    player: bool,
    counts: &Counts,
    config: &DiskConfig,
    list: &WhiteList,
) -> Verdict {
    match application {
        _ if player => Verdict::Player,
        Application::Named(name) if list.trusts(name, config) => Verdict::Listed,
        _ if counts.interactive(config) => Verdict::Follows,
        _ => Verdict::Ignores,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: u64 = 1_000_000_000;
    const TASK: TaskId = TaskId(7);

    struct Bench {
        guest: Identifier,
        list: WhiteList,
        config: DiskConfig,
    }

    fn bench(inputs: Inputs) -> Bench {
        let config = DiskConfig { inputs, ..DiskConfig::default() };
        Bench { guest: Identifier::default(), list: WhiteList::default(), config }
    }

    impl Bench {
        fn input(&mut self, at: f64) {
            self.guest.input(UserInput::Enter, time(at), &self.config, &mut self.list);
        }

        fn ask(&mut self, task: TaskId, operation: DiskOperation, at: f64) -> Verdict {
            self.guest.request(task, operation, time(at), &self.config, &self.list).1
        }

        fn reads(&mut self, task: TaskId, at: &[f64]) {
            at.iter().for_each(|at| _ = self.ask(task, DiskOperation::Read, *at));
        }

        fn counts(&self, task: TaskId) -> [u32; 2] {
            let counts = self.guest.counts.peek(&Application::Task(task)).unwrap();
            [counts.post, counts.pre]
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Seconds of a test.
    fn time(seconds: f64) -> Time {
        Time((seconds * SECOND as f64) as u64)
    }

    #[test]
    fn figure_7_the_rate_decides_and_not_the_count() {
        for inputs in [Inputs::Start, Inputs::All] {
            let (mut bench, a, b) = (bench(inputs), TaskId(1), TaskId(2));
            bench.reads(a, &[6.5, 7.5, 8.5, 9.5]);
            bench.reads(b, &[9.0]);
            bench.input(10.0);
            bench.reads(a, &[10.5, 11.5, 12.5, 13.5]);
            bench.reads(b, &[10.1, 10.2, 10.3]);
            assert_eq!((bench.counts(a), bench.counts(b)), ([4, 4], [3, 1]), "{inputs:?}");
            assert_eq!(bench.ask(b, DiskOperation::Read, 10.4), Verdict::Follows);
            assert_eq!(bench.ask(a, DiskOperation::Read, 20.0), Verdict::Ignores);
        }
    }

    #[test]
    fn what_is_outside_the_periods_does_not_count() {
        let mut bench = bench(Inputs::Start);
        bench.reads(TASK, &[1.0, 5.5]);
        bench.input(10.0);
        bench.reads(TASK, &[13.9, 14.1]);
        assert_eq!(bench.counts(TASK), [1, 0], "4.5 s before, and 4.1 s after");
    }

    /// Inputs every 1.6 s, and requests for half a second after each.
    fn types(inputs: Inputs) -> Verdict {
        let mut bench = bench(inputs);
        for number in 0..20_u32 {
            let at = f64::from(number) * 1.6;
            bench.input(at);
            bench.reads(TASK, &[at + 0.1, at + 0.2, at + 0.3, at + 0.4]);
        }
        bench.ask(TASK, DiskOperation::Read, 32.0)
    }

    #[test]
    fn who_answers_each_of_many_inputs_loses_only_by_the_papers_rule() {
        assert_eq!(types(Inputs::All), Verdict::Ignores);
        assert_eq!(types(Inputs::Start), Verdict::Follows);
    }

    #[test]
    fn a_backup_is_not_interactive_however_often_there_are_inputs() {
        for gap in [0.3, 1.0, 3.0, 7.0, 20.0] {
            let mut bench = bench(Inputs::Start);
            let mut next = gap;
            for number in 0..4_000_u32 {
                let at = f64::from(number) * 0.05;
                if at >= next {
                    bench.input(at);
                    next += gap;
                }
                bench.reads(TASK, &[at]);
            }
            // Once all is counted.
            bench.input(201.0);
            assert_eq!(bench.ask(TASK, DiskOperation::Read, 206.0), Verdict::Ignores, "inputs each {gap} s");
        }
    }

    #[test]
    fn keys_start_nothing() {
        let mut bench = bench(Inputs::Start);
        bench.guest.input(UserInput::Key, time(1.0), &bench.config, &mut bench.list);
        assert_eq!(bench.ask(TASK, DiskOperation::Read, 1.1), Verdict::Ignores);
        bench.config.inputs = Inputs::All;
        bench.guest.input(UserInput::Key, time(1.2), &bench.config, &mut bench.list);
        bench.reads(TASK, &[1.3]);
        assert_eq!(bench.ask(TASK, DiskOperation::Read, 1.3), Verdict::Follows);
    }

    #[test]
    fn write_back_is_nobodys_and_what_is_saved_after_an_input_is_the_tasks() {
        let mut bench = bench(Inputs::Start);
        bench.input(10.0);
        bench.reads(TASK, &[10.1]);
        assert_eq!(bench.ask(TASK, DiskOperation::Write, 12.0), Verdict::Follows);
        assert_eq!(bench.ask(TASK, DiskOperation::Flush, 12.0), Verdict::Follows);
        assert_eq!(bench.counts(TASK), [1, 0], "writes do not count");
        assert_eq!(bench.ask(TASK, DiskOperation::Write, 15.0), Verdict::Nobody);
    }

    #[test]
    fn counts_halve() {
        let mut bench = bench(Inputs::Start);
        bench.input(10.0);
        bench.reads(TASK, &[10.1; 9]);
        bench.reads(TASK, &[80.0]);
        assert_eq!(bench.counts(TASK), [4, 0]);
        bench.config.half_life = Duration::from_secs(1);
        bench.reads(TASK, &[2_000.0]);
        assert_eq!(bench.counts(TASK), [0, 0]);
    }

    #[test]
    fn what_is_known_of_a_name_outlives_the_task_and_players_need_no_input() {
        let mut bench = bench(Inputs::Start);
        bench.input(10.0);
        bench.reads(TASK, &[10.1, 10.2]);
        bench.guest.named(TASK, "writer");
        bench.guest.named(TaskId(8), "writer");
        bench.guest.named(TaskId(9), "mpv");
        assert_eq!(bench.ask(TaskId(8), DiskOperation::Read, 30.0), Verdict::Follows);
        assert_eq!(bench.ask(TaskId(9), DiskOperation::Read, 30.0), Verdict::Player);
        let explained = bench.guest.explain(&bench.config, &bench.list);
        assert_eq!(explained.len(), 2);
        assert_eq!((explained[1].name.as_deref(), explained[1].post), (Some("writer"), 2));
    }

    #[test]
    fn identifications_reach_the_white_list() {
        let mut bench = bench(Inputs::Start);
        bench.guest.named(TASK, "writer");
        for number in 0..9_u32 {
            let at = f64::from(number) * 10.0;
            bench.input(at);
            bench.reads(TASK, &[at + 0.1]);
        }
        let mut other = Identifier::default();
        other.named(TaskId(1), "writer");
        let read = DiskOperation::Read;
        let asked = other.request(TaskId(1), read, time(100.0), &bench.config, &bench.list);
        assert_eq!(asked.1, Verdict::Listed);
    }

    #[test]
    fn tables_are_bounded() {
        let mut bench = bench(Inputs::Start);
        for task in 0..1_000 {
            bench.guest.named(TaskId(task), &"é".repeat(100));
            bench.reads(TaskId(task + 1_000), &[1.0]);
        }
        let guest = &bench.guest;
        assert_eq!([guest.names.len(), guest.counts.len()], [APPLICATIONS.get(); 2]);
        assert!(guest.names.iter().all(|(_, name)| name.len() == LONGEST_NAME));
    }
}
