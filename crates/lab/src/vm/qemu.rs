//! How QEMU is called.

use super::{DiskConfig, DiskKind, VmConfig};
use frontdesk_lab_guest::{CONTROL_PORT, IP_PARAMETER, REPORTER_PORT, TIME_SLICE_PARAMETER};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A screen of a size that Xorg need not guess, and devices for which Linux has drivers. No sound of a guest
/// is heard, but its sound card keeps time.
const DESKTOP: [(&str, &str); 7] = [
    ("device", "virtio-vga,xres=1024,yres=768,max_outputs=1"),
    ("device", "virtio-keyboard-pci"),
    ("device", "qemu-xhci"),
    ("device", "usb-tablet"),
    ("audiodev", "none,id=sound"),
    ("device", "intel-hda"),
    ("device", "hda-duplex,audiodev=sound"),
];

/// Where its sockets and logs are.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) qmp: PathBuf,
    pub(super) keyboard: PathBuf,
    pub(super) reporter: PathBuf,
    pub(super) vnc: PathBuf,
    pub(super) console: PathBuf,
    pub(super) stderr: PathBuf,
}

impl Files {
    pub(super) fn of(config: &VmConfig) -> Files {
        let file = |suffix| config.run_dir.join(format!("{}.{suffix}", config.name));
        Files {
            qmp: file("qmp"),
            keyboard: file("keys"),
            reporter: file("tasks"),
            vnc: file("vnc"),
            console: file("console.log"),
            stderr: file("qemu.log"),
        }
    }
}

/// Whether a file can be read past the page cache.
pub(super) fn has_direct_io(image: &Path) -> io::Result<bool> {
    // Also tells whether it is there and may be read.
    let kind = File::open(image)?.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is not a file"));
    }
    // Flags are bits: the sign has no meaning.
    let direct = OFlags::DIRECT.bits().cast_signed();
    let has = File::options().read(true).custom_flags(direct).open(image).is_ok();
    if !has {
        tracing::warn!(
            "{} is on a file system without direct I/O: its VM reads from memory",
            image.display()
        );
    }
    Ok(has)
}

/// QEMU's arguments. `disks` are those of `config`, each with whether it has direct I/O; `control` is the
/// guest's end of the control socket.
pub(super) fn arguments(
    config: &VmConfig,
    disks: &[(&DiskConfig, bool)],
    files: &Files,
    control: &OwnedFd,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: &str| arguments.extend([format!("-{option}").into(), value.into()]);
    add("name", &format!("{},debug-threads=on", config.name));
    if config.kvm {
        add("machine", "pc");
        add("cpu", "host");
    } else if config.vcpus > 1 {
        // Interrupts between vCPUs are to be writes of a model-specific register, which the plugin sees:
        // x2APIC, which Linux uses only if interrupts can be remapped.
        add("machine", "q35");
        add("cpu", "EPYC,+x2apic");
        add("device", "intel-iommu,intremap=on,eim=on");
    } else {
        add("machine", "pc");
        add("cpu", "EPYC");
    }
    if config.kvm {
        add("accel", "kvm");
    } else if config.counted_time {
        add("accel", "tcg,thread=single");
        add("icount", "shift=2");
    } else if config.one_thread {
        add("accel", "tcg,thread=single");
    } else {
        add("accel", "tcg,thread=multi");
    }
    add("smp", &config.vcpus.to_string());
    add("m", &format!("{}M", config.memory_mib));
    add("display", "none");
    add("kernel", &config.kernel.to_string_lossy());
    add("initrd", &config.initrd.to_string_lossy());
    // A guest that must wait for its CPU while it boots may find that its timer does not tick, and panic: it
    // is not to look.
    let mut parameters = "mitigations=off quiet panic=-1 no_timer_check console=ttyS0".to_owned();
    if let Some(tap) = &config.tap {
        parameters += &format!(" {IP_PARAMETER}={}/{}", tap.guest_ip, tap.prefix);
    }
    if let Some(slice) = config.time_slice {
        parameters += &format!(" {TIME_SLICE_PARAMETER}={}", slice.as_nanos());
    }
    // The guest numbers its disks as they come.
    for ((disk, _), letter) in disks.iter().zip('a'..='z') {
        parameters += &format!(" {}=vd{letter}", disk.kind.parameter());
    }
    for parameter in &config.parameters {
        parameters += &format!(" {parameter}");
    }
    add("append", &parameters);
    add("chardev", &format!("file,id=console,path={}", escaped(&files.console)));
    add("serial", "chardev:console");
    add("qmp", &format!("unix:{},server=on,wait=off", escaped(&files.qmp)));
    if config.keyboard {
        add("qmp", &format!("unix:{},server=on,wait=off", escaped(&files.keyboard)));
    }
    add("device", "virtio-serial-pci");
    add("chardev", &format!("socket,id=control,fd={}", control.as_raw_fd()));
    add("device", &format!("virtserialport,chardev=control,name={CONTROL_PORT}"));
    if config.reporter {
        add("chardev", &format!("socket,id=tasks,path={},server=on,wait=off", escaped(&files.reporter)));
        add("device", &format!("virtserialport,chardev=tasks,name={REPORTER_PORT}"));
    }
    if let Some(tap) = &config.tap {
        let ifname = &tap.ifname;
        let vhost = if tap.vhost { "on" } else { "off" };
        add("netdev", &format!("tap,id=net,ifname={ifname},script=no,downscript=no,vhost={vhost}"));
        // No boot ROM: it would only slow the boot.
        add("device", &format!("virtio-net-pci,netdev=net,mac={},romfile=", tap.mac));
    }
    for (number, (disk, direct)) in disks.iter().enumerate() {
        let image = escaped(&disk.image);
        let change = match disk.kind {
            DiskKind::Data => "readonly=on",
            DiskKind::Debian => "snapshot=on",
            DiskKind::Own | DiskKind::OwnDebian | DiskKind::Handover => "readonly=off",
        };
        let mode = if *direct { "cache=none,aio=native" } else { "cache=writeback,aio=threads" };
        add("drive", &format!("file={image},format=raw,if=none,id=disk{number},{change},{mode}"));
        add("device", &format!("virtio-blk-pci,drive=disk{number}"));
    }
    if config.desktop {
        DESKTOP.iter().for_each(|(option, value)| add(option, value));
        add("vnc", &format!("unix:{}", escaped(&files.vnc)));
    }
    if let Some(plugin) = &config.plugin {
        add("plugin", &escaped(plugin));
    }
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
    arguments.extend(config.arguments.iter().map(OsString::from));
    arguments
}

