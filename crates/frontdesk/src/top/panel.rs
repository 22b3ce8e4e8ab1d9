//! The reservations in `top`: what came of each, and keys that change them.

use super::asker::{Said, refused};
use crate::{list, words};
use crossterm::event::KeyCode;
use frontdesk_control_protocol::{Answer, Delivered, Query, Reservation, Reservations, Reserve, Target};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

/// Entries of the strip.
const STRIP: usize = 16;
/// What a key adds to a slice, of the period.
const STEP: f64 = 0.01;
/// By what a key changes a period.
const FACTOR: f64 = 1.25;

/// The reservations and the chosen one.
#[derive(Default)]
pub(crate) struct Panel {
    all: Option<Reservations>,
    /// What comes and goes around it does not change the choice.
    chosen: Option<Target>,
    /// What the daemon said last, if it refused.
    pub(crate) error: Option<String>,
    wanted: Option<Query>,
}

impl Panel {
    /// What to ask the daemon: a change that a key asks for, or else how things are.
    pub(crate) fn take_query(&mut self) -> Query {
        self.wanted.take().unwrap_or(Query::Reservations {})
    }

    /// Takes the daemon's answer.
    pub(crate) fn update(&mut self, answer: Said<Answer>) {
        match answer {
            Ok(Ok(Answer::Reservations(all))) => {
                self.all = Some(*all);
                if self.position().is_none() {
                    self.chosen = self.reservations().first().map(|one| one.target.clone());
                }
            }
            Ok(Ok(_)) => self.error = None,
            Ok(Err(refusal)) => self.error = Some(refused(refusal).to_string()),
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    fn reservations(&self) -> &[Reservation] {
        self.all.as_ref().map_or(&[], |all| &all.reservations)
    }

    fn position(&self) -> Option<usize> {
        self.reservations().iter().position(|one| Some(&one.target) == self.chosen.as_ref())
    }

    /// True if the daemon is to be asked at once.
    pub(crate) fn key(&mut self, key: KeyCode) -> bool {
        let Some(position) = self.position() else { return false };
        let one = &self.reservations()[position];
        let target = one.target.clone();
        let (slice, period) = (one.slice_ns as f64, one.period_ns as f64);
        let query = match key {
            KeyCode::Up | KeyCode::Char('k') => return self.choose(position.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => return self.choose(position + 1),
            KeyCode::Right => self.changed(one, period, slice + STEP * period, one.hard),
            KeyCode::Left => self.changed(one, period, slice - STEP * period, one.hard),
            // The fraction stays.
            KeyCode::Char(']') => self.changed(one, period * FACTOR, slice * FACTOR, one.hard),
            KeyCode::Char('[') => self.changed(one, period / FACTOR, slice / FACTOR, one.hard),
            KeyCode::Char('h') => self.changed(one, period, slice, !one.hard),
            KeyCode::Char('p') if one.paused => Query::Resume { target },
            KeyCode::Char('p') => Query::Pause { target },
            KeyCode::Char('x') => Query::Release { target },
            _ => return false,
        };
        self.error = None;
        self.wanted = Some(query);
        true
    }

    fn choose(&mut self, position: usize) -> bool {
        let last = self.reservations().len().saturating_sub(1);
        self.chosen = self.reservations().get(position.min(last)).map(|one| one.target.clone());
        false
    }

    /// A request for other terms, inside of what is allowed; whether they fit is for the daemon to say.
    fn changed(&self, one: &Reservation, period: f64, slice: f64, hard: bool) -> Query {
        let bounds = self.all.as_ref().map(|all| (all.min_period_ns, all.max_period_ns, all.min_slice_ns));
        let (least, longest, slice_least) = bounds.unwrap_or((1, u64::MAX, 1));
        let period_ns = whole(period).clamp(least, longest.max(least));
        let slice_ns = whole(slice).clamp(slice_least.min(period_ns), period_ns);
        Query::Reserve(Reserve {
            target: one.target.clone(),
            period_ns,
            slice_ns,
            hard,
            phase_ns: one.phase_ns,
        })
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(all) = &self.all else { return };
        let [table, room] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
        let free: Vec<String> = all
            .cpus
            .iter()
            .map(|room| format!("cpu{} {}", room.cpu, words::percent(room.free_ratio)))
            .collect();
        frame.render_widget(Paragraph::new(format!("free: {}", free.join(", "))), room);
        if all.reservations.is_empty() {
            let words =
                "Nothing is reserved. `frontdesk reserve` does that, and `frontdesk ps` finds for what.";
            return frame.render_widget(Paragraph::new(words), table);
        }
        let header = ["target", "slice", "period", "CPUs", "cost", "used", "misses", "worst", "last seconds"];
        let mut widths = [12, 12, 8, 4, 6, 6, 6, 7].map(Constraint::Length).to_vec();
        widths[0] = Constraint::Fill(1);
        widths.push(Constraint::Length(u16::try_from(STRIP).unwrap_or(u16::MAX)));
        let table_of = Table::new(all.reservations.iter().map(row), widths)
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table_of, table, &mut TableState::new().with_selected(self.position()));
    }
}

/// In whole microseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It saturates, as it should.
fn whole(ns: f64) -> u64 {
    (ns / 1000.0).round() as u64 * 1000
}

fn row(one: &Reservation) -> Row<'static> {
    let [target, _, slice, period, cpus, cost, used, _, misses, worst] = list::row(one);
    let mark = |text: String, wrong: bool| {
        let style = if wrong { Style::new().fg(Color::Red) } else { Style::new() };
        Cell::from(text).style(style)
    };
    Row::new([
        mark(target, one.trouble.is_some()),
        Cell::from(slice),
        Cell::from(period),
        Cell::from(cpus),
        Cell::from(cost),
        Cell::from(used),
        mark(misses, one.misses > 0),
        Cell::from(worst),
        Cell::from(strip(&one.recent)),
    ])
}

/// The latest entries as bars; those with a miss as crosses.
fn strip(recent: &[Delivered]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |entry: &Delivered| {
        if entry.misses > 0 {
            return '×';
        }
        let level = entry.used_ns.saturating_mul(8) / entry.reserved_ns.max(1);
        LEVELS[usize::try_from(level).unwrap_or(usize::MAX).min(7)]
    };
    recent[recent.len().saturating_sub(STRIP)..].iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_control_protocol::{CpuRoom, Refusal, RefusalKind, SCHEMA};
    use ratatui::{Terminal, backend::TestBackend};

    const MS: u64 = 1_000_000;

    fn reservation(target: &str, slice_ns: u64, period_ns: u64) -> Reservation {
        let delivered =
            |used, misses| Delivered { end_ns: 0, periods: 5, reserved_ns: 800, used_ns: used, misses };
        Reservation {
            target: target.parse().unwrap(),
            name: target.to_owned(),
            period_ns,
            slice_ns,
            hard: false,
            phase_ns: Some(7),
            paused: false,
            cpus: vec![1],
            mechanism: "user".to_owned(),
            host_ratio: 0.1,
            efficiency_ratio: Some(0.985),
            periods: 1000,
            misses: 1,
            stalls: 0,
            worst_miss_ns: 30_000,
            used_ns: 0,
            reserved_ns: 0,
            recent: vec![delivered(100, 0), delivered(450, 0), delivered(700, 1), delivered(800, 0)],
            trouble: None,
        }
    }

    fn panel() -> Panel {
        let mut panel = Panel::default();
        let all = Reservations {
            schema: SCHEMA,
            at_ns: 1,
            acting: true,
            mechanism: "user".to_owned(),
            reserve_ratio: 0.1,
            min_period_ns: MS / 5,
            max_period_ns: 1_000_000 * MS,
            min_slice_ns: MS / 100,
            deciding_ns: 0,
            cpus: vec![CpuRoom { cpu: 1, reserved_ratio: 0.3, free_ratio: 0.6 }],
            reservations: vec![reservation("alice", 2 * MS, 10 * MS), reservation("42", MS / 10, MS / 5)],
        };
        panel.update(Ok(Ok(Answer::Reservations(Box::new(all)))));
        panel
    }

    fn asked(panel: &mut Panel, key: KeyCode) -> String {
        assert!(panel.key(key), "{key:?}");
        serde_json::to_string(&panel.take_query()).unwrap()
    }

    #[test]
    fn it_is_drawn() {
        let panel = panel();
        let mut terminal = Terminal::new(TestBackend::new(92, 5)).unwrap();
        terminal.draw(|frame| panel.draw(frame, frame.area())).unwrap();
        insta::assert_snapshot!(terminal.backend().to_string());
    }

    #[test]
    fn keys_change_the_chosen_one() {
        let mut panel = panel();
        let reserve = |period: u64, slice: u64, hard: bool| {
            format!(
                "{{\"reserve\":{{\"target\":\"vm:alice\",\"period_ns\":{period},\"slice_ns\":{slice},\"hard\":{hard},\"phase_ns\":7}}}}"
            )
        };
        for (key, expected) in [
            (KeyCode::Right, reserve(10_000_000, 2_100_000, false)),
            (KeyCode::Left, reserve(10_000_000, 1_900_000, false)),
            (KeyCode::Char(']'), reserve(12_500_000, 2_500_000, false)),
            (KeyCode::Char('['), reserve(8_000_000, 1_600_000, false)),
            (KeyCode::Char('h'), reserve(10_000_000, 2_000_000, true)),
            (KeyCode::Char('p'), "{\"pause\":{\"target\":\"vm:alice\"}}".to_owned()),
        ] {
            assert_eq!(asked(&mut panel, key), expected, "{key:?}");
        }
        assert_eq!(panel.take_query(), Query::Reservations {}, "asked once");
        assert!(!panel.key(KeyCode::Down) && !panel.key(KeyCode::Down));
        assert_eq!(asked(&mut panel, KeyCode::Char('x')), "{\"release\":{\"target\":\"pid:42\"}}");
        let shortest = asked(&mut panel, KeyCode::Char('['));
        assert!(shortest.contains("\"period_ns\":200000,\"slice_ns\":80000"), "{shortest}");
    }

    #[test]
    fn a_refusal_is_told_until_something_else_is_asked() {
        let mut panel = panel();
        panel.key(KeyCode::Right);
        let refusal = Refusal::new(RefusalKind::Infeasible, "1.7 ms fits");
        panel.update(Ok(Err(refusal)));
        assert!(panel.error.as_ref().unwrap().contains("1.7 ms fits"));
        panel.key(KeyCode::Left);
        assert_eq!(panel.error, None);
        let changed = Answer::Reservation(Box::new(reservation("alice", MS, 10 * MS)));
        panel.update(Ok(Err(Refusal::new(RefusalKind::Infeasible, "1.7 ms fits"))));
        panel.update(Ok(Ok(changed)));
        assert_eq!(panel.error, None, "it is taken");
        let mut empty = Panel::default();
        assert!(!empty.key(KeyCode::Right));
    }
}
