//! How fast a recording is read and gone through: the recorded stream of the repository, again and again.

use frontdesk_record::Recording;
use frontdesk_replay::verify;
use std::time::{Duration, Instant};

const RECORDING: &[u8] = include_bytes!("../../frontdesk/tests/data/echo-mixed.fdsk");
/// Each is timed for at least this long.
const TIMING: Duration = Duration::from_secs(2);

fn main() {
    let records = rate(|| {
        let recording = Recording::new(RECORDING, "echo-mixed.fdsk".to_owned()).expect("a recording");
        recording.fold(0, |count, record| count + u64::from(record.is_ok()))
    });
    let events = rate(|| {
        let mut recording = Recording::new(RECORDING, "echo-mixed.fdsk".to_owned()).expect("a recording");
        verify(&mut recording).expect("not damaged").events
    });
    println!("reading a recording: {:.1} million records/s", records / 1e6);
    println!("replaying it:        {:.1} million events/s", events / 1e6);
}

/// What `work` returns, per second.
fn rate(work: impl Fn() -> u64) -> f64 {
    let begun = Instant::now();
    let mut done = 0;
    while begun.elapsed() < TIMING {
        done += work();
    }
    #[allow(clippy::cast_precision_loss)] // A figure for people.
    let done = done as f64;
    done / begun.elapsed().as_secs_f64()
}
