//! A running QEMU VM: its threads, disks and taps, and what QEMU's answers say of them.

use crate::process;
use crate::qmp::{QmpError, excerpt};
use crate::unheard::Unheard;
use frontdesk_linux::Tap;
use frontdesk_linux::sched::ThreadId;
use serde_json::Value;
use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
};

/// The engine follows no more vCPUs of a VM.
const MAX_VCPUS: usize = 512;
/// More threads than any VM has for I/O: those of virtio devices with a queue for each vCPU.
const MAX_EMULATORS: usize = 64;

/// Why a VM cannot be discovered.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The conversation failed.
    #[error("QMP socket {}: {source}", path.display())]
    Qmp {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        source: QmpError,
    },
    /// The process that listens is not a QEMU of this host.
    #[error("QMP socket {}: process {pid} listens, which is {found}, not QEMU{advice}", path.display())]
    NotQemu {
        /// The socket.
        path: PathBuf,
        /// The process, 0 if it is in a pid namespace this one does not see.
        pid: i32,
        /// What it is.
        found: String,
        /// What the reader can do, or nothing.
        advice: &'static str,
    },
    /// Somebody else may have put the socket there.
    #[error("QMP socket {}: {cause}", path.display())]
    Place {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// QEMU's answer makes no sense on this host.
    #[error("QMP socket {}: {command} answers what cannot be used: {cause}", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The command.
        command: &'static str,
        /// What is wrong.
        cause: String,
    },
    /// All vCPUs share a thread.
    #[error(
        "the VM at QMP socket {} runs all its vCPUs in one thread, which cannot be boosted one by one; start it with \
         -accel tcg,thread=multi",
        path.display()
    )]
    OneThread {
        /// The socket.
        path: PathBuf,
    },
    /// Of libvirt's VMs only `/proc` tells.
    #[error("libvirt's VM of process {pid}: {cause}")]
    Libvirt {
        /// The process.
        pid: i32,
        /// What is wrong.
        cause: String,
    },
    /// It ended meanwhile.
    #[error("the VM at QMP socket {} (process {pid}) ended while it was examined: {source}", path.display())]
    Ended {
        /// The socket.
        path: PathBuf,
        /// The process.
        pid: i32,
        /// What failed.
        source: io::Error,
    },
}

/// A virtual disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name of the drive, or path of the device it is attached to.
    pub device: String,
    /// Name of its block node, if a medium is inserted.
    pub node: Option<String>,
    /// What QEMU says it is stored in, if a medium is inserted.
    pub file: Option<String>,
}

/// A running VM.
#[derive(Debug)]
pub struct QemuVm {
    /// As given with `-name`.
    pub name: Option<String>,
    /// QEMU's process.
    pub pid: i32,
    /// What QEMU calls its state: `running`, `paused`, ...; `None` if it cannot be asked.
    pub status: Option<String>,
    /// The threads of its vCPUs, by index.
    pub vcpus: Vec<(u16, ThreadId)>,
    /// The threads of its I/O path: main loop, then I/O threads and vhost workers by number.
    pub emulators: Vec<ThreadId>,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Its tap devices, each once. They are taken to be in QEMU's own network namespace.
    pub taps: Vec<Tap>,
    /// The socket of the port of its guest's reporter, if it has one.
    pub port: Option<PathBuf>,
    /// Paths of its I/O of which nothing is heard, each once.
    pub unheard: Vec<Unheard>,
    pub(crate) pidfd: OwnedFd,
}

impl QemuVm {
    /// Becomes readable when the process ends.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether its vCPUs are known to be stopped.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.status.as_deref().is_some_and(|status| status != "running")
    }

    /// The main thread, which tells the process from any other that ever has its number.
    #[must_use]
    pub fn main_thread(&self) -> ThreadId {
        self.emulators[0]
    }

    /// How many threads its process has, or none if it has ended: cheap to ask, and another number when vCPUs
    /// come or go.
    #[must_use]
    pub fn thread_count(&self) -> u64 {
        process::thread_count(self.pid)
    }
}

/// The vCPUs by index, each once. Those beyond what the engine follows are left out: their threads are other
/// threads of QEMU's.
pub(crate) fn by_index(mut vcpus: Vec<(u16, ThreadId)>) -> Vec<(u16, ThreadId)> {
    vcpus.retain(|(index, _)| usize::from(*index) < MAX_VCPUS);
    vcpus.sort_unstable_by_key(|(index, thread)| (*index, thread.tid));
    vcpus.dedup_by_key(|(index, _)| *index);
    vcpus
}

/// The main thread and the others in one order, however they were found. One VM cannot take the room of all.
pub(crate) fn in_order(main: ThreadId, mut others: Vec<ThreadId>) -> Vec<ThreadId> {
    others.retain(|thread| *thread != main);
    others.sort_unstable_by_key(|thread| thread.tid);
    others.dedup();
    others.truncate(MAX_EMULATORS);
    others.insert(0, main);
    others
}

pub(crate) fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// The thread of QEMU's that an answer names. A number that is not one of its threads is a lie, or a
/// namespace's.
pub(crate) fn own_thread(pid: i32, tid: i64) -> Result<ThreadId, String> {
    i32::try_from(tid)
        .ok()
        .and_then(|tid| ThreadId::of(pid, tid))
        .ok_or_else(|| format!("thread {tid} is not one of process {pid}"))
}

