//! `frontdesk top`.

mod app;
mod draw;
mod panel;

use anyhow::{Context, bail};
use app::{App, View};
use crossterm::event::{self, Event, KeyEventKind};
use frontdesk_control_protocol::{DEFAULT_SOCKET, Query, ask, ask_status};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at the daemon.
const REFRESH: Duration = Duration::from_secs(1);
/// A signal is noticed within this.
const NOTICE: Duration = Duration::from_millis(200);

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
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(
            "top needs a terminal; `frontdesk status` prints the same once, and `frontdesk status --json` for programs"
        );
    }
    // Without a daemon it is better not to begin.
    let mut app = App::new(ask_status(&args.socket, None)?);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    // This also sees to it that the terminal is restored before a panic is reported.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let result = watch(&mut terminal, &mut app, args, &stop);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

fn watch(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    args: &Args,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + REFRESH;
    while !app.is_over() && !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, app)).context("cannot draw")?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left.min(NOTICE)).context("cannot read the keyboard")? {
            match event::read().context("cannot read the keyboard")? {
                Event::Key(key) if key.kind == KeyEventKind::Press => app.key(key),
                // After a change of its size the terminal is drawn anew.
                _ => {}
            }
        }
        if app.take_stale() || Instant::now() >= next {
            app.update(ask_status(&args.socket, app.vm()));
            if app.view == View::Reservations {
                let query = app.panel.take_query();
                if app.panel.update(ask(&args.socket, &query)) {
                    app.panel.update(ask(&args.socket, &Query::Reservations {}));
                }
            }
            next = Instant::now() + REFRESH;
        }
    }
    Ok(())
}
