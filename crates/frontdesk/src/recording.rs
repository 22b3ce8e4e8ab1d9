//! Opening recordings, and what is common to the commands that read them.

use anyhow::Context;
use frontdesk_record::{Ending, Recording};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// A recording from a file or from standard input.
pub(crate) type AnyRecording = Recording<Box<dyn Read>>;

/// Opens a file; `-` is standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<AnyRecording> {
    let name = path.display().to_string();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
        Box::new(BufReader::new(file))
    };
    Ok(Recording::new(source, name)?)
}

/// What a recording can be written to: as it must be readable whatever ends the recorder, not standard
/// output.
pub(crate) fn new_file(name: &str) -> Result<PathBuf, &'static str> {
    match name {
        "-" => Err("a recording is written to a file, not to standard output"),
        name => Ok(name.into()),
    }
}

/// Tells people what of a recording is missing: its end, or what only a later release knows.
pub(crate) fn warn_if_incomplete(recording: &AnyRecording) {
    let left_out = recording.left_out();
    if left_out > 0 {
        let name = recording.name();
        eprintln!(
            "frontdesk: {name} is of a later release; records left out that this one does not know: {left_out}; \
             decisions may differ for that"
        );
    }
    if let Some(Ending::Cut { bytes }) = recording.ending() {
        let rest = match bytes {
            0 => String::new(),
            _ => format!("; {bytes} bytes of a last frame that is not whole were left out"),
        };
        let (name, records) = (recording.name(), recording.records());
        eprintln!(
            "frontdesk: {name} has no end, as if its recorder had been killed: {records} records were read{rest}"
        );
    }
}

/// Text from a recording, for a terminal: at most so many characters, and none that the terminal would obey.
pub(crate) fn shown(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    if text.chars().count() <= most {
        return text.chars().map(clean).collect();
    }
    text.chars().take(most.saturating_sub(1)).map(clean).chain(['…']).collect()
}
