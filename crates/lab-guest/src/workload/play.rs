//! A film on the desktop. The workload's own process reads what the player says of its frames.

use super::process::{WorkloadError, failed, ready};
use super::program::enter_debian;
use crate::report::ReportRecorder;
use frontdesk_workload::Film;
use std::convert::Infallible;
use std::io::{BufReader, Read};
use std::process::{Command, Stdio};

/// The player, on the desktop's display and sound server: late frames are dropped, and the film never ends.
/// With correct-pts, its choice for some formats, it counts no frames.
const PLAYER: [&str; 13] = [
    "mplayer",
    "-vo",
    "x11",
    "-ao",
    "pulse",
    "-framedrop",
    "-nocorrect-pts",
    "-loop",
    "0",
    "-nolirc",
    "-noconsolecontrols",
    "-geometry",
    "180:80",
];

/// What it says is no longer than this at a time.
const LONGEST_LINE: usize = 4096;

/// Plays a film.
pub(super) fn run(film: Film, mut recorder: ReportRecorder) -> Result<Infallible, WorkloadError> {
    enter_debian("the player")?;
    let film = match film {
        Film::Mpeg4 => "/films/mpeg4.avi",
        Film::H264 => "/films/h264.mkv",
    };
    let mut player = Command::new("/usr/local/bin/on-desktop")
        .args(PLAYER)
        .arg(film)
        .env_clear()
        .envs([("PATH", super::program::PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed("starting the player"))?;
    let output = player.stdout.take().ok_or("the player has no output")?;
    let mut line = Vec::new();
    let mut last = String::new();
    let mut counted = None;
    for byte in BufReader::new(output).bytes() {
        let byte = byte?;
        if byte != b'\r' && byte != b'\n' {
            if line.len() < LONGEST_LINE {
                line.push(byte);
            }
            continue;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        if let Some(shown) = frames_shown(&text) {
            match counted {
                None => ready(),
                // It begins to count anew when the film begins anew.
                Some(before) => recorder.count(shown.checked_sub(before).unwrap_or(shown), 0)?,
            }
            counted = Some(shown);
        } else if !text.trim().is_empty() {
            last = text;
        }
    }
    let status = player.wait()?;
    Err(format!("the player ended ({status}): {}", last.trim()).into())
}

/// Frames shown so far, if this is a line of the player's status, as in
/// `A:   3.0 V:   3.0 A-V:  0.000 ct:  0.012  73/ 73 12%  3%  0.6% 2 0`: frames decoded, percentages, frames
/// dropped.
fn frames_shown(line: &str) -> Option<u64> {
    let (_, after) = line.split_once("V:").filter(|(before, _)| before.starts_with("A:"))?;
    let (frames, after) = after.split_once('/')?;
    let frames: u64 = frames.split_whitespace().last()?.parse().ok()?;
    let (_, after) = after.rsplit_once('%')?;
    let dropped: u64 = after.split_whitespace().next()?.parse().ok()?;
    frames.checked_sub(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_what_the_player_says_it_has_shown() {
        let shown = frames_shown;
        assert_eq!(shown("A:   3.0 V:   3.0 A-V:  0.000 ct:  0.012  73/ 73 12%  3%  0.6% 2 0 "), Some(71));
        assert_eq!(
            shown("A: 30.0 (30.0) of 30.0 (30.0) V: 30.0 A-V: -0.002 ct: 0.1 720/700 50% 9% 1.1% 20 0"),
            Some(700)
        );
        for other in [
            "",
            "VO: [x11] 640x354 => 640x354 Planar YV12",
            "A:   0.1 V:   0.0 A-V:  0.1 ct:  0.0   ??% ??% ??,?% 0 0",
        ] {
            assert_eq!(shown(other), None, "{other}");
        }
    }
}
