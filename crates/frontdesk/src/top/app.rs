//! What `top` shows, and how keys change it.

use super::asker::{Said, refused};
use super::panel::Panel;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use frontdesk_control_protocol::{Status, VmStatus};

/// Rates are taken over at least this, so that two looks shortly after another make no wild ones.
const LEAST_NS: u64 = 500_000_000;

/// What is on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// All VMs.
    Vms,
    /// The guest tasks and ports of the chosen one.
    Tasks,
    /// Why the chosen one was or was not boosted.
    Why,
    /// The reservations.
    Reservations,
}

/// The state of the screen.
pub(crate) struct App {
    pub(crate) status: Status,
    /// Whose daemon it is, if another host's.
    pub(crate) host: Option<String>,
    before: Option<Status>,
    /// Why the latest look failed; what is shown is older.
    pub(crate) error: Option<String>,
    pub(crate) view: View,
    /// The reservations.
    pub(crate) panel: Panel,
    /// The chosen VM's name. What comes and goes around it does not change the choice.
    chosen: Option<String>,
    /// Lines scrolled down in the view of one VM.
    pub(crate) scroll: u16,
    /// What is shown is not what was asked for last.
    stale: bool,
    over: bool,
}

/// What a VM did in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// CPU time, in CPUs.
    pub(crate) cpu: f64,
    /// Stolen time, in vCPUs.
    pub(crate) stolen: f64,
    /// Boosts.
    pub(crate) boosts: f64,
}

impl App {
    pub(crate) fn new(status: Status, host: Option<String>) -> App {
        let chosen = status.vms.first().map(|vm| vm.name.clone());
        App {
            status,
            host,
            before: None,
            error: None,
            view: View::Vms,
            panel: Panel::default(),
            chosen,
            scroll: 0,
            stale: false,
            over: false,
        }
    }

    /// Whether the user wants to leave.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the daemon is to be asked at once.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// The same, once for each reason.
    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// The VM to ask for; all if none.
    pub(crate) fn vm(&self) -> Option<&str> {
        self.chosen.as_deref().filter(|_| matches!(self.view, View::Tasks | View::Why))
    }

    /// Position of the chosen VM.
    pub(crate) fn position(&self) -> Option<usize> {
        self.status.vms.iter().position(|vm| Some(&vm.name) == self.chosen.as_ref())
    }

    /// The chosen VM.
    pub(crate) fn chosen(&self) -> Option<&VmStatus> {
        self.status.vms.get(self.position()?)
    }

    /// Takes the daemon's answer.
    pub(crate) fn update(&mut self, answer: Said<Status>) {
        match answer {
            Ok(Ok(status)) => {
                let old = std::mem::replace(&mut self.status, status);
                if self.status.at_ns.saturating_sub(old.at_ns) >= LEAST_NS || self.before.is_none() {
                    self.before = Some(old);
                }
                self.error = None;
                if self.vm().is_none() && self.position().is_none() {
                    self.chosen = self.status.vms.first().map(|vm| vm.name.clone());
                }
            }
            Ok(Err(refusal)) if self.vm().is_some() => {
                // The VM has gone.
                self.show(View::Vms);
                self.error = Some(refusal.message);
            }
            Ok(Err(refusal)) => self.error = Some(refused(refusal).to_string()),
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    /// What a VM did between the last two looks; `None` if it is not known from both, or the daemon is
    /// another.
    pub(crate) fn rates(&self, vm: &VmStatus) -> Option<Rates> {
        let before = self.before.as_ref().filter(|before| before.daemon.pid == self.status.daemon.pid)?;
        let old = before.vms.iter().find(|old| old.name == vm.name && old.pid == vm.pid)?;
        let window = self.status.at_ns.checked_sub(before.at_ns).filter(|window| *window >= LEAST_NS)? as f64;
        let grown = |of: fn(&VmStatus) -> u64| of(vm).saturating_sub(of(old)) as f64;
        Some(Rates {
            cpu: grown(VmStatus::ran_ns) / window,
            stolen: grown(|vm| vm.sum(|vcpu| vcpu.stolen_ns)) / window,
            boosts: grown(VmStatus::boosts) / window * 1e9,
        })
    }

    /// What the daemon itself uses, in CPUs.
    pub(crate) fn own_cpu(&self) -> Option<f64> {
        let before = self.before.as_ref().filter(|before| before.daemon.pid == self.status.daemon.pid)?;
        let window = self.status.at_ns.checked_sub(before.at_ns).filter(|window| *window >= LEAST_NS)? as f64;
        Some((self.status.daemon.cpu_seconds - before.daemon.cpu_seconds) * 1e9 / window)
    }

    /// Ctrl-C: whatever was typed before it, and waits for an answer.
    pub(crate) fn leaves_at_once(key: KeyEvent) -> bool {
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
    }

    pub(crate) fn key(&mut self, key: KeyEvent) {
        match (self.view, key.code) {
            (_, KeyCode::Char('q')) => self.over = true,
            _ if App::leaves_at_once(key) => self.over = true,
            (_, KeyCode::Char('r')) => self.show(View::Reservations),
            (View::Reservations, KeyCode::Esc | KeyCode::Backspace) => self.show(View::Vms),
            (View::Reservations, key) => self.stale |= self.panel.key(key),
            (View::Vms, KeyCode::Up | KeyCode::Char('k')) => {
                self.choose(|position| position.saturating_sub(1))
            }
            (View::Vms, KeyCode::Down | KeyCode::Char('j')) => self.choose(|position| position + 1),
            (View::Vms, KeyCode::Home) => self.choose(|_| 0),
            (View::Vms, KeyCode::End) => self.choose(|_| usize::MAX),
            (_, KeyCode::Up | KeyCode::Char('k')) => self.scroll = self.scroll.saturating_sub(1),
            (_, KeyCode::Down | KeyCode::Char('j')) => self.scroll = self.scroll.saturating_add(1),
            (_, KeyCode::Enter) if self.chosen().is_some() => self.show(View::Tasks),
            (_, KeyCode::Char('w')) if self.chosen().is_some() => self.show(View::Why),
            (View::Tasks | View::Why, KeyCode::Esc | KeyCode::Backspace) => self.show(View::Vms),
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
        self.stale = true;
    }

    fn choose(&mut self, to: impl Fn(usize) -> usize) {
        let last = self.status.vms.len().saturating_sub(1);
        let position = to(self.position().unwrap_or(0)).min(last);
        self.chosen = self.status.vms.get(position).map(|vm| vm.name.clone());
    }
}
