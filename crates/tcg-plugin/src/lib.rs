//! A QEMU TCG plugin (QEMU 9.2 and later, x86-64 system emulation) that reports what a hypervisor with
//! hardware help sees in VM exits - address-space switches, halts, interrupts of devices and between vCPUs,
//! accesses to displays and sound cards - through a [`frontdesk_ring`].
//!
//! Only a few instructions are instrumented, and only when QEMU translates them, so that guest code runs at
//! full speed otherwise.

mod apic;
mod decode;
mod device;
// It calls into the QEMU process that loads it, which a test binary is not.
#[cfg(not(test))]
mod qemu;
