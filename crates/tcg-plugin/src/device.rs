//! Which accesses of a vCPU go to devices for a person's eyes and ears, and to disks.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Linux puts its modules, hence the drivers of such devices, from here on.
const MODULES: u64 = 0xffff_ffff_c000_0000;
/// Linux's image begins here, and has what modules call.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// `mov WORD PTR [rsi], di`, the access in Linux's `iowrite16`, by which virtio drivers notify devices.
const IOWRITE16: [u8; 3] = [0x66, 0x89, 0x3e];

/// A device for a person's eyes or ears, or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Display,
    Sound,
    Disk,
}

impl Device {
    /// By the name that QEMU gives the memory of the device.
    pub(crate) fn of(name: &[u8]) -> Option<Device> {
        let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
        match name {
            b"intel-hda" => Some(Device::Sound),
            _ if name.starts_with(b"virtio-pci-notify") && has(b"sound") => Some(Device::Sound),
            _ if name.starts_with(b"virtio-pci-notify") && has(b"gpu") => Some(Device::Display),
            // QEMU's own and those of other processes are called the same.
            _ if name.starts_with(b"virtio-pci-notify") && has(b"blk") => Some(Device::Disk),
            _ => None,
        }
    }
}

/// Whether the instruction of a kernel that `bytes` begin with, at this address, may access a device. Linux's
/// accessors are moves of 8, 16 or 32 bits between a register and memory; most other moves of a kernel are of
/// 64 bits, or to and from the stack.
pub(crate) fn may_access(address: u64, bytes: &[u8]) -> bool {
    if address < MODULES {
        return address >= KERNEL && bytes.starts_with(&IOWRITE16);
    }
    let bytes = bytes.strip_prefix(&[0x66]).unwrap_or(bytes);
    let (rex, bytes) = match bytes {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0, bytes),
    };
    let [0x88..=0x8b, operands, ref rest @ ..] = *bytes else { return false };
    let (wide, extended) = (rex & 8 != 0, rex & 1 != 0);
    let (mode, base) = (operands >> 6, operands & 7);
    let on_stack = base == 4 && !extended && rest.first().is_some_and(|index| index & 7 == 4);
    let own_data = mode == 0 && base == 5;
    !wide && mode != 3 && !on_stack && !own_data
}

const ENTRIES: usize = 64;
/// A page may become another's: it is looked up again after so many accesses.
const USES: u64 = 1 << 10;
const USES_MASK: u64 = USES - 1;
const CLASS_SHIFT: u32 = 10;

/// What is known of the pages that a vCPU's kernel accesses, for it to be looked up seldom. Used only by the
/// vCPU's own thread.
pub(crate) struct Pages([AtomicU64; ENTRIES]);

impl Pages {
    pub(crate) const fn new() -> Pages {
        Pages([const { AtomicU64::new(0) }; ENTRIES])
    }

