//! The programs one by one: which of them the kernel takes.

use super::process::{Heard, Probes};
use super::skeleton::FrontdeskSkelBuilder;
use crate::BpfError;
use crate::error::{advice, chain};
use crate::libbpf::{setup, silence_libbpf};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use std::mem::MaybeUninit;

/// The BPF programs, by name, and what each listens to.
pub const PROGRAMS: [(&str, &str); 10] = [
    ("on_switch", "tp_btf/sched_switch: threads get and lose a CPU"),
    ("on_waking", "tp_btf/sched_waking: who wakes a thread, as a guest's doorbell does"),
    ("on_wakeup", "tp_btf/sched_wakeup: sleeping threads become runnable"),
    ("on_transmit", "tp_btf/net_dev_start_xmit: packets are queued towards a VM"),
    ("on_receive", "tp_btf/netif_receive_skb: a VM replies"),
    ("on_read", "uprobe block_acct_start: QEMU takes a read of its guest"),
    ("on_read_done", "uprobe block_acct_done: QEMU has ended it"),
    ("on_display", "uprobe dpy_gfx_update: something is drawn on a display"),
    ("on_gpu", "uprobe virtio_gpu_ctrl_response: a graphics processor has completed something"),
    ("on_input", "uprobe qemu_input_event_send_impl: somebody uses a keyboard or a mouse"),
];

/// Loads each program of [`PROGRAMS`] by itself, attaches none, and reports those that are refused.
#[must_use]
pub fn probe() -> Vec<(&'static str, Result<(), BpfError>)> {
    silence_libbpf();
    PROGRAMS.map(|(program, _)| (program, probe_one(program))).into()
}

fn probe_one(program: &'static str) -> Result<(), BpfError> {
    let refused = |e: libbpf_rs::Error| BpfError::Program { program, cause: chain(&e), advice: advice() };
    let mut storage = MaybeUninit::uninit();
    let mut open = FrontdeskSkelBuilder::default().open(&mut storage).map_err(refused)?;
    for mut candidate in open.open_object_mut().progs_mut() {
        let wanted = candidate.name() == program;
        candidate.set_autoload(wanted);
    }
    open.load().map(drop).map_err(refused)
}

/// Sets the probes of a VM in the program `qemu`, and in the module with its virtio-gpu, as if this process
/// ran it, takes them out again, and reports those that could not be set.
///
/// # Errors
/// If the programs cannot be loaded.
pub fn probe_functions(qemu: &str, gpu_module: Option<&str>) -> Result<Vec<(Heard, BpfError)>, BpfError> {
    silence_libbpf();
    let mut storage = MaybeUninit::uninit();
    let open = FrontdeskSkelBuilder::default().open(&mut storage).map_err(setup("open the BPF object"))?;
    let skel = open.load().map_err(setup("load the BPF object"))?;
    // A process id always fits.
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    Ok(Probes::set(&skel.progs, own, qemu, gpu_module).into_failures())
}

pub(super) fn first_refused() -> Option<BpfError> {
    probe().into_iter().find_map(|(_, result)| result.err())
}
