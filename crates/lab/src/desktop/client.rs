//! Somebody in front of a desktop: types, waits for the picture, thinks, and again.

use super::screen::{Area, Screen};
use super::vnc::{Vnc, VncError, keys};
use crate::load::{LoadError, Sample};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What `session.sh` and `openbox.xml` make of the screen: a terminal below, programs above it, and this
/// where nothing is.
const BACKGROUND: u32 = 0x33_44_55;
const TERMINAL: Area = Area { x: 4, y: 604, width: 480, height: 156 };
const TERMINAL_COLOUR: u32 = 0x10_14_18;
const PROGRAMS: Area = Area { x: 0, y: 0, width: 1024, height: 600 };
/// A place where there is never anything else.
const FREE: (u16, u16) = (1000, 750);
/// A place in the terminal, and one in a program.
const IN_TERMINAL: (u16, u16) = (300, 740);
const IN_PROGRAM: (u16, u16) = (500, 300);

/// Pixels of a prompt, at least.
const PROMPT_PIXELS: usize = 8;
/// Pixels that a program's window has at least; a small notice has fewer.
const WINDOW_PIXELS: usize = 60_000;
/// A change of fewer pixels is no part of an answer: a cursor that blinks, a clock.
const CHANGE_PIXELS: u32 = 2_000;
/// A picture that has not changed for so long is finished.
const QUIET: Duration = Duration::from_secs(1);
/// What is not there by then will not come.
const PATIENCE: Duration = Duration::from_secs(180);
/// Who sees nothing happen for so long moves the pointer.
const RESTLESS: Duration = Duration::from_secs(5);
/// Who has got no keyboard by a click within this clicks again.
const CLICK_AGAIN: Duration = Duration::from_secs(30);
/// A letter that is not shown for so long will not be.
const LETTER: Duration = Duration::from_secs(15);
/// How often somebody who waits looks whether the run is over.
const LOOK: Duration = Duration::from_millis(100);

/// What a reader opens, in the terminal.
const VIEWER: &str = "evince /root/document.pdf";
/// Pages turned in one direction, then in the other: the document has more.
const PAGES: u32 = 8;

/// What one client does.
#[derive(Clone, Debug)]
pub(crate) struct DesktopConfig {
    /// Name of the VM, for messages.
    pub(crate) vm: String,
    /// The socket of its VNC server.
    pub(crate) socket: PathBuf,
    pub(crate) work: DesktopWork,
    /// Shortest and longest think time.
    pub(crate) think: [Duration; 2],
    /// Same seed, same think times: every arm of a repeat gets the same load.
    pub(crate) seed: u64,
    /// Physical CPUs the client runs on.
    pub(crate) cpus: Vec<u16>,
}

/// What is done on the desktop.
#[derive(Clone, Debug)]
pub(crate) enum DesktopWork {
    /// Starts this command in the terminal, and ends it when its window is drawn.
    Launch(String),
    /// Turns pages in a viewer.
    Page,
}

/// What is said between the client and its thread.
#[derive(Debug, Default)]
struct Signals {
    /// It does its work, not just prepares for it.
    working: AtomicBool,
    stop: AtomicBool,
}

/// A running client. Dropping it ends it.
pub(crate) struct DesktopClient {
    signals: Arc<Signals>,
    thread: Option<JoinHandle<Result<Vec<Sample>, LoadError>>>,
}

impl DesktopClient {
    /// Begins; does not wait until it is prepared.
    pub(crate) fn start(config: DesktopConfig) -> DesktopClient {
        let signals = Arc::new(Signals::default());
        let thread = std::thread::spawn({
            let signals = Arc::clone(&signals);
            move || run(&config, &signals)
        });
        DesktopClient { signals, thread: Some(thread) }
    }

    pub(crate) fn is_working(&self) -> bool {
        self.signals.working.load(Ordering::Relaxed)
    }

    /// Whether the client ended before it was told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the client and what it has started on the desktop. What it waits for does not count.
    pub(crate) fn finish(mut self) -> Result<Vec<Sample>, LoadError> {
        self.signals.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for DesktopClient {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Nobody wants its result.
            let _ = thread.join();
        }
    }
}

