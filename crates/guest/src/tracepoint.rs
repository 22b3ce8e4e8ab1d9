//! The kernel's tracepoint `sched:sched_switch`: its number, and where in its records the fields are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where tracefs is, on kernels since 4.1.
const TRACEFS: &str = "/sys/kernel/tracing";

const EVENT: &str = "events/sched/sched_switch";

/// Bytes of a task's name in the kernel.
pub(crate) const COMM: usize = 16;

/// State bits of a task that will not run again: `EXIT_DEAD` and `EXIT_ZOMBIE`, as the tracepoint shows them.
const ENDED: u64 = 0x10 | 0x20;

/// Why the tracepoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracepointError {
    #[error(
        "cannot read {path}: {source}; it needs root, and tracefs: `mount -t tracefs tracefs {TRACEFS}`, on a kernel with CONFIG_FTRACE"
    )]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not as expected: {what}; this kernel is not supported")]
    Format { path: PathBuf, what: String },
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    fn of(self, record: &[u8]) -> Option<&[u8]> {
        record.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

/// The tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchedSwitch {
    /// What `perf_event_open(2)` takes.
    pub(crate) id: u64,
    prev_pid: Field,
    prev_state: Field,
    next_comm: Field,
    next_pid: Field,
}

/// A task switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    /// The thread that ran.
    pub(crate) prev: u32,
    /// Whether it has ended.
    pub(crate) prev_ended: bool,
    /// The thread that runs now; 0 if it is the idle one.
    pub(crate) next: u32,
    /// Its name, ended by a zero.
    pub(crate) next_comm: [u8; COMM],
}

impl SchedSwitch {
    /// Asks the running kernel.
    pub(crate) fn find() -> Result<SchedSwitch, TracepointError> {
        let read = |file: &str| {
            let path = Path::new(TRACEFS).join(EVENT).join(file);
            match fs::read_to_string(&path) {
                Ok(text) => Ok((path, text)),
                Err(source) => Err(TracepointError::Read { path, source }),
            }
        };
        let (path, id) = read("id")?;
        let what = format!("{:?} is no number", id.trim());
        let id = id.trim().parse().map_err(|_| TracepointError::Format { path, what })?;
        let (path, format) = read("format")?;
        SchedSwitch::parse(id, &format).map_err(|what| TracepointError::Format { path, what })
    }

    /// Takes what is in the file `format`; otherwise says what is wrong with it.
    fn parse(id: u64, format: &str) -> Result<SchedSwitch, String> {
        let field = |name: &str, size_wanted: &[usize]| {
            let field = format.lines().find_map(|line| parse_field(line, name));
            let field = field.ok_or_else(|| format!("no field {name}"))?;
            if !size_wanted.contains(&field.size) {
                return Err(format!("field {name} has {} bytes", field.size));
            }
            Ok(field)
        };
        Ok(SchedSwitch {
            id,
            prev_pid: field("prev_pid", &[4])?,
            prev_state: field("prev_state", &[4, 8])?,
            next_comm: field("next_comm", &[COMM])?,
            next_pid: field("next_pid", &[4])?,
        })
    }

    /// Reads a record; `None` if it is too short.
    pub(crate) fn decode(&self, record: &[u8]) -> Option<Switch> {
        let state = number(self.prev_state.of(record)?);
        Some(Switch {
            prev: u32::try_from(number(self.prev_pid.of(record)?)).ok()?,
            prev_ended: state & ENDED != 0,
            next: u32::try_from(number(self.next_pid.of(record)?)).ok()?,
            next_comm: self.next_comm.of(record)?.try_into().ok()?,
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A line like `field:pid_t prev_pid; offset:24; size:4; signed:1;` if it is about the field called `name`.
fn parse_field(line: &str, name: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let declared = declaration.rsplit(' ').next()?;
    let declared = declared.split_once('[').map_or(declared, |(name, _)| name);
    if declared != name {
        return None;
    }
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    Some(Field { offset, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: sched_switch
ID: 311
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;

print fmt: \"prev_comm=%s\", REC->prev_comm
";

    #[test]
    fn records_are_read_where_the_kernel_says() {
        let tracepoint = SchedSwitch::parse(311, FORMAT).unwrap();
        let mut record = vec![0; 64];
        record[24..28].copy_from_slice(&1000_i32.to_le_bytes());
        record[32] = 0x20;
        record[40..45].copy_from_slice(b"bash\0");
        record[56..60].copy_from_slice(&70_000_i32.to_le_bytes());
        let switch = tracepoint.decode(&record).unwrap();
        assert_eq!((switch.prev, switch.prev_ended, switch.next), (1000, true, 70_000));
        assert!(switch.next_comm.starts_with(b"bash\0"));
        record[32] = 0x02;
        assert!(!tracepoint.decode(&record).unwrap().prev_ended);
        for length in 0..60 {
            assert_eq!(tracepoint.decode(&record[..length]), None);
        }
    }

    #[test]
    fn an_unknown_layout_is_refused() {
        for (from, to, complaint) in [
            ("next_pid", "next_tid", "no field next_pid"),
            ("offset:56;\tsize:4", "offset:56;\tsize:8", "field next_pid has 8 bytes"),
            ("offset:24", "offset:-4", "no field prev_pid"),
            ("size:16", "size:32", "field next_comm has 32 bytes"),
        ] {
            let error = SchedSwitch::parse(1, &FORMAT.replace(from, to)).unwrap_err();
            assert_eq!(error, complaint);
        }
        assert!(SchedSwitch::parse(1, "").is_err());
        // A field beyond the end of each record.
        let far = FORMAT.replace("offset:56", "offset:18446744073709551615");
        assert_eq!(SchedSwitch::parse(1, &far).unwrap().decode(&[0; 64]), None);
    }
}
