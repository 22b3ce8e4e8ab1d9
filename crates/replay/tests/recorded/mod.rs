//! The recorded stream of the repository, and recordings of other records.

use frontdesk_record::{Record, Recorder, Recording};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// A run of `scenarios/echo-mixed.toml` on six real VMs.
pub(crate) const ECHO_MIXED: &[u8] = include_bytes!("../../../frontdesk/tests/data/echo-mixed.fdsk");

pub(crate) fn recording(bytes: &[u8]) -> Recording<&[u8]> {
    Recording::new(bytes, "test".to_owned()).unwrap()
}

/// The records of [`ECHO_MIXED`].
pub(crate) fn records() -> Vec<Record> {
    recording(ECHO_MIXED).map(Result::unwrap).collect()
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A recording of these records.
pub(crate) fn written<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<u8> {
    let sink = Shared::default();
    let mut recorder = Recorder::start(sink.clone(), "test".to_owned()).unwrap();
    records.into_iter().for_each(|record| recorder.push(record));
    recorder.finish().unwrap();
    sink.0.lock().unwrap().clone()
}
