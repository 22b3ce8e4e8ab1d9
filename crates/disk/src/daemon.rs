//! The thread that hears the daemon: who asks, and what a person does. Without one, all goes on as if nobody
//! waited.

use crate::scheduler::Scheduler;
use frontdesk_disk_protocol::{ALIVE, Channel, ChannelError, SILENCE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Hears the daemon at `socket` whenever there is one, until `stop` can be read.
pub(crate) fn follow(scheduler: &Scheduler, socket: &Path, stop: &OwnedFd) {
    let mut said = false;
    loop {
        match connect(socket) {
            Ok(channel) => {
                tracing::info!("the daemon at {} tells who asks", socket.display());
                let channel = Arc::new(channel);
                scheduler.daemon_came(Arc::clone(&channel));
                let ended = hear(scheduler, &channel, stop);
                scheduler.daemon_went();
                channel.close();
                match ended {
                    Ok(()) => return,
                    Err(why) => {
                        tracing::warn!("the daemon tells no longer who asks, nobody comes first: {why}")
                    }
                }
                said = true;
            }
            Err(why) if !said => {
                tracing::info!("no daemon at {} tells who asks, nobody comes first: {why}", socket.display());
                said = true;
            }
            Err(_) => {}
        }
        if wait(None, stop) {
            return;
        }
    }
}

/// Connects to a daemon, which is root's or our own user's.
fn connect(socket: &Path) -> io::Result<Channel> {
    let channel = Channel::connect(socket)?;
    let (_, user) = channel.peer()?;
    if user != 0 && user != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("user {user} listens there, who is not root")));
    }
    Ok(channel)
}

/// Hears a daemon until `stop` can be read.
///
/// # Errors
/// It is gone, hangs, or is not understood.
fn hear(scheduler: &Scheduler, channel: &Channel, stop: &OwnedFd) -> Result<(), ChannelError> {
    let (mut heard, mut reported) = (Instant::now(), Instant::now());
    loop {
        if wait(Some(channel), stop) {
            return Ok(());
        }
        while let Some((message, memory)) = channel.receive()? {
            heard = Instant::now();
            scheduler.daemon_said(message, memory);
        }
        if heard.elapsed() > SILENCE {
            return Err(io::Error::other("it is silent").into());
        }
        if reported.elapsed() >= ALIVE {
            reported = Instant::now();
            scheduler.report();
        }
    }
}

/// Waits for a second, or until there is something to hear or to end for; whether it is to end.
fn wait(channel: Option<&Channel>, stop: &OwnedFd) -> bool {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(channel.map(|channel| PollFd::new(channel, PollFlags::IN)));
    // After a signal it is looked again.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
    !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use frontdesk_disk_protocol::{FromDaemon, FromDisk, listen};
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// What the back end says next.
    fn said(channel: &Channel) -> Option<FromDisk> {
        loop {
            match channel.receive() {
                Ok(Some((message, _))) => return Some(message),
                Ok(None) => drop(poll(&mut [PollFd::new(channel, PollFlags::IN)], None)),
                Err(_) => return None,
            }
        }
    }

    fn accept(listener: &OwnedFd) -> Channel {
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
        Channel::accept(listener).unwrap()
    }

    #[test]
    fn each_daemon_is_told_who_is_connected_and_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.disk");
        let scheduler = Scheduler::new(4, false).unwrap();
        let share = scheduler.join().unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let listener = listen(&path, None).unwrap();
        let (of_thread, ends) = (Arc::clone(&scheduler), Arc::clone(&stop));
        let thread = std::thread::spawn(move || follow(&of_thread, &path, &ends));

        let daemon = accept(&listener);
        let (connection, _qemu) = UnixStream::pair().unwrap();
        share.attached(Some((connection.as_fd().try_clone_to_owned().unwrap(), 42)), "alice");
        let attached = Some(FromDisk::Attached { disk: 0, name: "alice".into(), thread: 42 });
        assert_eq!(said(&daemon), attached);
        drop(daemon);
        let daemon = accept(&listener);
        assert_eq!(said(&daemon), attached, "another daemon");
        // One that is not understood is left, and tried again.
        daemon.send(&"nonsense", None).unwrap();
        while said(&daemon).is_some() {}
        let daemon = accept(&listener);
        assert_eq!(said(&daemon), attached);
        daemon.send(&FromDaemon::Alive {}, None).unwrap();
        share.attached(None, "alice");
        let reported =
            |message: &FromDisk| matches!(message, FromDisk::Report { .. } | FromDisk::Notifiers { .. });
        let next = std::iter::from_fn(|| said(&daemon)).find(|message| !reported(message));
        assert_eq!(next, Some(FromDisk::Detached { disk: 0 }));
        rustix::io::write(&*stop, &1_u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
    }
}
