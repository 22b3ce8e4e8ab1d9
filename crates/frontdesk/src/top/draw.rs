//! Draws the state of `top`.

use super::app::{App, View};
use crate::status::table;
use crate::status::why;
use crate::words;
use frontdesk_control_protocol::VmStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};

/// Cells of a bar.
const BAR: usize = 6;
/// vCPUs of a VM whose pace is shown.
const VCPUS: usize = 8;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(header(app)), head);
    match (app.view, app.chosen()) {
        (View::Tasks, Some(vm)) => tasks(frame, body, app, vm),
        (View::Why, Some(vm)) => reasons(frame, body, app, vm),
        (View::Reservations, _) => app.panel.draw(frame, body),
        _ => vms(frame, body, app),
    }
    frame.render_widget(Paragraph::new(footer(app)), foot);
}

fn header(app: &App) -> Text<'static> {
    let (daemon, latency) = (&app.status.daemon, &app.status.daemon.decision_latency);
    let acts = if daemon.acting { "acting" } else { "observing only" };
    let up = words::duration(app.status.at_ns.saturating_sub(daemon.since_ns));
    let own = app.own_cpu().map_or_else(|| "-".to_owned(), words::percent);
    let first = format!(
        "frontdesk {}{}, {acts} for {up}: {}, own CPU {own}",
        daemon.version,
        app.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default(),
        words::count(app.status.vms.len() as u64, "VM", "VMs")
    );
    let lost = match daemon.lost_events {
        0 => Line::default(),
        lost => Line::from(format!("  {lost} events LOST")).red().bold(),
    };
    let mut second = Line::from(format!(
        "boosts {} after their events (p99 {}, max {})",
        words::duration(latency.p50_ns),
        words::duration(latency.p99_ns),
        words::duration(latency.max_ns)
    ));
    second.extend(lost);
    Text::from(vec![Line::from(first).bold(), second])
}

fn footer(app: &App) -> Line<'static> {
    let refused = app.panel.error.as_ref().filter(|_| app.view == View::Reservations);
    if let Some(error) = app.error.as_ref().or(refused) {
        return Line::from(words::printable(error)).red();
    }
    Line::from(match app.view {
        View::Vms => "↑↓ choose   Enter tasks and ports   w why   r reservations   q quit",
        View::Tasks => "↑↓ scroll   w why   Esc back   q quit",
        View::Why => "↑↓ scroll   Enter tasks and ports   Esc back   q quit",
        View::Reservations => {
            "↑↓ choose   ←→ slice   [] period   h hard   p pause   x release   Esc back   q quit"
        }
    })
    .dim()
}

/// A fraction as a bar.
fn bar(ratio: f64) -> String {
    let full = (0..BAR).filter(|cell| ratio * BAR as f64 > *cell as f64 + 0.5).count();
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn vms(frame: &mut Frame<'_>, area: Rect, app: &App) {
    if app.status.vms.is_empty() {
        frame.render_widget(Paragraph::new("No VM is followed."), area);
        return;
    }
    // Where something plays, its frames are what counts.
    let plays = app.status.vms.iter().any(|vm| table::frame_rate(vm).is_some());
    let hits = if plays { "fps" } else { "hits" };
    let header = ["VM", "state", "CPU", "stolen", "boosts/s", hits, "PB used/allowed", "debt"];
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(13),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(18),
        Constraint::Length(7),
    ];
    let rows = app.status.vms.iter().map(|vm| vm_row(app, vm, plays));
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(app.position()));
}

