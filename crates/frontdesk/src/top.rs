//! `frontdesk top`.

mod app;
mod asker;
mod draw;
mod panel;

use crate::connect::Where;
use anyhow::{Context, bail};
use app::{App, View};
use asker::{Asker, Look, status};
use crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at the daemon.
const REFRESH: Duration = Duration::from_secs(1);
/// A signal is noticed within this.
const NOTICE: Duration = Duration::from_millis(200);
/// An answer is.
const ANSWER: Duration = Duration::from_millis(20);
/// Keys that wait for an answer; more are not taken.
const TYPED: usize = 64;

/// Watch the VMs live in the terminal: what they use, how they are boosted, and what is reserved.
///
/// Keys: up and down (or j and k) choose a VM, Enter shows its guest tasks and ports, w says why it was or
/// was not boosted, r shows the reservations, Esc goes back, q quits.
///
/// Among the reservations, left and right change the chosen one's slice by 1 % of its period, [ and ] its
/// period by a quarter, h whether it gets anything beyond its slice; p pauses and resumes it, and x releases
/// it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Where,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(
            "top needs a terminal; `frontdesk status` prints the same once, and `frontdesk status --json` for programs"
        );
    }
    // Without a daemon it is better not to begin. A password is asked for now, or never.
    let mut daemon = args.daemon.connect()?;
    let first = status(&mut daemon, None)?.map_err(asker::refused)?;
    daemon.ask_nobody();
    let mut app = App::new(first, args.daemon.host());
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let mut asker = Asker::start(daemon)?;
    // This also sees to it that the terminal is restored before a panic is reported.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let result = watch(&mut terminal, &mut app, &mut asker, &stop);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

fn watch(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    asker: &mut Asker,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + REFRESH;
    let mut typed = VecDeque::new();
    while !app.is_over() && !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, app)).context("cannot draw")?;
        let left = if asker.is_free() { next.saturating_duration_since(Instant::now()) } else { ANSWER };
        if event::poll(left.min(NOTICE)).context("cannot read the keyboard")? {
            match event::read().context("cannot read the keyboard")? {
                Event::Key(key) if key.kind == KeyEventKind::Press && App::leaves_at_once(key) => {
                    app.key(key)
                }
                Event::Key(key) if key.kind == KeyEventKind::Press && typed.len() < TYPED => {
                    typed.push_back(key);
                }
                // After a change of its size the terminal is drawn anew.
                _ => {}
            }
        }
        if let Some(told) = asker.answer()? {
            app.update(told.status);
            told.reservations.into_iter().for_each(|answer| app.panel.update(answer));
            next = Instant::now() + REFRESH;
        }
        // A change of a reservation begins with what came of the one before.
        let waits = |app: &App| app.view == View::Reservations && (app.is_stale() || !asker.is_free());
        while let Some(key) = typed.pop_front_if(|_| !waits(app)) {
            app.key(key);
        }
        if asker.is_free() && (app.take_stale() || Instant::now() >= next) {
            let reservations = (app.view == View::Reservations).then(|| app.panel.take_query());
            asker.ask(Look { vm: app.vm().map(str::to_owned), reservations });
        }
    }
    Ok(())
}