pub(crate) fn parse_vcpus(answer: &Value, pid: i32) -> Result<Vec<(u16, ThreadId)>, String> {
    let list = answer.as_array().filter(|list| !list.is_empty()).ok_or("no list of vCPUs")?;
    list.iter()
        .take(MAX_VCPUS)
        .map(|cpu| {
            let index =
                cpu.get("cpu-index").and_then(Value::as_u64).and_then(|index| u16::try_from(index).ok());
            let index = index.ok_or_else(|| format!("no usable index in {}", excerpt(&cpu.to_string())))?;
            let tid = cpu
                .get("thread-id")
                .and_then(Value::as_i64)
                .ok_or_else(|| format!("no thread in {}", excerpt(&cpu.to_string())))?;
            Ok((index, own_thread(pid, tid)?))
        })
        .collect()
}

pub(crate) fn parse_io_threads(answer: &Value, pid: i32) -> Result<Vec<ThreadId>, String> {
    let list = answer.as_array().ok_or("no list of I/O threads")?;
    list.iter()
        .map(|thread| {
            let tid = thread.get("thread-id").and_then(Value::as_i64);
            own_thread(pid, tid.ok_or_else(|| format!("no thread in {}", excerpt(&thread.to_string())))?)
        })
        .collect()
}

/// Disks are told to people and to the disk policy only, hence what is missing is left out.
pub(crate) fn parse_disks(answer: &Value) -> Vec<Disk> {
    let drives = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    drives
        .iter()
        .map(|drive| {
            let named = text(drive, "device").filter(|name| !name.is_empty());
            let inserted = drive.get("inserted");
            Disk {
                device: named.or_else(|| text(drive, "qdev")).unwrap_or_default(),
                node: inserted.and_then(|medium| text(medium, "node-name")),
                file: inserted.and_then(|medium| text(medium, "file")),
            }
        })
        .collect()
}

/// Takes an answer, which may be anything, for each of those that are asked for.
#[cfg(any(test, fuzzing))]
#[allow(clippy::unwrap_used)] // What panics is found.
pub(crate) fn take(answer: &Value) {
    let pid = i32::try_from(std::process::id()).unwrap();
    let entries = answer.as_array().map_or(0, Vec::len);
    assert!(
        parse_vcpus(answer, pid).is_ok_and(|vcpus| vcpus.len() == entries)
            || parse_vcpus(answer, pid).is_err()
    );
    assert!(parse_io_threads(answer, pid).map_or(0, |threads| threads.len()) <= entries);
    assert_eq!(parse_disks(answer).len(), entries);
    let _ = text(answer, "status");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_thread_of_another_process_is_a_lie() {
        let own = std::process::id().cast_signed();
        assert!(parse_vcpus(&json!([{"cpu-index": 0, "thread-id": own}]), own).is_ok());
        for answer in [
            json!([{"cpu-index": 0, "thread-id": 1}]),
            json!([{"cpu-index": 0, "thread-id": 4_294_967_297_u64 + u64::from(own.unsigned_abs())}]),
            json!([{"cpu-index": 65536, "thread-id": own}]),
            json!([{"cpu-index": -1, "thread-id": own}]),
            json!([{"cpu-index": 0}]),
            json!([]),
            json!({}),
        ] {
            assert!(parse_vcpus(&answer, own).is_err(), "{answer}");
        }
        assert!(parse_io_threads(&json!([{"id": "a", "thread-id": 1}]), own).is_err());
        assert!(parse_io_threads(&json!([]), own).unwrap().is_empty());
    }

    /// An index that the engine does not follow hides no thread among those that it does.
    #[test]
    fn a_vcpu_has_an_index_of_its_own_that_is_followed() {
        let thread = |tid| ThreadId { pid: 1, tid, started: 0 };
        let told = [(3, 7), (0, 9), (60_000, 4), (512, 6), (0, 5), (511, 8)];
        let vcpus = by_index(told.map(|(index, tid)| (index, thread(tid))).to_vec());
        assert_eq!(vcpus, [(0, thread(5)), (3, thread(7)), (511, thread(8))]);
    }

    #[test]
    fn disks_without_a_medium_have_no_file() {
        let disks = parse_disks(&json!([
            {"device": "", "qdev": "/machine/peripheral/a", "inserted": {"node-name": "n", "file": "/images/a"}},
            {"device": "cd0"},
        ]));
        assert_eq!(disks[0].device, "/machine/peripheral/a");
        assert_eq!(disks[0].file.as_deref(), Some("/images/a"));
        assert_eq!(disks[1], Disk { device: "cd0".into(), node: None, file: None });
        assert!(parse_disks(&json!("nonsense")).is_empty());
    }

    /// JSON of any shape, mostly with the keys and types that are looked for.
    fn json_value() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
            Just(Value::from(std::process::id())),
        ];
        const KEYS: &[&str] =
            &["cpu-index", "thread-id", "device", "qdev", "inserted", "node-name", "file", "status"];
        leaf.prop_recursive(4, 64, 8, |inner| {
            let object = prop::collection::vec((prop::sample::select(KEYS), inner.clone()), 0..6);
            prop_oneof![
                prop::collection::vec(inner, 0..6).prop_map(Value::from),
                object.prop_map(|pairs| pairs
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn fuzz_answers(answer in json_value()) {
            super::take(&answer);
        }
    }
}
