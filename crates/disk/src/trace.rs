//! A trace of what the disk does.

use frontdesk_disk_protocol::TracedWork;
use frontdesk_engine::Time;
use frontdesk_engine::disk::{DiskClass, DiskOperation, DiskRequest, Submit};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// What is done is in the file within this, while anything is done. In nanoseconds.
const FLUSH: u64 = 100_000_000;

/// Writes each piece of work that is done to a file. If the file takes no more, the disk goes on without.
#[derive(Debug)]
pub(crate) struct Trace {
    out: BufWriter<File>,
    /// What has been asked for, and is not done.
    under_way: HashMap<u64, TracedWork>,
    flushed: Time,
}

impl Trace {
    pub(crate) fn new(file: File) -> Trace {
        Trace { out: BufWriter::new(file), under_way: HashMap::new(), flushed: Time(0) }
    }

    /// A piece is asked for by a VM of this name.
    pub(crate) fn asked(&mut self, vm: &str, request: &DiskRequest) {
        let operation = match request.operation {
            DiskOperation::Read => "read",
            DiskOperation::Write => "write",
            DiskOperation::Flush => "flush",
            DiskOperation::Discard => "discard",
        };
        let work = TracedWork {
            vm: vm.to_owned(),
            operation: operation.to_owned(),
            offset: request.offset,
            bytes: request.bytes,
            class: String::new(),
            why: String::new(),
            vcpu: request.asker.map(|asker| asker.vcpu),
            task: request.asker.and_then(|asker| asker.task),
            asked_ns: request.at.0,
            begun_ns: request.at.0,
            done_ns: request.at.0,
        };
        self.under_way.insert(request.id, work);
    }

    /// The disk is given it.
    pub(crate) fn begun(&mut self, submit: &Submit, at: Time) {
        let Some(work) = self.under_way.get_mut(&submit.id) else { return };
        let class = match submit.class {
            DiskClass::High => "high",
            DiskClass::Common => "common",
            DiskClass::Low => "low",
        };
        (work.class, work.why, work.begun_ns) = (class.to_owned(), submit.why.to_string(), at.0);
    }

    /// It is done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn done(&mut self, id: u64, at: Time) -> io::Result<()> {
        let Some(work) = self.under_way.remove(&id) else { return Ok(()) };
        serde_json::to_writer(&mut self.out, &TracedWork { done_ns: at.0, ..work })?;
        self.out.write_all(b"\n")?;
        if at.since(self.flushed) >= FLUSH {
            self.flushed = at;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Writes what has not been.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_engine::disk::{Asker, Beyond, Verdict, Why};
    use frontdesk_engine::{TaskId, VmId};

    #[test]
    fn what_is_done_is_a_line_with_its_class_and_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let mut trace = Trace::new(File::create(&path).unwrap());
        let request = |id, at| DiskRequest {
            id,
            vm: VmId(0),
            asker: Some(Asker { vcpu: 1, task: Some(TaskId(5)) }),
            operation: DiskOperation::Read,
            offset: 4096,
            bytes: 512,
            at: Time(at),
        };
        let why = Why { verdict: Verdict::Follows, beyond: Some(Beyond::Weight) };
        for id in 0..2 {
            trace.asked("alice", &request(id, 10 + id));
            trace.begun(&Submit { id, vm: VmId(0), class: why.class(), why }, Time(20));
        }
        // One that was never asked for, as by a VM that was connected before.
        trace.done(7, Time(25)).unwrap();
        trace.done(1, Time(FLUSH + 30)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let work: TracedWork = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(
            (work.vm.as_str(), work.operation.as_str(), work.offset, work.bytes),
            ("alice", "read", 4096, 512)
        );
        assert_eq!((work.class.as_str(), work.vcpu, work.task), ("common", Some(1), Some(TaskId(5))));
        assert!(work.why.ends_with("beyond what its VM may have first"), "{}", work.why);
        assert_eq!([work.asked_ns, work.begun_ns, work.done_ns], [11, 20, FLUSH + 30]);
        trace.done(0, Time(FLUSH + 40)).unwrap();
        trace.end().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2, "each once");
    }
}
