//! Where the host's end of the reporter's port is: a Unix socket that QEMU's command line names.
//!
//! The command line and not QMP, because it can be read for VMs whose monitor belongs to somebody else, like
//! libvirt's. A port that was plugged in later is not found.
//!
//! A process can have any command line, and the daemon connects as root, to whose connections other programs
//! listen, too. So a socket counts only where QEMU itself listens, and that is QEMU's.

use crate::process::{self, MAX_DESCRIPTORS};
use frontdesk_guest_protocol::PORT_NAME;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// More of the list of sockets is not read.
const MAX_SOCKETS_BYTES: u64 = 16 << 20;

/// The socket of the port [`PORT_NAME`] of the QEMU process `pid`; `None` if it has no such port, or not at a
/// Unix socket.
///
/// # Errors
/// `/proc` cannot be read: the process has ended, or belongs to somebody else. Or the process does not listen
/// there itself, or what is there is not its user's.
pub fn find_port(pid: i32) -> io::Result<Option<PathBuf>> {
    let command = process::command_line(pid)?;
    let arguments: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let path = match find_socket(&arguments) {
        None => return Ok(None),
        Some(Socket::Path(path)) if is_held(pid, &path)? => path,
        Some(Socket::Path(path)) => return Err(refused(&path, "QEMU itself does not listen there")),
        Some(Socket::Descriptor(number)) => match listener_path(pid, number)? {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    // QEMU may have been started elsewhere.
    let place = Path::new(&format!("/proc/{pid}/cwd")).join(&path);
    let found = fs::symlink_metadata(&place)?;
    if !found.file_type().is_socket() || Some(found.uid()) != process::user(pid) {
        return Err(refused(&path, "what is there is no socket of QEMU's user"));
    }
    Ok(Some(place))
}

fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{path}: {why}"))
}

/// Whether a process has a listening socket that was bound to this path.
fn is_held(pid: i32, path: &str) -> io::Result<bool> {
    let sockets = sockets(pid)?;
    let held: Vec<PathBuf> =
        listeners(&sockets, path).map(|inode| PathBuf::from(format!("socket:[{inode}]"))).collect();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.take(MAX_DESCRIPTORS).flatten();
    let mut links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    Ok(!held.is_empty() && links.any(|link| held.contains(&link)))
}

/// What `/proc/net/unix` has for a process.
fn sockets(pid: i32) -> io::Result<String> {
    let mut list = Vec::new();
    File::open(format!("/proc/{pid}/net/unix"))?.take(MAX_SOCKETS_BYTES).read_to_end(&mut list)?;
    // A path is any bytes.
    Ok(String::from_utf8_lossy(&list).into_owned())
}

/// How QEMU was given a socket.
#[derive(Debug, PartialEq, Eq)]
enum Socket {
    Path(String),
    /// libvirt passes the listening socket.
    Descriptor(u32),
}

fn find_socket(arguments: &[&str]) -> Option<Socket> {
    let values = |option: &'static str| {
        let named =
            move |argument: &str| argument.trim_start_matches('-') == option && argument.starts_with('-');
        arguments.windows(2).filter(move |pair| named(pair[0])).map(|pair| Options::parse(pair[1]))
    };
    let port = values("device").find(|device| {
        device.get("driver") == Some("virtserialport") && device.get("name") == Some(PORT_NAME)
    })?;
    let id = port.get("chardev")?;
    let chardev = values("chardev").find(|chardev| chardev.get("id") == Some(id))?;
    match (chardev.get("driver")?, chardev.get("path"), chardev.get("fd")) {
        ("socket", Some(path), _) => Some(Socket::Path(path.to_owned())),
        ("socket", None, Some(number)) => number.parse().ok().map(Socket::Descriptor),
        _ => None,
    }
}

/// Options of a device: `virtserialport,name=x,chardev=y`, where a comma in a value is doubled, or the same
/// as JSON.
struct Options(Vec<(String, String)>);

impl Options {
    fn parse(text: &str) -> Options {
        if let Ok(serde_json::Value::Object(json)) = serde_json::from_str(text) {
            let texts = json.into_iter().filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())));
            return Options(texts.collect());
        }
        // A byte that no command line holds.
        let text = text.replace(",,", "\0");
        let mut options = Vec::new();
        for (index, part) in text.split(',').enumerate() {
            let (key, value) = match part.split_once('=') {
                Some(pair) => pair,
                None if index == 0 => ("driver", part),
                None => (part, ""),
            };
            options.push((key.to_owned(), value.replace('\0', ",")));
        }
        Options(options)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// The path of the Unix socket that is a descriptor of a process.
fn listener_path(pid: i32, descriptor: u32) -> io::Result<Option<String>> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}"))?;
    let link = link.to_string_lossy();
    let Some(inode) = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) else {
        return Ok(None);
    };
    Ok(parse_unix(&sockets(pid)?, inode))
}

