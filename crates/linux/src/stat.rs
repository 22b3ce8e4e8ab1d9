//! What `/proc/PID/stat` tells.

use std::fs;

/// What the kernel tells of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name. What is no text in it is replaced.
    pub name: String,
    /// `R` if it wants to run, `T` if it is stopped, `Z` if it has ended; see proc(5).
    pub state: char,
    /// The process that started it.
    pub parent: i32,
    /// `PF_` flags.
    pub flags: u32,
    /// CPU time, in clock ticks.
    pub ticks: u64,
    /// Threads of the process.
    pub threads: u32,
    /// When it started, in clock ticks since boot; tells it from another with its number.
    pub started: u64,
}

impl Stat {
    /// A task of the kernel's own (`PF_KTHREAD` in its flags).
    #[must_use]
    pub const fn is_kernel_thread(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// Of the process or thread `pid`; `None` if it has ended.
    #[must_use]
    pub fn of_process(pid: i32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of the thread `tid` of process `pid`; `None` if there is no such thread in that process.
    #[must_use]
    pub fn of_thread(pid: i32, tid: i32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?)
    }

    /// The second field, the name, may hold any bytes, hence counting starts behind its last bracket.
    fn parse(stat: &[u8]) -> Option<Stat> {
        let text = String::from_utf8_lossy(stat);
        let (begin, rest) = text.rsplit_once(')')?;
        let (_, name) = begin.split_once('(')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Stat {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            ticks: number(11)?.checked_add(number(12)?)?,
            threads: fields.get(17)?.parse().ok()?,
            started: number(19)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_may_look_like_fields_and_be_no_text() {
        let bytes = b"7 (a\xc3) S 1 (b) R 3 7 7 0 -1 4194560 97 0 0 0 11 31 0 0 20 0 4 0 1234 1 1 1\n";
        let stat = Stat {
            name: "a\u{fffd}) S 1 (b".into(),
            state: 'R',
            parent: 3,
            flags: 4_194_560,
            ticks: 42,
            threads: 4,
            started: 1234,
        };
        assert_eq!(Stat::parse(bytes), Some(stat));
        assert_eq!(Stat::parse(b"7 (a) S 1"), None);
    }

    proptest! {
        #[test]
        fn fuzz_stat_files(
            text in "(\\PC|\n){0,200}|[0-9]+ \\(.{0,9}\\) [A-Z]( -?[0-9]{0,25}){0,30}",
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = (Stat::parse(text.as_bytes()), Stat::parse(&bytes));
            // Whatever the name is, what follows is understood.
            let stat = [b"7 (", &bytes[..], b") R 3 7 7 0 -1 64 97 0 0 0 11 31 0 0 20 0 4 0 1234 1 1 1"];
            prop_assert_eq!(Stat::parse(&stat.concat()).map(|stat| (stat.parent, stat.started)), Some((3, 1234)));
        }
    }
}