fn vm_row(app: &App, vm: &VmStatus, plays: bool) -> Row<'static> {
    let rates = app.rates(vm);
    let rate = |text: fn(super::app::Rates) -> String| rates.map_or_else(|| "-".to_owned(), text);
    let (vcpus, used) = (vm.engine.vcpus.len().max(1) as f64, vm.engine.pb_used_ratio);
    let spent = if vm.engine.pb_allowed_ratio > 0.0 { used / vm.engine.pb_allowed_ratio } else { 0.0 };
    let state = match table::state(vm) {
        "TROUBLE" => Cell::from("TROUBLE").style(Style::new().fg(Color::Red)),
        state => Cell::from(state),
    };
    Row::new([
        name(vm),
        state,
        Cell::from(rates.map_or_else(
            || "-".to_owned(),
            |rates| format!("{} {}", bar(rates.cpu / vcpus), words::percent(rates.cpu)),
        )),
        Cell::from(rate(|rates| words::percent(rates.stolen))),
        Cell::from(rate(|rates| format!("{:.1}", rates.boosts))),
        Cell::from(match (plays, table::frame_rate(vm)) {
            (true, Some(rate)) => format!("{rate:.1}"),
            (true, None) => "-".to_owned(),
            (false, _) => table::hits(vm.sum(|vcpu| vcpu.hits), vm.boosts()),
        }),
        Cell::from(format!(
            "{} {:.1}/{}",
            bar(spent),
            used * 100.0,
            words::percent(vm.engine.pb_allowed_ratio)
        )),
        Cell::from(words::signed_duration(vm.engine.debt_ns)),
    ])
}

/// Its name, and in an episode its vCPUs: those that are slow in yellow.
fn name(vm: &VmStatus) -> Cell<'static> {
    let name = words::name(&vm.name);
    let episode = vm.engine.asymmetric.as_ref().and_then(|known| known.episode.as_ref());
    let Some(episode) = episode.filter(|episode| episode.acts) else { return Cell::from(name) };
    let mut line = Line::from(format!("{name} "));
    for vcpu in vm.engine.vcpus.iter().map(|vcpu| vcpu.index).take(VCPUS) {
        let slow = episode.slow.contains(&vcpu);
        line.push_span(if slow { "s".yellow() } else { "f".green() });
    }
    Cell::from(line)
}

fn tasks(frame: &mut Frame<'_>, area: Rect, app: &App, vm: &VmStatus) {
    let [ports_area, tasks_area] = Layout::vertical([Constraint::Length(3), Constraint::Fill(1)]).areas(area);
    let block = Block::bordered().title(format!(" ports of {} ", words::name(&vm.name)));
    frame.render_widget(Paragraph::new(table::ports(&app.status, vm)).block(block), ports_area);
    let room = usize::from(tasks_area.height.saturating_sub(1));
    let from = usize::from(app.scroll).min(vm.engine.tasks.len().saturating_sub(room));
    let rows = vm.engine.tasks.iter().skip(from).map(|task| Row::new(table::task(&app.status, task)));
    let widths = [24, 6, 9, 8, 10, 12].map(Constraint::Length);
    let header = Row::new(table::TASK_HEADER).style(Style::new().add_modifier(Modifier::UNDERLINED));
    frame.render_widget(Table::new(rows, widths).header(header), tasks_area);
}

