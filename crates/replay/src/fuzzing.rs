//! A recording, which may hold anything, gone through in every way: the body of a test, and of fuzzing with
//! coverage (`fuzz/`).

use crate::{TimelineBuilder, compare, sample, verify};
use frontdesk_engine::{Config, Time};
use frontdesk_record::Recording;

/// Whatever is in it, there is a result or an error.
pub fn recording(bytes: &[u8]) {
    let open = || Recording::new(bytes, "fuzzing".to_owned());
    let Ok(mut recording) = open() else { return };
    let _ = verify(&mut recording);
    let _ = open().map(|mut recording| compare(&mut recording, &Config::default(), |_| ()));
    let _ = open().map(|mut recording| sample(&mut recording));
    let mut timeline = TimelineBuilder::new(Time(0), Time(u64::MAX));
    let records = open().into_iter().flatten().map_while(Result::ok);
    if records.map(|record| timeline.add(&record)).all(|added| added.is_ok()) {
        let _ = timeline.finish();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_recording_of_all_kinds_is_gone_through() {
        super::recording(include_bytes!("../../record/tests/corpus/5.3-kinds-middle.fdsk"));
    }
}