/// The inodes of those who listen at a path.
fn listeners<'a>(sockets: &'a str, path: &'a str) -> impl Iterator<Item = &'a str> {
    sockets.lines().filter_map(move |line| {
        let mut words = line.split_ascii_whitespace();
        let (flags, inode) = (words.nth(3)?, words.nth(2)?);
        // __SO_ACCEPTCON
        let listens = u32::from_str_radix(flags, 16).ok()? & 0x10000 != 0;
        let bound = line.split_once(&format!(" {inode} "))?.1.trim_start();
        (listens && bound == path).then_some(inode)
    })
}

/// Finds a socket's path in `/proc/net/unix`: number, references, protocol, flags, type, state, inode, path.
/// By hand: the procfs crate ends a path at its first blank.
fn parse_unix(sockets: &str, inode: &str) -> Option<String> {
    let line = sockets.lines().find(|line| line.split_ascii_whitespace().nth(6) == Some(inode))?;
    let path = line.split_once(&format!(" {inode} "))?.1.trim_start();
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(arguments: &[&str]) -> Option<Socket> {
        find_socket(arguments)
    }

    #[test]
    fn the_port_leads_to_the_socket() {
        let chardev = "socket,id=fd,path=/run/a,,b.tasks,server=on,wait=off";
        let device = format!("virtserialport,chardev=fd,name={PORT_NAME}");
        let arguments = ["qemu", "-chardev", "file,id=x,path=/log", "-chardev", chardev, "-device", &device];
        assert_eq!(socket(&arguments), Some(Socket::Path("/run/a,b.tasks".into())));

        let other =
            ["qemu", "-chardev", chardev, "-device", "virtserialport,chardev=fd,name=org.qemu.guest_agent.0"];
        assert_eq!(socket(&other), None);
        let pty = ["qemu", "-chardev", "pty,id=fd", "-device", &device];
        assert_eq!(socket(&pty), None);
        assert_eq!(socket(&["qemu", "-device", &device]), None);
        assert_eq!(socket(&["qemu", "-device"]), None);
    }

    #[test]
    fn libvirt_writes_json_and_passes_descriptors() {
        let device = format!(
            r#"{{"driver":"virtserialport","bus":"virtio-serial0.0","nr":2,"chardev":"charchannel1","id":"channel1","name":"{PORT_NAME}"}}"#
        );
        let chardev = "socket,id=charchannel1,fd=34,server=on,wait=off";
        assert_eq!(socket(&["qemu", "-chardev", chardev, "-device", &device]), Some(Socket::Descriptor(34)));
    }

    #[test]
    fn a_descriptor_has_a_path() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    00000000: 00000003 00000000 00000000 0001 03 41 /run/x\n\
                    00000000: 00000002 00000000 00010000 0001 01    4152 /run/my vm.tasks\n\
                    00000000: 00000003 00000000 00000000 0001 03 77\n";
        assert_eq!(parse_unix(list, "4152").as_deref(), Some("/run/my vm.tasks"));
        assert_eq!(parse_unix(list, "77"), None);
        assert_eq!(parse_unix(list, "415"), None);
        let at = |path| listeners(list, path).collect::<Vec<_>>();
        assert_eq!((at("/run/my vm.tasks"), at("/run/x"), at("")), (vec!["4152"], vec![], vec![]));
    }

    /// What a local user's process is called with leads to nobody else's socket.
    #[test]
    fn only_where_qemu_itself_listens_is_connected_to() {
        use std::os::unix::net::UnixListener;
        use std::process::Command;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("others");
        let _listener = UnixListener::bind(&path).unwrap();
        // It does nothing with its words.
        let mut child = Command::new("sh")
            .args(["-c", "read -r line", "sh"])
            .args(["-chardev", &format!("socket,id=fd,path={}", path.display())])
            .args(["-device", &format!("virtserialport,chardev=fd,name={PORT_NAME}")])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        // Until it has become that.
        let refused = loop {
            match find_port(pid) {
                Ok(None) => std::thread::yield_now(),
                found => break found.unwrap_err().to_string(),
            }
        };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(refused.contains("QEMU itself does not listen there"), "{refused}");
    }

    #[test]
    fn a_process_is_looked_into() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.tasks");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = std::process::id().cast_signed();
        let descriptor = u32::try_from(std::os::fd::AsRawFd::as_raw_fd(&listener)).unwrap();
        assert_eq!(listener_path(own, descriptor).unwrap().as_deref(), path.to_str());
        assert!(is_held(own, path.to_str().unwrap()).unwrap());
        assert_eq!(find_port(own).unwrap(), None);
        assert!(find_port(-1).is_err());
    }
}
