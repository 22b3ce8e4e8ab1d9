//! The probes on functions of QEMU processes, set off the loop: the kernel takes some ten milliseconds for
//! each VM.

use super::skeleton::{FrontdeskProgs, FrontdeskSkel};
use crate::BpfError;
use crate::error::{chain, probe_cause};
use frontdesk_linux::of_root;
use libbpf_rs::libbpf_sys::{
    BPF_TRACE_UPROBE_MULTI, bpf_link_create, bpf_link_create_opts, bpf_link_create_opts__bindgen_ty_1,
    bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3,
};
use libbpf_rs::{ErrorKind, Link, ProgramMut, UprobeOpts};
use rustix::io::Errno;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::sync::Arc;

/// QEMU's module that holds the device virtio-gpu, where QEMU is built with modules.
pub const GPU_MODULE: &str = "hw-display-virtio-gpu.so";

/// The loaded programs.
pub(super) struct Programs(pub(super) FrontdeskSkel<'static>);

// SAFETY: once loaded, the object is not changed any more. What is called on it from several threads,
// attaching, reads a program's descriptor, name and type, and keeps what it makes in the link that it
// returns.
unsafe impl Send for Programs {}
// SAFETY: as above.
unsafe impl Sync for Programs {}

/// Sets probes in QEMU processes, on any thread.
#[derive(Clone)]
pub struct QemuProbes(pub(super) Arc<Programs>);

/// What is heard by probes in a QEMU process. One that cannot be set leaves the others as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Reads of disks.
    Reads,
    /// What is drawn on the display.
    Display,
    /// What the graphics processor, a virtio-gpu, has completed.
    Gpu,
    /// What a person does at the keyboard and the mouse.
    Input,
}

impl fmt::Display for Heard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Heard::Reads => "disk reads",
            Heard::Display => "display updates",
            Heard::Gpu => "completions of the graphics processor",
            Heard::Input => "keys and buttons",
        })
    }
}

/// The probes in one QEMU process. They are taken out when this is dropped, which takes as long as setting
/// them.
pub struct Probes {
    /// Held until they are dropped.
    links: Vec<Link>,
    failures: Vec<(Heard, BpfError)>,
}

impl Probes {
    /// What will not be heard, and why.
    #[must_use]
    pub fn failures(&self) -> &[(Heard, BpfError)] {
        &self.failures
    }

    pub(super) fn into_failures(self) -> Vec<(Heard, BpfError)> {
        self.failures
    }

    /// Takes them out without waiting for it.
    pub fn drop_elsewhere(self) {
        // If there can be no thread, this one has to wait.
        let _ = std::thread::Builder::new().name("probes".into()).spawn(move || drop(self));
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Probes")
    }
}

impl QemuProbes {
    /// Sets the probes in the QEMU process `pid`, as far as its functions can be probed: it may be built in
    /// another way, or the kernel have no uprobes. Nothing is heard of them before
    /// [`follow_process`](super::BpfSource::follow_process).
    #[must_use]
    pub fn attach(&self, pid: i32) -> Probes {
        // Whatever QEMU sees as its own program, also where it is in a container or was replaced by an
        // upgrade since.
        let qemu = format!("/proc/{pid}/exe");
        Probes::set(&self.0.0.progs, pid, &qemu, module(pid, GPU_MODULE).as_deref())
    }
}

impl Probes {
    /// Sets them in the process `pid`, at functions of these files. A VM without a virtio-gpu has not loaded
    /// its module, and nothing to tell of it.
    pub(super) fn set(
        programs: &FrontdeskProgs<'_>,
        pid: i32,
        qemu: &str,
        gpu_module: Option<&str>,
    ) -> Probes {
        let mut probes = Probes { links: Vec::new(), failures: Vec::new() };
        probes.add(
            Heard::Reads,
            [
                probe(&programs.on_read, pid, qemu, "block_acct_start"),
                probe(&programs.on_read_done, pid, qemu, "block_acct_done"),
                probe(&programs.on_read_done, pid, qemu, "block_acct_failed"),
            ],
        );
        probes.add(Heard::Display, [probe(&programs.on_display, pid, qemu, "dpy_gfx_update")]);
        probes.add(Heard::Input, [probe(&programs.on_input, pid, qemu, "qemu_input_event_send_impl")]);
        if let Some(module) = gpu_module {
            probes.add(Heard::Gpu, [probe(&programs.on_gpu, pid, module, "virtio_gpu_ctrl_response")]);
        }
        probes
    }

    fn add<const N: usize>(&mut self, heard: Heard, links: [Result<Link, BpfError>; N]) {
        match links.into_iter().collect::<Result<Vec<Link>, BpfError>>() {
            Ok(links) => self.links.extend(links),
            Err(error) => self.failures.push((heard, error)),
        }
    }
}

/// The file of a module that a process has loaded, as that sees it.
fn module(pid: i32, name: &str) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut paths = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| path);
    let path = paths.find(|path| path.rsplit('/').next() == Some(name))?;
    Some(format!("/proc/{pid}/root/{path}"))
}

/// Sets a probe on a function of a program, in one process that runs it.
fn probe(code: &ProgramMut<'_>, pid: i32, program: &str, function: &'static str) -> Result<Link, BpfError> {
    let fail = |cause: String| BpfError::Probe { pid, function, cause };
    // Its symbols are read with all our rights: not those of a file that somebody has made for that.
    let file =
        of_root(Path::new(program)).map_err(|error| fail(format!("{program} is not read: {error}")))?;
    let program = format!("/proc/self/fd/{}", file.as_raw_fd());
    if !hears_one_thread(code) {
        // For this kind the rights of BPF programs are enough. (By pattern: libbpf finds no names from a list
        // in a program without a symbol table, as distributions have it.)
        match code.attach_uprobe_multi(pid, &program, function, false, false) {
            // Linux before 6.6 has no such kind.
            Err(e) if e.kind() == ErrorKind::InvalidInput => {}
            result => return result.map_err(|e| fail(chain(&e))),
        }
    }
    let options = UprobeOpts { func_name: Some(function.to_owned()), ..UprobeOpts::default() };
    code.attach_uprobe_with_opts(pid, program, 0, options).map_err(|e| fail(probe_cause(&e)))
}

/// Whether probes of that kind are heard from the main thread only, as in Linux 6.6 to 6.9 before "bpf: Fix
/// multi-uprobe PID filtering logic". Libbpf tells it in the same way.
fn hears_one_thread(code: &ProgramMut<'_>) -> bool {
    let offset = 0;
    // No process has this number, and no program this path: the repaired kernel looks at the number first.
    let nothing = bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        path: c"/".as_ptr(),
        offsets: &raw const offset,
        cnt: 1,
        pid: u32::MAX,
        ..Default::default()
    };
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as u64,
        __bindgen_anon_1: bpf_link_create_opts__bindgen_ty_1 { uprobe_multi: nothing },
        ..Default::default()
    };
    let descriptor = code.as_fd().as_raw_fd();
    // SAFETY: the program, the options and what they point to outlive the call, which reads only. It makes no
    // link.
    let error = unsafe { bpf_link_create(descriptor, -1, BPF_TRACE_UPROBE_MULTI, &raw const options) };
    error == -Errno::BADF.raw_os_error()
}