    /// The device whose memory is at an address, which `look_up` tells.
    pub(crate) fn device(&self, address: u64, look_up: impl FnOnce() -> Option<Device>) -> Option<Device> {
        // An entry is the number of the page (52 bits), what it is of (2), and how often that was asked (10).
        let page = address >> 12;
        let entry = &self.0[usize::try_from(page).unwrap_or(0) % ENTRIES];
        let known = entry.load(Relaxed);
        let uses = known & USES_MASK;
        if known >> 12 == page && uses != 0 {
            entry.store(known & !USES_MASK | (uses + 1) & USES_MASK, Relaxed);
            return match known >> CLASS_SHIFT & 3 {
                1 => Some(Device::Display),
                2 => Some(Device::Sound),
                3 => Some(Device::Disk),
                _ => None,
            };
        }
        let device = look_up();
        let class = match device {
            None => 0,
            Some(Device::Display) => 1,
            Some(Device::Sound) => 2,
            Some(Device::Disk) => 3,
        };
        entry.store(page << 12 | class << CLASS_SHIFT | 1, Relaxed);
        device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn devices_are_told_by_the_names_of_their_memory() {
        for (name, device) in [
            ("intel-hda", Some(Device::Sound)),
            ("virtio-pci-notify-virtio-sound", Some(Device::Sound)),
            ("virtio-pci-notify-virtio-gpu", Some(Device::Display)),
            ("virtio-pci-notify-virtio-blk", Some(Device::Disk)),
            ("virtio-pci-notify-virtio-net", None),
            ("virtio-pci-common-virtio-gpu", None),
            ("intel-hda-container", None),
            ("", None),
        ] {
            assert_eq!(Device::of(name.as_bytes()), device, "{name}");
        }
    }

    #[test]
    fn accessors_of_drivers_are_watched_and_little_else() {
        const DRIVER: u64 = MODULES + 0x1000;
        for (bytes, what) in [
            (&[0x8b, 0x40, 0x04][..], "mov eax, [rax + 4]"),
            (&[0x89, 0x10], "mov [rax], edx"),
            (&[0x66, 0x89, 0x3e], "mov [rsi], di"),
            (&[0x8a, 0x00], "mov al, [rax]"),
            (&[0x41, 0x8b, 0x44, 0x24, 0x08], "mov eax, [r12 + 8]"),
            (&[0x8b, 0x44, 0x10, 0x08], "mov eax, [rax + rdx + 8]"),
            (&[0x8b, 0x45, 0x08], "mov eax, [rbp + 8], which is no frame's in Linux"),
        ] {
            assert!(may_access(DRIVER, bytes), "{what}");
        }
        for (bytes, what) in [
            (&[0x48, 0x8b, 0x40, 0x04][..], "64 bits"),
            (&[0x8b, 0x44, 0x24, 0x08], "the stack"),
            (&[0x8b, 0x05, 0, 0, 0, 0], "the module's own data"),
            (&[0x89, 0xd8], "between registers"),
            (&[0x01, 0x10], "no move"),
            (&[0x8b], "cut short"),
            (&[], "nothing"),
        ] {
            assert!(!may_access(DRIVER, bytes), "{what}");
        }
        assert!(may_access(KERNEL + 0x1000, &IOWRITE16), "for drivers of virtio devices");
        assert!(!may_access(KERNEL + 0x1000, &[0x89, 0x10]));
        assert!(!may_access(0x1000, &IOWRITE16), "a program");
    }

    #[test]
    fn a_page_is_looked_up_once_in_a_while() {
        let pages = Pages::new();
        let (sound, other) = (0xffff_c900_0001_0004, 0xffff_8880_0000_2000);
        let looked = std::cell::Cell::new(0);
        let device = |address, is| {
            pages.device(address, || {
                looked.set(looked.get() + 1);
                is
            })
        };
        for _ in 0..100 {
            assert_eq!(device(sound, Some(Device::Sound)), Some(Device::Sound));
            assert_eq!(device(other, None), None);
        }
        assert_eq!(looked.get(), 2);
        let entries = ENTRIES as u64;
        assert_eq!(
            device(other + 4096 * entries, Some(Device::Display)),
            Some(Device::Display),
            "same entry"
        );
        assert_eq!(device(other, None), None);
        // It is another's now.
        let uses = (0..2 * USES).position(|_| device(sound, None).is_none());
        assert!(uses.is_some());
    }

    proptest! {
        /// Whatever is executed, wherever: only kernels' accesses are watched.
        #[test]
        fn fuzz_instructions(address: u64, bytes in prop::collection::vec(any::<u8>(), 0..16)) {
            prop_assert!(address >= KERNEL || !may_access(address, &bytes));
        }

        /// What is said of an address is what is known of its page.
        #[test]
        fn fuzz_pages(addresses in prop::collection::vec(any::<u64>(), 0..200)) {
            let pages = Pages::new();
            let of = |address: u64| match address >> 12 & 3 {
                0 => Some(Device::Sound),
                1 => Some(Device::Display),
                2 => Some(Device::Disk),
                _ => None,
            };
            for address in addresses {
                prop_assert_eq!(pages.device(address, || of(address)), of(address));
            }
        }
    }
}
