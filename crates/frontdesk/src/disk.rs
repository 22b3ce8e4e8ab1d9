//! `frontdesk disk`.

use anyhow::Context;
use clap::Args;
use frontdesk_disk::{ServeConfig, VmDisk};
use frontdesk_disk_protocol::DEFAULT_SOCKET;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Serve VMs their disks: a vhost-user-blk back end for the VMs of one physical disk.
///
/// Each VM has a socket, NAME.sock in the folder for sockets, which QEMU connects to. The VMs share the disk
/// fairly, whatever each asks of it; while a daemon follows a VM, what a person in it waits for comes first,
/// within its share. Started again after it was killed, it goes on where it was: QEMU
/// connects again, and no write is lost or done twice. It needs no rights but to read and write its images.
#[derive(Args)]
#[command(after_help = "Examples:
  frontdesk disk --vm alice=/srv/alice.img --vm bob=/dev/vg0/bob --socket-dir /run/frontdesk-disk
  qemu-system-x86_64 -m 4G -object memory-backend-memfd,id=memory,size=4G,share=on -machine q35,memory-backend=memory \\
    -chardev socket,id=disk,path=/run/frontdesk-disk/alice.sock,reconnect=1 -device vhost-user-blk-pci,chardev=disk ...

docs/disk.md has libvirt's XML, and what to do for qcow2 images and snapshots.")]
pub(crate) struct DiskArgs {
    /// A VM's disk: a name of your choice, and a raw image or block device; once for each. With ,readonly the
    /// VM cannot write, and others may have the same image.
    #[arg(long = "vm", value_name = "NAME=IMAGE[,readonly]", required = true)]
    vms: Vec<VmDisk>,
    /// Folder for the sockets; must exist. Members of this process's group may connect.
    #[arg(long, value_name = "FOLDER")]
    socket_dir: PathBuf,
    /// Where the daemon (`frontdesk run`) tells which task asks and what a person does; need not be there.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    daemon: PathBuf,
    /// How much work the physical disk is given at a time at most, in requests. It is given less while it
    /// takes longer than 10 ms for each.
    #[arg(long, value_name = "REQUESTS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// The physical disk has an arm: VMs take turns of 100 ms, and the arm is kept for up to 8 ms for the
    /// next request of whom it serves, and up to 24 ms for a person. Set the kernel's scheduler for it to
    /// "none".
    #[arg(long)]
    arm: bool,
    /// Write each piece of work that is done to this file, with its class, the reason for it and the guest
    /// task that asked, as a line of JSON of some 300 bytes. A file that is there is replaced.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn main(args: &DiskArgs) -> anyhow::Result<ExitCode> {
    let stop = frontdesk_host::stop_signal().context("cannot handle signals")?;
    let stop: OwnedFd = stop.as_fd().try_clone_to_owned().context("cannot handle signals")?;
    let config = ServeConfig {
        daemon: args.daemon.clone(),
        depth: args.depth,
        arm: args.arm,
        trace: args.trace.clone(),
        ..ServeConfig::new(&args.vms, &args.socket_dir)
    };
    frontdesk_disk::serve(&config, stop)?;
    Ok(ExitCode::SUCCESS)
}
