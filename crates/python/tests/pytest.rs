//! The tests of the Python package, in this folder, run by pytest.
//!
//! The package is put together from what Cargo has built, which is as `pip install` would do it, without
//! building everything once more.

#![allow(clippy::unwrap_used)] // A test that panics fails.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The Python that tools/setup.sh has made, with everything that the tests need.
fn python() -> PathBuf {
    let python = root().join("target/python/bin/python3");
    assert!(python.exists(), "there is no {}: run tools/setup.sh python", python.display());
    python
}

/// Where Cargo puts what it builds in this profile.
fn built() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(2).unwrap().to_owned()
}

#[test]
fn the_python_package_passes_its_tests() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("frontdesk");
    fs::create_dir(&package).unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/frontdesk");
    for file in fs::read_dir(own).unwrap().map(|entry| entry.unwrap()) {
        if file.file_type().unwrap().is_file() {
            symlink(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    symlink(built().join("deps/lib_frontdesk.so"), package.join("_frontdesk.abi3.so")).unwrap();
    let command = built().join("frontdesk");
    assert!(command.exists(), "there is no {}: build the package frontdesk first", command.display());
    let output = Command::new(python())
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "crates/python/tests"])
        .current_dir(root())
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FRONTDESK", command)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stderr));
}

/// It builds everything once more, with other features than the whole workspace: minutes.
#[test]
#[ignore = "minutes: pip builds everything once more"]
fn pip_installs_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let made =
        Command::new(python()).args(["-m", "venv", "--system-site-packages"]).arg(folder.path()).status();
    assert!(made.unwrap().success());
    let pip = Command::new(folder.path().join("bin/pip")).args(["install", "."]).current_dir(root()).status();
    assert!(pip.unwrap().success());
    let example = "import frontdesk; print(frontdesk.Scenario.load('scenarios/idle.toml').name)";
    let python = folder.path().join("bin/python3");
    let output = Command::new(python).args(["-c", example]).current_dir(root()).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "idle\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
