//! What makes a Debian system a desktop.

use crate::cache::{CacheError, io_error};
use crate::command::{self, CommandError};
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Part of the name under which a system is kept: raise it when what this file makes changes. [`FILES`] are a
/// part of it, too.
const FORMAT: &str = "desktop-1";

/// Room for the packages while they are installed.
pub(crate) const ROOM_BYTES: u64 = 4 << 30;

/// A display server, a window manager, sound, a player with what makes its films, and office programs.
pub(crate) const PACKAGES: [&str; 25] = [
    "abiword",
    "adwaita-icon-theme",
    "alsa-utils",
    "dbus",
    "evince",
    "ffmpeg",
    "fonts-dejavu-core",
    "gnumeric",
    "libgdk-pixbuf2.0-bin",
    "mplayer",
    "netsurf-gtk",
    "openbox",
    "procps",
    "pulseaudio",
    "pulseaudio-utils",
    "shared-mime-info",
    "wget",
    "x11-utils",
    "x11-xkb-utils",
    "x11-xserver-utils",
    "xfonts-base",
    "xkb-data",
    "xserver-xorg-core",
    "xserver-xorg-input-evdev",
    "xterm",
];

/// What the desktop's own files are, and their modes.
const FILES: [(&str, &str, u32); 5] = [
    ("usr/local/bin/desktop-session", include_str!("session.sh"), 0o755),
    ("usr/local/bin/on-desktop", include_str!("on-desktop.sh"), 0o755),
    ("usr/local/lib/frontdesk/environment", include_str!("environment"), 0o644),
    ("etc/X11/xorg.conf.d/10-frontdesk.conf", include_str!("xorg.conf"), 0o644),
    ("etc/xdg/openbox/rc.xml", include_str!("openbox.xml"), 0o644),
];

/// The films: a picture that moves all over and a tone, 30 s at 24 frames a second, in two formats.
const FILM: [&str; 9] = [
    "-f",
    "lavfi",
    "-i",
    "mandelbrot=size=640x354:rate=24",
    "-f",
    "lavfi",
    "-i",
    "sine=frequency=440:r=44100",
    "-y",
];
const FILM_FORMATS: [&[&str]; 2] = [
    &["-t", "30", "-c:v", "mpeg4", "-q:v", "4", "-c:a", "libmp3lame", "-b:a", "96k", "/films/mpeg4.avi"],
    &[
        "-t",
        "30",
        "-c:v",
        "libx264",
        "-profile:v",
        "main",
        "-crf",
        "23",
        "-pix_fmt",
        "yuv420p",
        "-c:a",
        "libmp3lame",
        "-b:a",
        "96k",
        "/films/h264.mkv",
    ],
];

/// Folders whose caches are valid as long as their times are those of when they were made.
const CACHED: [&str; 3] = ["usr/share/fonts", "usr/share/icons", "usr/share/mime"];

/// A time of whole seconds, the same for all these folders.
const FOLDER_TIME: Duration = Duration::from_secs(1_700_000_000);

/// Pages of the document that a reader turns.
const PAGES: usize = 20;

/// What tells a desktop from another that was made by an earlier release.
pub(crate) fn recipe() -> impl Iterator<Item = &'static str> {
    ["", FORMAT].into_iter().chain(FILES.into_iter().flat_map(|(path, text, _)| [path, text]))
}

/// Makes the packages in `root` a desktop with documents and films.
pub(crate) fn set_up(root: &Path, say: &dyn Fn(&str)) -> Result<(), CacheError> {
    say("setting up the desktop");
    for (path, text, mode) in FILES {
        write(root, path, text.as_bytes(), mode)?;
    }
    write(root, "root/document.pdf", &document(), 0o644)?;
    write(root, "root/page.html", page().as_bytes(), 0o644)?;
    write(root, "root/sheet.csv", sheet().as_bytes(), 0o644)?;
    // mke2fs drops fractions of seconds, by which a guest would take the caches of fonts for outdated and
    // make them at each start.
    for folder in CACHED {
        let folder = root.join(folder);
        settle_times(&folder).map_err(io_error(&folder))?;
    }
    inside(root, "fc-cache", &["-s", "-f"])?;
    say("making films");
    let films = root.join("films");
    std::fs::create_dir(&films).map_err(io_error(&films))?;
    let arguments = ["-v", "error"].iter().chain(&FILM).chain(FILM_FORMATS.iter().copied().flatten());
    Ok(inside(root, "ffmpeg", &arguments.copied().collect::<Vec<_>>())?)
}