/// Waits until somebody can type into a desktop's terminal, as long as `goes_on` says so.
pub(crate) fn wait_for_desktop(
    vm: &str,
    socket: &Path,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), LoadError> {
    let failed = |error: VncError| LoadError::Desktop { vm: vm.to_owned(), reason: error.to_string() };
    let mut vnc = Vnc::connect(socket).map_err(failed)?;
    let what = "a terminal, which its session shows first";
    match wait_until(&mut vnc, goes_on, what, has_terminal) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn run(config: &DesktopConfig, signals: &Signals) -> Result<Vec<Sample>, LoadError> {
    // The client stands for a separate machine: what runs beside it here must not delay its clock.
    frontdesk_linux::realtime::run_ahead(&config.cpus)
        .map_err(|error| LoadError::Setup { vm: config.vm.clone(), reason: error.to_string() })?;
    let mut samples = Vec::new();
    match work(config, signals, &mut samples) {
        Ok(()) => Ok(samples),
        Err(error) => Err(LoadError::Desktop { vm: config.vm.clone(), reason: error.to_string() }),
    }
}

fn work(config: &DesktopConfig, signals: &Signals, samples: &mut Vec<Sample>) -> Result<(), VncError> {
    let mut vnc = Vnc::connect(&config.socket)?;
    let goes_on = &mut || !signals.stop.load(Ordering::Relaxed);
    let mut rng = SmallRng::seed_from_u64(config.seed);
    let mut think = || rng.random_range(config.think[0]..=config.think[1]);
    // A program that was told to end before its window came may have come up since.
    if wait_until(&mut vnc, goes_on, "a terminal", has_terminal)? && close(&mut vnc, goes_on)? {
        match &config.work {
            DesktopWork::Launch(command) => {
                // The first one of a run reads from the disk what all others find in memory.
                let mut goes = launch(&mut vnc, command, goes_on)?.is_some() && close(&mut vnc, goes_on)?;
                signals.working.store(goes, Ordering::Relaxed);
                while goes && pause(&mut vnc, think(), goes_on)? {
                    let Some(sample) = launch(&mut vnc, command, goes_on)? else { break };
                    samples.push(sample);
                    goes = close(&mut vnc, goes_on)?;
                }
            }
            DesktopWork::Page => {
                if launch(&mut vnc, VIEWER, goes_on)?.is_some() {
                    leave_terminal(&mut vnc, goes_on)?;
                    signals.working.store(true, Ordering::Relaxed);
                    for number in 0_u32.. {
                        if !pause(&mut vnc, think(), goes_on)? {
                            break;
                        }
                        let down = (number / PAGES).is_multiple_of(2);
                        let sent = Instant::now();
                        // As much as PageDown and PageUp for a viewer, and Enter tells that something begins.
                        if down {
                            vnc.key(keys::RETURN)?;
                        } else {
                            vnc.key_with(keys::SHIFT, keys::RETURN)?;
                        }
                        match settled(&mut vnc, sent, goes_on, "another page", |_| true)? {
                            Some(sample) => samples.push(sample),
                            None => break,
                        }
                    }
                }
            }
        }
    }
    // The next arm finds an empty desktop.
    close(&mut vnc, &mut || true).map(drop)
}

/// Starts a program from the terminal and waits until it is drawn; nothing if it is not to wait any longer.
fn launch(
    vnc: &mut Vnc,
    command: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Sample>, VncError> {
    let line = format!("{command} > /dev/null 2>&1");
    let begin = Instant::now();
    loop {
        if !reach_terminal(vnc, goes_on)? {
            return Ok(None);
        }
        if write(vnc, &line)? {
            break;
        }
        if begin.elapsed() > PATIENCE {
            return Err(not_shown(&format!("what is typed, {line:?}")));
        }
        start_over(vnc)?;
    }
    let sent = Instant::now();
    vnc.key(keys::RETURN)?;
    let what = format!("a window after {command:?} was typed");
    settled(vnc, sent, goes_on, &what, |screen| screen.differing(PROGRAMS, BACKGROUND) > WINDOW_PIXELS)
}

/// Gives the keyboard to the terminal, at whose prompt nothing has been typed; false if it is not to wait any
/// longer.
fn reach_terminal(vnc: &mut Vnc, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, VncError> {
    // The keyboard goes where the pointer is, some time later. Then the terminal shows it by its cursor, or,
    // if it had the keyboard already, another prompt.
    vnc.click(IN_TERMINAL.0, IN_TERMINAL.1)?;
    let begin = Instant::now();
    let mut clicked = begin;
    while goes_on() {
        if begin.elapsed() > PATIENCE {
            return Err(not_shown("what is typed into the terminal"));
        }
        // A guest that waits for a CPU may lose a click, too.
        if clicked.elapsed() > CLICK_AGAIN {
            start_over(vnc)?;
            vnc.click(IN_TERMINAL.0, IN_TERMINAL.1)?;
            clicked = Instant::now();
        }
        vnc.key(keys::RETURN)?;
        if terminal_changes(vnc, RESTLESS)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Types a text into the terminal; false if it is not all shown. Each letter waits for the one before to be
/// shown: a virtio keyboard holds some sixteen, and drops what a guest that waits for a CPU does not take, be
/// it that a key was let go.
fn write(vnc: &mut Vnc, text: &str) -> Result<bool, VncError> {
    for letter in text.chars() {
        vnc.letter(letter)?;
        if !terminal_changes(vnc, LETTER)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whoever sees nothing of what they type presses and lets go of keys that may seem to be held, gives up the
/// line, and comes back with the pointer from elsewhere.
fn start_over(vnc: &mut Vnc) -> Result<(), VncError> {
    vnc.key(keys::SHIFT)?;
    vnc.key_with(keys::CONTROL, u32::from('c'))?;
    vnc.point_at(FREE.0, FREE.1)
}

/// Gives the keyboard to a program; false if it is not to wait any longer.
fn leave_terminal(vnc: &mut Vnc, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, VncError> {
    let begin = Instant::now();
    vnc.click(IN_PROGRAM.0, IN_PROGRAM.1)?;
    while goes_on() {
        if terminal_changes(vnc, QUIET)? {
            return Ok(true);
        }
        if begin.elapsed() > PATIENCE {
            return Err(not_shown("a terminal without the keyboard"));
        }
    }
    Ok(false)
}

/// Whether the terminal changes within `time`, if only its cursor, which shows whether it has the keyboard.
fn terminal_changes(vnc: &mut Vnc, time: Duration) -> Result<bool, VncError> {
    let end = Instant::now() + time;
    while let Some(update) = vnc.update(end)? {
        if update.areas.iter().any(|area| area.common(TERMINAL) > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Ends what runs in the terminal and waits until it is gone; false if it is not to wait any longer.
fn close(vnc: &mut Vnc, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, VncError> {
    let begin = Instant::now();
    while reach_terminal(vnc, goes_on)? {
        // A shell that is just about to start a program loses the key, and so it may take another.
        vnc.key_with(keys::CONTROL, u32::from('c'))?;
        let pressed = Instant::now();
        while goes_on() && pressed.elapsed() < RESTLESS {
            if is_empty(vnc.screen()) {
                return Ok(true);
            }
            vnc.update(Instant::now() + LOOK)?;
        }
        if begin.elapsed() > PATIENCE {
            return Err(not_shown("an empty desktop after Ctrl-C"));
        }
    }
    Ok(false)
}

fn has_terminal(screen: &Screen) -> bool {
    let terminal = screen.pixel(IN_TERMINAL.0, IN_TERMINAL.1) == Some(TERMINAL_COLOUR);
    terminal
        && screen.pixel(FREE.0, FREE.1) == Some(BACKGROUND)
        && screen.differing(TERMINAL, TERMINAL_COLOUR) >= PROMPT_PIXELS
}

fn is_empty(screen: &Screen) -> bool {
    has_terminal(screen) && screen.differing(PROGRAMS, BACKGROUND) == 0
}

/// Waits until the picture shows what is wanted; false if it is not to wait any longer.
fn wait_until(
    vnc: &mut Vnc,
    goes_on: &mut dyn FnMut() -> bool,
    what: &str,
    shown: impl Fn(&Screen) -> bool,
) -> Result<bool, VncError> {
    let begin = Instant::now();
    let mut stirred = begin;
    while !shown(vnc.screen()) {
        if !goes_on() {
            return Ok(false);
        }
        if begin.elapsed() > PATIENCE {
            return Err(not_shown(what));
        }
        if vnc.update(Instant::now() + LOOK)?.is_none() && stirred.elapsed() > RESTLESS {
            stirred = Instant::now();
            vnc.stir()?;
        }
    }
    Ok(true)
}

/// Waits until programs have drawn something after `sent`, it shows what is wanted and no longer changes. The
/// response is the time of the last change. Nothing if it is not to wait any longer.
fn settled(
    vnc: &mut Vnc,
    sent: Instant,
    goes_on: &mut dyn FnMut() -> bool,
    what: &str,
    shown: impl Fn(&Screen) -> bool,
) -> Result<Option<Sample>, VncError> {
    let mut changed: Option<Instant> = None;
    let mut stirred = sent;
    while goes_on() {
        if let Some(update) = vnc.update(Instant::now() + LOOK)? {
            let pixels: u32 = update.areas.iter().map(|area| area.common(PROGRAMS)).sum();
            if pixels > CHANGE_PIXELS {
                changed = Some(update.at);
            }
        }
        match changed {
            Some(at) if at.elapsed() > QUIET && shown(vnc.screen()) => {
                return Ok(Some(Sample { sent, response: at.saturating_duration_since(sent) }));
            }
            _ if sent.elapsed() > PATIENCE => return Err(not_shown(what)),
            _ if changed.unwrap_or(sent).max(stirred).elapsed() > RESTLESS => {
                stirred = Instant::now();
                vnc.stir()?;
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Thinks, while the picture goes on; false if it is not to wait any longer.
fn pause(vnc: &mut Vnc, time: Duration, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, VncError> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if !goes_on() {
            return Ok(false);
        }
        vnc.update(end.min(Instant::now() + LOOK))?;
    }
    Ok(goes_on())
}

fn not_shown(what: &str) -> VncError {
    VncError::Protocol(format!("the screen does not show {what}, within {PATIENCE:?}"))
}
