//! What files in /proc may hold, in which other processes have a say: bodies of property tests, and of
//! fuzzing with coverage (`fuzz/`).

use crate::cgroup::mounts::{parse, unescape};
use crate::sched::parse_start_time;

/// `/proc/PID/stat`: the start time is where it always is, whatever the name.
pub fn stat(bytes: &[u8]) {
    let found = parse_start_time(bytes);
    let named = [b"7 (".as_slice(), bytes, b") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 42 0"].concat();
    assert_eq!(parse_start_time(&named), Some(42), "{found:?} before");
}

/// `/proc/self/mountinfo`, and a path in it.
pub fn mountinfo(text: &str) {
    assert!(parse(text).len() <= text.lines().count());
    assert!(unescape(text).as_os_str().len() <= text.len());
}
