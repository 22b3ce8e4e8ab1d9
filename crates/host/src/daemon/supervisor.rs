//! What systemd is told, and wants to be told regularly (`sd_notify(3)`): nothing, if it has not started the
//! daemon. By hand: the sd-notify crate waits until the supervisor has room for a message, which the loop
//! must not, and does not know abstract sockets.

use frontdesk_engine::Time;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The connection to the supervisor.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: Option<UnixDatagram>,
    /// Nanoseconds between two signs of life, half of what is allowed.
    interval: Option<u64>,
    next: Time,
}

impl Supervisor {
    /// As the environment tells.
    pub(super) fn find() -> Supervisor {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|address| connect(&address));
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // The variables may be inherited, and meant for a parent.
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let allowed = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0);
        Supervisor { socket, interval: allowed.map(|usec| usec.saturating_mul(500)), next: Time(0) }
    }

    /// The daemon follows what there is to follow.
    pub(super) fn ready(&self, status: &str) {
        // Messages are made of lines.
        self.say(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// The daemon follows other VMs than before.
    pub(super) fn changed(&self, status: &str) {
        self.say(&format!("STATUS={status}"));
    }

    /// The daemon takes another configuration; [`ready`](Self::ready) ends that.
    pub(super) fn reloading(&self, now: Time) {
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.0 / 1000));
    }

    /// The daemon comes to its end.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// The loop turns. Costs nothing but now and then.
    pub(super) fn alive(&mut self, now: Time) {
        let Some(interval) = self.interval else { return };
        if now >= self.next {
            self.next = now.plus(interval);
            self.say("WATCHDOG=1");
        }
    }

    /// Never waits: a message that finds no room is lost.
    fn say(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }
}

fn connect(address: &OsStr) -> Option<UnixDatagram> {
    let bytes = address.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(address),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect_addr(&address.ok()?).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_at_half_the_time_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let heard = || {
            let mut buffer = [0; 200];
            systemd
                .recv(&mut buffer)
                .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
                .ok()
        };
        let mut supervisor =
            Supervisor { socket: connect(path.as_os_str()), interval: Some(1000), next: Time(0) };
        supervisor.ready("following 2\nVMs");
        assert_eq!(heard().as_deref(), Some("READY=1\nSTATUS=following 2 VMs"));
        supervisor.changed("following 1 VM");
        assert_eq!(heard().as_deref(), Some("STATUS=following 1 VM"));
        for (now, sign) in [(5, true), (1004, false), (1005, true), (1006, false)] {
            supervisor.alive(Time(now));
            assert_eq!(heard().is_some(), sign, "at {now}");
        }
        supervisor.interval = None;
        supervisor.alive(Time(9_000_000));
        assert_eq!(heard(), None, "nobody wants to know");
    }
}
