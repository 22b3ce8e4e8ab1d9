//! Desktops: VMs with a screen, a keyboard, a pointer and sound, used from outside as a person would.

mod client;
mod screen;
mod screenshot;
pub(crate) mod system;
mod vnc;

pub(crate) use client::{DesktopClient, DesktopConfig, DesktopWork, wait_for_desktop};
pub(crate) use screenshot::screenshot;