/// A path as a value in a QEMU option: commas doubled.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;
    use crate::vm::RunningVm;
    use std::os::unix::net::UnixStream;

    fn config(run_dir: &Path, disks: Vec<DiskConfig>) -> VmConfig {
        let kernel = Kernel { image: "/kernel".into(), modules: "/modules".into() };
        VmConfig { disks, ..VmConfig::new("test", &kernel, Path::new("/initrd"), run_dir) }
    }

    #[test]
    fn the_guest_is_told_its_disks_in_their_order() {
        let disk = |image: &str, kind| DiskConfig { image: image.into(), kind };
        let disks = vec![disk("/a,b.img", DiskKind::Debian), disk("/data.img", DiskKind::Data)];
        let config = config(Path::new("/run"), disks);
        let (control, _) = UnixStream::pair().unwrap();
        let disks = [(&config.disks[0], true), (&config.disks[1], false)];
        let arguments = arguments(&config, &disks, &Files::of(&config), &control.into());
        let values = |option: &str| {
            let pairs = arguments.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1].to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(values("-append")[0].ends_with(" frontdesk.debian=vda frontdesk.data=vdb"));
        let wanted = [
            "file=/a,,b.img,format=raw,if=none,id=disk0,snapshot=on,cache=none,aio=native",
            "file=/data.img,format=raw,if=none,id=disk1,readonly=on,cache=writeback,aio=threads",
        ];
        assert_eq!(values("-drive"), wanted);
        let devices = values("-device");
        assert!(
            devices.ends_with(&["virtio-blk-pci,drive=disk0".into(), "virtio-blk-pci,drive=disk1".into()])
        );
    }

    #[test]
    fn only_a_desktop_has_a_screen() {
        let desktop = VmConfig { desktop: true, ..config(Path::new("/r,un"), Vec::new()) };
        let (control, _) = UnixStream::pair().unwrap();
        let control = control.into();
        let arguments = |config: &VmConfig| arguments(config, &[], &Files::of(config), &control);
        let has = |config: &VmConfig, value: &str| arguments(config).iter().any(|argument| argument == value);
        for value in ["usb-tablet", "unix:/r,,un/test.vnc"] {
            assert!(has(&desktop, value), "{value}");
            assert!(!has(&VmConfig { desktop: false, ..desktop.clone() }, value), "{value}");
        }
    }

    #[test]
    fn an_image_that_cannot_be_read_is_told() {
        let run_dir = tempfile::tempdir().unwrap();
        for (image, why) in
            [(run_dir.path().join("gone.img"), "No such file"), (run_dir.path().into(), "not a file")]
        {
            let disk = DiskConfig { image: image.clone(), kind: DiskKind::Data };
            let error = RunningVm::boot(&config(run_dir.path(), vec![disk])).unwrap_err().to_string();
            assert!(
                error.contains(&format!("disk image {}", image.display())) && error.contains(why),
                "{error}"
            );
        }
    }
}
