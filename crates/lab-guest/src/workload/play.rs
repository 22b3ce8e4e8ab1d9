//! A film on the desktop. The workload's own process reads what the player says of its frames.

use super::process::{WorkloadError, failed, ready};
use super::program::enter_debian;
use crate::report::ReportRecorder;
use frontdesk_lab_guest::StampKind;
use frontdesk_workload::Film;
use std::convert::Infallible;
use std::io::{BufReader, Read};
use std::process::{Command, Stdio};

/// The player, on the desktop's display and sound server: late frames are dropped, and the film never ends.
/// With correct-pts, its choice for some formats, it counts no frames.
const PLAYER: [&str; 11] = [
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
];

/// What it says is no longer than this at a time.
const LONGEST_LINE: usize = 4096;

/// Plays a film in a window with its corner there.
pub(super) fn run(
    film: Film,
    at: [u16; 2],
    mut recorder: ReportRecorder,
) -> Result<Infallible, WorkloadError> {
    enter_debian("the player")?;
    let film = match film {
        Film::Mpeg4 => "/films/mpeg4.avi",
        Film::H264 => "/films/h264.mkv",
    };
    let mut player = Command::new("/usr/local/bin/on-desktop")
        .args(PLAYER)
        .args(["-geometry", &format!("{}:{}", at[0], at[1])])
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
        if let Some(frames) = PlayerFrames::of(&text) {
            let all = match counted {
                None => {
                    ready();
                    frames
                }
                Some(before) => {
                    let (new, all) = frames.since(before);
                    recorder.count(new.shown, 0)?;
                    (0..new.shown).try_for_each(|_| recorder.stamp(StampKind::Frame))?;
                    (0..new.late).try_for_each(|_| recorder.stamp(StampKind::LateFrame))?;
                    all
                }
            };
            counted = Some(all);
        } else if !text.trim().is_empty() {
            last = text;
        }
    }
    let status = player.wait()?;
    Err(format!("the player ended ({status}): {}", last.trim()).into())
}

/// What became of the frames so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlayerFrames {
    decoded: u64,
    shown: u64,
    late: u64,
}

impl PlayerFrames {
    /// If this is a line of the player's status, as in
    /// `A:   3.0 V:   3.0 A-V:  0.000 ct:  0.012  73/ 73 12%  3%  0.6% 2 0`: frames decoded, percentages,
    /// frames dropped.
    fn of(line: &str) -> Option<PlayerFrames> {
        let (_, after) = line.split_once("V:").filter(|(before, _)| before.starts_with("A:"))?;
        let (decoded, after) = after.split_once('/')?;
        let decoded: u64 = decoded.split_whitespace().last()?.parse().ok()?;
        let (_, after) = after.rsplit_once('%')?;
        let late: u64 = after.split_whitespace().next()?.parse().ok()?;
        Some(PlayerFrames { decoded, shown: decoded.checked_sub(late)?, late })
    }

    /// Those after `before`, and what there are in all. The player begins to count anew when the film begins
    /// anew. It may count a frame as late before it counts it as decoded: what is then shown is one less for
    /// a moment, which is no new beginning.
    fn since(self, before: PlayerFrames) -> (PlayerFrames, PlayerFrames) {
        if self.decoded < before.decoded || self.late < before.late {
            return (self, self);
        }
        let all = PlayerFrames { shown: self.shown.max(before.shown), ..self };
        let new = |now: u64, then: u64| now.saturating_sub(then);
        let new = PlayerFrames {
            decoded: new(all.decoded, before.decoded),
            shown: new(all.shown, before.shown),
            late: new(all.late, before.late),
        };
        (new, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_what_the_player_says_it_has_shown() {
        let of = PlayerFrames::of;
        let early = of("A:   3.0 V:   3.0 A-V:  0.000 ct:  0.012  73/ 73 12%  3%  0.6% 2 0 ").unwrap();
        assert_eq!(early, PlayerFrames { decoded: 73, shown: 71, late: 2 });
        let last =
            of("A: 30.0 (30.0) of 30.0 (30.0) V: 30.0 A-V: -0.002 ct: 0.1 720/700 50% 9% 1.1% 20 0").unwrap();
        assert_eq!(last, PlayerFrames { decoded: 720, shown: 700, late: 20 });
        assert_eq!(last.since(early), (PlayerFrames { decoded: 647, shown: 629, late: 18 }, last));
        assert_eq!(early.since(last), (early, early), "the film began anew");
        for other in [
            "",
            "VO: [x11] 640x354 => 640x354 Planar YV12",
            "A:   0.1 V:   0.0 A-V:  0.1 ct:  0.0   ??% ??% ??,?% 0 0",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
    /// As with the H.264 film beside tasks that compute.
    #[test]
    fn a_frame_that_is_late_before_it_is_decoded_is_no_new_beginning() {
        let lines = [(300, 10), (300, 11), (301, 11), (302, 11), (303, 12)];
        let mut all = PlayerFrames { decoded: 300, shown: 290, late: 10 };
        let (mut shown, mut late) = (0, 0);
        for (decoded, dropped) in lines {
            let now = PlayerFrames { decoded, shown: decoded - dropped, late: dropped };
            let (new, counted) = now.since(all);
            (shown, late, all) = (shown + new.shown, late + new.late, counted);
        }
        assert_eq!((shown, late), (1, 2));
    }
}
