//! Images of all kinds, and what becomes of those that go wrong while they are served. Needs root: for block
//! devices, and for file systems that can be filled.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod front_end;

use front_end::{DATA, FLUSH_REQUEST, Guest, PATIENCE, READ_REQUEST, SIZE, Server, WRITE_REQUEST};
use frontdesk_disk::{ServeConfig, VmDisk, serve};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vm_memory::{Bytes, GuestAddress};

const OK: u8 = 0;
const IO_ERROR: u8 = 1;

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|e| {
        panic!("{program}: {e}; tools/setup.sh vms installs what tests need");
    })
}

/// An image in a folder of its own. Beside what is built, for what is in memory has no direct I/O.
fn image() -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("images-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(SIZE).unwrap();
    (folder, image)
}

fn sparse(path: &Path, bytes: u64) -> PathBuf {
    File::create(path).unwrap().set_len(bytes).unwrap();
    path.to_owned()
}

/// A loop device, gone when dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &Path, options: &[&str]) -> Loop {
        let image = image.to_string_lossy();
        let arguments = [&["--find", "--show"], options, &[&image]].concat();
        let output = run("losetup", &arguments);
        assert!(output.status.success(), "this test needs root, and loop devices: {output:?}");
        Loop(String::from_utf8(output.stdout).unwrap().trim().into())
    }

    /// Whoever has it open keeps it. From then on its number may be another's.
    fn detach(self) {
        let output = run("losetup", &["--detach", &self.0.to_string_lossy()]);
        assert!(output.status.success(), "{output:?}");
        std::mem::forget(self);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0.to_string_lossy()]);
    }
}

/// A file system in memory, gone when dropped.
struct Small(PathBuf);

impl Small {
    fn new(folder: &Path, options: &std::ffi::CStr) -> Small {
        fs::create_dir(folder).unwrap();
        mount("none", folder, "tmpfs", MountFlags::empty(), options).expect("this test needs root");
        Small(folder.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_trace_replaces_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("alice");
    fs::write(&image, [7; 4096]).unwrap();
    let disk = VmDisk { name: "alice".into(), image: image.clone(), read_only: false };
    let trace = Some(folder.path().join("../").join(folder.path().file_name().unwrap()).join("alice"));
    let config = ServeConfig { trace, ..ServeConfig::new(&[disk], folder.path()) };
    let error = serve(&config, eventfd(1, EventfdFlags::CLOEXEC).unwrap()).unwrap_err().to_string();
    assert!(error.contains("the image of a VM"), "{error}");
    assert_eq!(fs::read(&image).unwrap(), [7; 4096]);
}

/// Why it is not served.
fn refusal(image: &Path, read_only: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let disk = VmDisk { name: "mallory".into(), image: image.to_owned(), read_only };
    let stop = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
    let config =
        ServeConfig { daemon: folder.path().join("none"), ..ServeConfig::new(&[disk], folder.path()) };
    serve(&config, stop).expect_err("it is served").to_string()
}

#[test]
fn a_block_device_is_served_to_one() {
    let (folder, image) = image();
    for options in [&["--direct-io=on"][..], &["--sector-size", "4096"]] {
        let device = Loop::new(&image, options);
        let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (device.0.clone(), false))]);
        let mut guest = Guest::connect(&server, "alice");
        assert_eq!(guest.capacity(), SIZE);
        guest.works();
        // A sector amid a block of 4 KiB.
        guest.memory.write_slice(&[0xa5; 512], GuestAddress(DATA)).unwrap();
        assert_eq!(guest.ask(WRITE_REQUEST, 10, 512), OK);
        assert_eq!(guest.ask(FLUSH_REQUEST, 0, 512), OK);
        let mut block = [0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut block, 4096).unwrap();
        assert!(
            block[..1024] == [0x5a; 1024]
                && block[1024..1536] == [0xa5; 512]
                && block[1536..] == [0x5a; 2560]
        );
        // Its patience is 5 s: once is enough.
        if options.contains(&"--direct-io=on") {
            let refusal = refusal(&device.0, false);
            assert!(refusal.contains("another process uses it"), "{refusal}");
        }
    }
    drop(folder);
}

#[test]
fn a_device_that_can_only_be_read_is_served_as_such() {
    let (_folder, image) = image();
    let device = Loop::new(&image, &["--read-only"]);
    let refusal = refusal(&device.0, false);
    assert!(refusal.contains(",readonly"), "{refusal}");
    let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (device.0.clone(), true))]);
    let mut guest = Guest::connect(&server, "alice");
    assert_eq!(guest.ask(READ_REQUEST, 0, 4096), OK);
    assert_eq!(guest.ask(WRITE_REQUEST, 0, 4096), IO_ERROR);
}

