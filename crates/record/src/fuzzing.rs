//! What a recording may hold: bodies of property tests, and of fuzzing with coverage (`fuzz/`).

#![allow(clippy::unwrap_used)] // What panics is found.

use crate::frame::{Encoder, header};
use crate::{Record, Recording};
use frontdesk_engine::reservation::Dispatcher;

/// A recording of one frame with this block, and with the checksum that it needs.
#[must_use]
pub fn framed(block: &[u8]) -> Vec<u8> {
    [&header()[..], &Encoder::new().unwrap().frame(block).unwrap()].concat()
}

/// What is read can be told: events to the last state of an engine, decisions to that of a dispatcher.
pub fn recording(bytes: &[u8]) {
    let Ok(recording) = Recording::new(bytes, "fuzzing".to_owned()) else { return };
    let (mut engine, mut dispatcher) = (None, Dispatcher::new(0));
    for record in recording.map_while(Result::ok) {
        match record {
            Record::State(state) => engine = Some(state),
            Record::Event(event) => engine.iter_mut().for_each(|engine| engine.on_event(&event)),
            Record::Dispatcher { state, .. } => dispatcher = *state,
            Record::Decision { event, .. } => dispatcher.on_event(&event),
            _ => {}
        }
        engine.iter_mut().for_each(|engine| while engine.poll_action().is_some() {});
        while dispatcher.poll_action().is_some() {}
    }
}
