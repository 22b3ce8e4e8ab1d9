//! The keyboard of a VM, over a QMP socket of its own.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// QEMU answers at once, unless it does not run.
const PATIENCE: Duration = Duration::from_secs(60);

/// A VM's keyboard.
#[derive(Debug)]
pub(crate) struct Keyboard(BufReader<UnixStream>);

impl Keyboard {
    /// Connects to the socket of a VM that runs.
    pub(crate) fn connect(socket: &Path) -> io::Result<Keyboard> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut keyboard = Keyboard(BufReader::new(stream));
        // Its greeting.
        keyboard.0.read_line(&mut String::new())?;
        keyboard.execute(&json!({"execute": "qmp_capabilities"}))?;
        Ok(keyboard)
    }

    /// Presses Enter, and returns when the VM has it; it is released a moment later.
    pub(crate) fn press_enter(&mut self) -> io::Result<()> {
        let keys = json!([{"type": "qcode", "data": "ret"}]);
        self.execute(&json!({"execute": "send-key", "arguments": {"keys": keys}}))
    }

    fn execute(&mut self, command: &Value) -> io::Result<()> {
        writeln!(self.0.get_mut(), "{command}")?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let answer: Value = serde_json::from_str(&line)?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if answer.get("event").is_none() {
                return Err(io::Error::other(format!("QEMU refuses {command}: {answer}")));
            }
        }
    }
}