#[test]
fn a_full_file_system_is_an_error_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let small = Small::new(&folder.path().join("small"), c"size=256k");
    let image = sparse(&small.0.join("image"), SIZE);
    let filler = small.0.join("filler");
    fs::write(&filler, vec![1; 128 << 10]).unwrap();
    let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (image, false))]);
    let mut guest = Guest::connect(&server, "alice");
    guest.works();
    let large = 192 << 10;
    assert_eq!(guest.ask(WRITE_REQUEST, 64, large), IO_ERROR);
    // What is there can be read and written, and what is not there be read.
    guest.works();
    assert_eq!(guest.ask(READ_REQUEST, 64, large), OK);
    fs::remove_file(filler).unwrap();
    assert_eq!(guest.ask(WRITE_REQUEST, 64, large), OK);
    guest.works();
}

#[test]
fn an_image_that_was_removed_is_served_until_the_end() {
    let (_folder, image) = image();
    let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (image.clone(), false))]);
    let mut guest = Guest::connect(&server, "alice");
    fs::remove_file(&image).unwrap();
    guest.works();
    drop(guest);
    Guest::connect(&server, "alice").works();
    assert!(refusal(&image, false).contains("No such file"));
}

#[test]
fn a_loop_device_that_was_detached_is_served_until_the_end() {
    let (_folder, image) = image();
    let device = Loop::new(&image, &["--direct-io=on"]);
    let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (device.0.clone(), false))]);
    let mut guest = Guest::connect(&server, "alice");
    device.detach();
    guest.works();
}

#[test]
fn what_an_image_has_lost_is_an_error_for_its_vm_alone() {
    let (_folder, image) = image();
    let (_other_folder, other) = self::image();
    let vms = [("alice", (image.clone(), false)), ("bob", (other, false))];
    let server = Server::of(tempfile::tempdir().unwrap(), vms);
    let [mut alice, mut bob] = ["alice", "bob"].map(|name| Guest::connect(&server, name));
    alice.works();
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(alice.ask(READ_REQUEST, 8, 4096), IO_ERROR);
    bob.works();
    file.set_len(SIZE).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while alice.ask(READ_REQUEST, 8, 4096) != OK {
        assert!(Instant::now() < deadline, "the image is there again");
        thread::sleep(Duration::from_millis(20));
    }
    alice.works();
}

#[test]
fn an_image_grows_under_load() {
    let (_folder, image) = image();
    let (server_folder, file) =
        (tempfile::tempdir().unwrap(), File::options().write(true).open(&image).unwrap());
    let server = Server::of(server_folder, [("alice", (image, false))]);
    let mut guest = Guest::connect(&server, "alice");
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..=4 {
                file.set_len(SIZE + step * (SIZE / 4)).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
            end.store(true, Ordering::Release);
        });
        while !end.load(Ordering::Acquire) {
            guest.works();
        }
    });
    let deadline = Instant::now() + PATIENCE;
    while guest.capacity() != 2 * SIZE {
        assert!(Instant::now() < deadline, "it has grown");
        guest.works();
    }
    assert_eq!(guest.ask(WRITE_REQUEST, 2 * SIZE / 512 - 8, 4096), OK);
    assert_eq!(guest.ask(WRITE_REQUEST, 2 * SIZE / 512, 4096), IO_ERROR);
}

#[test]
fn qemu_and_its_tools_are_refused_and_refuse() {
    let (folder, image) = image();
    let path = image.to_string_lossy().into_owned();
    let write = ["-f", "raw", "-c", "write 0 4096", &path];
    assert!(run("qemu-io", &write).status.success(), "it can be written to");
    let server = Server::of(tempfile::tempdir().unwrap(), [("alice", (image.clone(), false))]);
    Guest::connect(&server, "alice").works();
    let output = run("qemu-io", &write);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("lock"), "{output:?}");
    drop(server);
    let pid_file = folder.path().join("pid");
    let node = format!("driver=file,node-name=a,filename={path}");
    let socket = folder.path().join("a.sock");
    let export = format!(
        "type=vhost-user-blk,id=a,node-name=a,writable=on,addr.type=unix,addr.path={}",
        socket.display()
    );
    let pid_path = pid_file.to_string_lossy();
    let daemon = ["--daemonize", "--pidfile", &pid_path, "--blockdev", &node, "--export", &export];
    let output = run("qemu-storage-daemon", &daemon);
    assert!(output.status.success(), "{output:?}");
    let refused = std::panic::catch_unwind(|| refusal(&image, false));
    let pid = fs::read_to_string(&pid_file).unwrap();
    run("kill", &[pid.trim()]);
    let refused = refused.unwrap();
    assert!(refused.contains("another process uses it"), "{refused}");
}
