//! VMs with the lab's guest program and the plugin.

use frontdesk_lab::{Kernel, VmConfig, write_initramfs};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Generous: emulated guests on a busy machine are slow, and nothing here is about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A file that another build makes: named by `variable`, or below the folder that holds this test's profile
/// folder.
pub(crate) fn built(variable: &str, default: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        // TARGET/PROFILE/deps/TEST
        test.ancestors().nth(3).unwrap().join(default)
    });
    assert!(path.is_file(), "{} is not there: build it, or set {variable}", path.display());
    path
}

/// A VM with 128 MiB of memory and the plugin.
pub(crate) fn config(run_dir: &TempDir, kernel: &str, vcpus: u16) -> VmConfig {
    let kernel = Kernel::resolve(kernel, None).unwrap();
    let guest = built("FRONTDESK_GUEST", "x86_64-unknown-linux-gnu/release/frontdesk-lab-guest");
    let initrd = run_dir.path().join("initrd");
    write_initramfs(&kernel, &guest, &initrd, false).unwrap();
    VmConfig {
        vcpus,
        plugin: Some(built("FRONTDESK_PLUGIN", "release/libfrontdesk_tcg_plugin.so")),
        ..VmConfig::new("test", &kernel, &initrd, run_dir.path())
    }
}