fn reasons(frame: &mut Frame<'_>, area: Rect, app: &App, vm: &VmStatus) {
    let paragraphs = why::words(&app.status, vm);
    let lines: Vec<Line<'_>> = paragraphs
        .into_iter()
        .flat_map(|text| [Line::from(words::printable(&text)), Line::default()])
        .collect();
    let block = Block::bordered().title(format!(" why {} was or was not boosted ", words::name(&vm.name)));
    frame.render_widget(
        Paragraph::new(lines).wrap(Wrap { trim: true }).scroll((app.scroll, 0)).block(block),
        area,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{playing, sample, waiting};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use frontdesk_control_protocol::{ClientError, Refusal, RefusalKind};
    use ratatui::{Terminal, backend::TestBackend};

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        terminal.backend().to_string()
    }

    /// The sample, and a second later.
    fn app() -> App {
        let mut app = App::new(sample(), None);
        let mut later = sample();
        later.at_ns += 1_000_000_000;
        later.daemon.cpu_seconds += 0.004;
        later.vms[0].engine.pb_used_ratio = 0.0625;
        let vcpu = &mut later.vms[0].engine.vcpus[0];
        vcpu.ran_ns += 500_000_000;
        vcpu.stolen_ns += 250_000_000;
        vcpu.boosts += 12;
        app.update(Ok(Ok(later)));
        app
    }

    fn press(app: &mut App, codes: &[KeyCode]) {
        codes.iter().for_each(|code| app.key(KeyEvent::new(*code, KeyModifiers::NONE)));
    }

    #[test]
    fn all_vms() {
        insta::assert_snapshot!(screen(&app(), 80, 8));
    }

    #[test]
    fn frames_of_a_film_are_shown() {
        let mut app = app();
        app.status.vms[0].engine.multimedia = Some(playing());
        let screen = screen(&app, 80, 8);
        let cells = |name: &str| {
            let line = screen.lines().find(|line| line.contains(name)).unwrap();
            line.replace('"', "").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let column = cells("stolen").iter().position(|cell| cell == "fps").unwrap();
        // The bar of the CPU time, its number and its unit are three cells, as is the stolen time two.
        assert_eq!((cells("alice")[column + 3].as_str(), cells("bob")[column + 3].as_str()), ("23.9", "-"));
    }

    #[test]
    fn vcpus_that_are_slow_stand_out() {
        let mut app = app();
        let mut known = waiting(app.status.at_ns);
        app.status.vms[0].engine.asymmetric = Some(known.clone());
        assert!(screen(&app, 80, 8).contains("alice s"), "{}", screen(&app, 80, 8));
        known.episode = None;
        app.status.vms[0].engine.asymmetric = Some(known);
        assert!(!screen(&app, 80, 8).contains("alice s"));
    }

    #[test]
    fn tasks_and_ports_of_one() {
        let mut app = app();
        press(&mut app, &[KeyCode::Enter]);
        assert_eq!((app.take_stale(), app.take_stale()), (true, false));
        assert_eq!(app.vm(), Some("alice"));
        insta::assert_snapshot!(screen(&app, 80, 12));
    }

    #[test]
    fn why_one_was_boosted() {
        let mut app = app();
        press(&mut app, &[KeyCode::Char('w')]);
        insta::assert_snapshot!(screen(&app, 80, 14));
    }

    #[test]
    fn keys_choose_and_leave() {
        let mut app = app();
        press(&mut app, &[KeyCode::Down, KeyCode::Down, KeyCode::Char('j')]);
        assert_eq!(app.chosen().unwrap().name, "bob");
        press(&mut app, &[KeyCode::Up, KeyCode::Enter, KeyCode::Esc]);
        assert_eq!((app.view, app.vm()), (View::Vms, None));
        press(&mut app, &[KeyCode::End, KeyCode::Enter, KeyCode::Char('x')]);
        assert_eq!(app.vm(), Some("bob"));
        assert!(!app.is_over());
        app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(app.is_over());
    }

    #[test]
    fn a_vm_or_daemon_that_goes_is_told() {
        let mut app = app();
        press(&mut app, &[KeyCode::Enter]);
        let message = "no VM is named \"alice\"".to_owned();
        app.update(Ok(Err(Refusal::new(RefusalKind::UnknownVm, message))));
        assert_eq!(app.view, View::Vms);
        assert!(screen(&app, 80, 8).contains("no VM is named"));
        let mut without = sample();
        without.vms.remove(0);
        app.update(Ok(Ok(without)));
        assert_eq!((app.chosen().unwrap().name.as_str(), &app.error), ("bob", &None));
        app.update(Err(ClientError::NoDaemon("/run/x.sock".into()).into()));
        assert!(screen(&app, 80, 8).contains("no daemon answers"));
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let mut app = app();
        for (width, height) in [(1, 1), (10, 3), (300, 100)] {
            for key in [KeyCode::Enter, KeyCode::Char('w'), KeyCode::Char('r'), KeyCode::Esc] {
                screen(&app, width, height);
                press(&mut app, &[key]);
            }
        }
        app.status.vms.clear();
        assert!(screen(&app, 40, 5).contains("No VM is followed."));
        press(&mut app, &[KeyCode::Down, KeyCode::Enter, KeyCode::Char('w')]);
        screen(&app, 40, 5);
    }
}