/// Runs a program of the system.
fn inside(root: &Path, program: &str, arguments: &[&str]) -> Result<(), CommandError> {
    command::run(Command::new("chroot").arg(root).arg(program).args(arguments), |_| ())
}

fn write(root: &Path, path: &str, data: &[u8], mode: u32) -> Result<(), CacheError> {
    let path = root.join(path);
    let folder = path.parent().unwrap_or(root);
    std::fs::create_dir_all(folder).map_err(io_error(folder))?;
    std::fs::write(&path, data).map_err(io_error(&path))?;
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(io_error(&path))
}

/// Gives a folder, and all folders in it, a time of whole seconds.
fn settle_times(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            settle_times(&entry.path())?;
        }
    }
    File::open(folder)?.set_modified(SystemTime::UNIX_EPOCH + FOLDER_TIME)
}

/// A document of text, as a PDF file.
fn document() -> Vec<u8> {
    // Objects 1 to 3 are the catalogue, the list of pages and the font; then come text and page in turn.
    let kids: String = (0..PAGES).map(|page| format!("{} 0 R ", 5 + 2 * page)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Count {PAGES} /Kids [{kids}] >>"),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    for page in 0..PAGES {
        let mut text = "BT /F1 12 Tf 60 760 Td 16 TL".to_owned();
        for line in 1..=42 {
            let words = "the quick brown fox jumps over the lazy dog";
            // Writing to a string cannot fail.
            let _ = write!(text, " (Page {} line {line}: {words}.) Tj T*", page + 1);
        }
        text += " ET";
        objects.push(format!("<< /Length {} >>\nstream\n{text}\nendstream", text.len()));
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {} 0 R \
             /Resources << /Font << /F1 3 0 R >> >> >>",
            4 + 2 * page
        ));
    }
    let mut pdf = "%PDF-1.4\n".to_owned();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (number, object) in objects.iter().enumerate() {
        let _ = writeln!(table, "{:010} 00000 n ", pdf.len());
        let _ = write!(pdf, "{} 0 obj\n{object}\nendobj\n", number + 1);
    }
    let begin = pdf.len();
    let _ = write!(
        pdf,
        "{table}trailer << /Size {} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n",
        objects.len() + 1
    );
    pdf.into_bytes()
}

/// A page for a browser.
fn page() -> String {
    let words = "some words to lay out and a <a href='#'>link</a>";
    let text: String = (1..=60).map(|number| format!("<p>Paragraph {number} with {words}.</p>\n")).collect();
    format!("<html><head><title>A page</title></head><body><h1>A page</h1>\n{text}</body></html>\n")
}

/// A table for a spreadsheet.
fn sheet() -> String {
    let row = |row: u32| (0..10).map(|column| (row * column).to_string()).collect::<Vec<_>>().join(",");
    (0..100).map(|number| row(number) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_says_truly_where_its_objects_are() {
        let pdf = document();
        let text = String::from_utf8(pdf.clone()).unwrap();
        let begin =
            text.rsplit_once("startxref\n").unwrap().1.lines().next().unwrap().parse::<usize>().unwrap();
        assert!(text[begin..].starts_with("xref\n"));
        let entries = text[begin..].lines().skip(3).take_while(|line| line.ends_with(" n "));
        let mut count = 0;
        for (number, entry) in entries.enumerate() {
            let offset: usize = entry[..10].parse().unwrap();
            assert!(text[offset..].starts_with(&format!("{} 0 obj\n", number + 1)), "object {}", number + 1);
            assert_eq!(entry.len() + 1, 20, "entries of 20 bytes");
            count += 1;
        }
        assert_eq!(count, 3 + 2 * PAGES);
    }

    #[test]
    fn folders_get_times_of_whole_seconds() {
        let home = tempfile::tempdir().unwrap();
        let inner = home.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        settle_times(home.path()).unwrap();
        let time = std::fs::metadata(inner).unwrap().modified().unwrap();
        assert_eq!(time.duration_since(SystemTime::UNIX_EPOCH).unwrap(), FOLDER_TIME);
    }
}
