//! One VM's disk: takes requests from its queues, has the kernel carry them out, and gives them back.

use crate::admit::{admit, write_name};
use crate::config::config;
use crate::image::Image;
use crate::memory::Memory;
use crate::request::{Malformed, Op, parse};
use crate::scheduler::Share;
use crate::session::Session;
use crate::transfer::{Step, Transfer};
use crate::uring::{Completion, Token, Uring};
use crate::vm::Source;
use crate::vring::{RingError, Vring};
use frontdesk_engine::disk::Asker;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use virtio_bindings::bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK};
use vm_memory::{Bytes, GuestAddress};

/// Requests of a VM that are looked at, at most. Others stay in its queues.
const MAX_REQUESTS: usize = 256;

/// Why a queue is not served any more.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Request(#[from] Malformed),
}

/// A request that was taken from a queue.
#[derive(Debug)]
struct Active {
    queue: u16,
    head: u16,
    transfer: Transfer,
    asker: Option<Asker>,
}

/// A VM's disk.
pub(crate) struct Device {
    name: String,
    /// What it is on.
    pub(crate) image: Image,
    /// What the front end has set up.
    pub(crate) session: Session,
    uring: Uring,
    share: Share,
    slots: Vec<Option<Active>>,
    free: Vec<u32>,
    /// Pieces that may begin.
    ready: VecDeque<u32>,
    /// Pieces that the kernel works at.
    submitted: u32,
    /// Whether the one that it works at tolerates no other.
    exclusive: bool,
    /// Queues that have something to take.
    pending: Vec<bool>,
    /// Of these, those whose guest has just said so.
    kicked: Vec<bool>,
    /// Queues whose guest is to be told.
    interrupts: Vec<bool>,
    /// Number of the next kick descriptor.
    kicks: u16,
    kick_of: Vec<u16>,
    /// What is not the device's own business.
    outside: Vec<Token>,
    completions: Vec<Completion>,
}

impl Device {
    /// A disk without a front end, for the thread that calls this.
    ///
    /// # Errors
    /// If the kernel refuses a queue of work.
    pub(crate) fn new(name: &str, image: Image, share: Share) -> io::Result<Device> {
        let mut uring = Uring::new()?;
        uring.poll_always(share.wake().as_raw_fd(), Token::Granted)?;
        Ok(Device {
            name: name.to_owned(),
            image,
            session: Session::default(),
            uring,
            share,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            submitted: 0,
            exclusive: false,
            pending: Vec::new(),
            kicked: Vec::new(),
            interrupts: Vec::new(),
            kicks: 0,
            kick_of: Vec::new(),
            outside: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// The VM's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A front end is connected. The thread that calls this serves it.
    pub(crate) fn attach(&mut self, connection: &UnixStream) {
        match connection.as_fd().try_clone_to_owned() {
            Ok(connection) => {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                self.share.attached(Some((connection, thread)), &self.name);
            }
            Err(e) => tracing::warn!("{}: nobody is told that it is connected: {e}", self.name),
        }
    }

    /// Tells how many queues are served, and by what the guest notifies them.
    fn count_queues(&self) {
        let running = || self.session.vrings.iter().filter(|vring| vring.running);
        let notifiers = running().filter_map(Vring::notifier).collect();
        self.share.set_queues(u16::try_from(running().count()).unwrap_or(u16::MAX), notifiers);
    }

    /// The kernel's queue of work, for what is not the device's own business.
    pub(crate) fn uring(&mut self) -> &mut Uring {
        &mut self.uring
    }

    /// The configuration that the guest reads.
    pub(crate) fn config(&self) -> Vec<u8> {
        config(self.image.size(), self.image.offset_align()).to_vec()
    }

    /// The queue of this index, made if it is not there.
    pub(crate) fn vring(&mut self, index: u16) -> Option<&mut Vring> {
        while self.session.vrings.len() <= usize::from(index) {
            self.session.vrings.push(Vring::new().ok()?);
            self.pending.push(false);
            self.kicked.push(false);
            self.interrupts.push(false);
            self.kick_of.push(0);
        }
        self.session.vrings.get_mut(usize::from(index))
    }

    /// Does what can be done, waits for a completion, and returns what happened that is not the device's own
    /// business.
    ///
    /// # Errors
    /// If the kernel refuses its queue of work.
    pub(crate) fn turn(&mut self) -> io::Result<Vec<Token>> {
        self.advance()?;
        Ok(std::mem::take(&mut self.outside))
    }

    fn advance(&mut self) -> io::Result<()> {
        for index in 0..self.pending.len() {
            if self.pending[index] {
                // No more queues than fit into 16 bits.
                self.serve(u16::try_from(index).unwrap_or_default());
            }
        }
        self.ready.extend(self.share.granted());
        self.begin_ready()?;
        self.interrupt();
        let can_take_more = self.room() > 0 && self.pending.contains(&true);
        let mut completions = std::mem::take(&mut self.completions);
        self.uring.complete(!can_take_more, &mut completions)?;
        for completion in completions.drain(..) {
            self.completed(completion)?;
        }
        self.completions = completions;
        self.interrupt();
        Ok(())
    }

    /// How many more requests are looked at.
    fn room(&self) -> usize {
        MAX_REQUESTS.saturating_sub(self.slots.len() - self.free.len())
    }

    fn completed(&mut self, Completion { token, result, more }: Completion) -> io::Result<()> {
        match token {
            Token::Piece(slot) => self.piece_ended(slot, result)?,
            Token::Kick(index, number) if self.kick_of.get(usize::from(index)) == Some(&number) => {
                self.pending[usize::from(index)] = true;
                self.kicked[usize::from(index)] = true;
                let kick = self.session.vrings.get(usize::from(index)).and_then(|vring| vring.kick.as_ref());
                if let Some(kick) = kick.filter(|_| !more) {
                    self.uring.poll_always(kick.as_raw_fd(), token)?;
                }
            }
            Token::Granted if !more => self.uring.poll_always(self.share.wake().as_raw_fd(), token)?,
            Token::Kick(..) | Token::Granted | Token::Cancelled => {}
            Token::Listener | Token::Connection | Token::Second | Token::Stop => self.outside.push(token),
        }
        Ok(())
    }

    /// Waits until nothing is in flight, of one queue or of all. What the guest asks for meanwhile stays.
    ///
    /// # Errors
    /// If the kernel refuses its queue of work: then it may still write to the guest's memory.
    fn drain(&mut self, queue: Option<u16>) -> io::Result<()> {
        while self.slots.iter().flatten().any(|active| queue.is_none_or(|queue| queue == active.queue)) {
            self.advance()?;
        }
        Ok(())
    }

    /// Begins to serve a queue, if the front end has set up all of it. Requests that another back end has
    /// left in flight are carried out again.
    pub(crate) fn start(&mut self, index: u16) -> io::Result<()> {
        let Session { memory: Some(memory), vrings, inflight, event_index, .. } = &mut self.session else {
            return Ok(());
        };
        let Some(vring) = vrings.get_mut(usize::from(index)) else {
            return Ok(());
        };
        let Some(kick) = vring.kick.as_ref().filter(|_| vring.enabled && !vring.running) else {
            return Ok(());
        };
        let kick = kick.as_raw_fd();
        let memory = Arc::clone(memory);
        let recovered = match vring.start(index, &memory, inflight.as_ref(), *event_index) {
            Ok(recovered) => recovered,
            Err(e) => {
                self.break_queue(index, &e.into());
                return Ok(());
            }
        };
        self.kicks = self.kicks.wrapping_add(1);
        self.kick_of[usize::from(index)] = self.kicks;
        self.uring.poll_always(kick, Token::Kick(index, self.kicks))?;
        self.count_queues();
        if !recovered.is_empty() {
            tracing::info!("{}: queue {index}: {} requests in flight go on", self.name, recovered.len());
        }
        for head in recovered {
            if let Err(e) = self.take_up(index, head, &memory, None) {
                self.break_queue(index, &e);
                return Ok(());
            }
        }
        // Kicks and interrupts that were under way when another back end ended may be lost.
        self.pending[usize::from(index)] = true;
        self.interrupts[usize::from(index)] = true;
        Ok(())
    }

    /// The guest is told once more, for it may have another descriptor for that now.
    pub(crate) fn interrupt_again(&mut self, index: u16) {
        if let Some(interrupt) = self.interrupts.get_mut(usize::from(index)) {
            *interrupt = true;
        }
    }

    /// Looks at all queues as if each guest had kicked, and tells those that wait for an interrupt.
    ///
    /// A guest asks to be told, and looks whether there is something already; we put something there, and
    /// look whether it asks. One of the two sees the other, but for guests with one vCPU that QEMU emulates:
    /// their locked instructions are none for another process, and kicks and interrupts get lost.
    pub(crate) fn look_again(&mut self) {
        let Session { memory: Some(memory), vrings, event_index, .. } = &self.session else { return };
        for ((vring, pending), interrupt) in vrings.iter().zip(&mut self.pending).zip(&mut self.interrupts) {
            *pending |= vring.running;
            *interrupt |= vring.running && *event_index && vring.is_behind(memory);
        }
    }

    /// Ends to serve a queue, when all that was taken from it is done. Returns the next request in its ring.
    ///
    /// # Errors
    /// If the kernel refuses its queue of work.
    pub(crate) fn stop(&mut self, index: u16) -> io::Result<u16> {
        let Some(vring) = self.session.vrings.get_mut(usize::from(index)) else {
            return Ok(0);
        };
        vring.running = false;
        self.drain(Some(index))?;
        self.interrupt();
        let Some(vring) = self.session.vrings.get_mut(usize::from(index)) else {
            return Ok(0);
        };
        let had_kick = vring.kick.is_some();
        vring.stop();
        let next = vring.next_available();
        self.count_queues();
        if had_kick {
            self.uring.forget(Token::Kick(index, self.kick_of[usize::from(index)]))?;
        }
        self.kick_of[usize::from(index)] = 0;
        Ok(next)
    }

    /// The front end is gone: ends what is in flight, and forgets what it has set up.
    ///
    /// # Errors
    /// If the kernel refuses its queue of work.
    pub(crate) fn disconnect(&mut self) -> io::Result<()> {
        for vring in &mut self.session.vrings {
            vring.running = false;
        }
        self.drain(None)?;
        self.interrupt();
        for index in 0..self.session.vrings.len() {
            self.stop(u16::try_from(index).unwrap_or_default())?;
        }
        self.session = Session::default();
        self.share.attached(None, &self.name);
        self.pending.clear();
        self.kicked.clear();
        self.interrupts.clear();
        self.kick_of.clear();
        Ok(())
    }

    /// Takes what the guest has made available.
    fn serve(&mut self, index: u16) {
        match self.serve_ring(index) {
            Ok(more) => self.pending[usize::from(index)] = more,
            Err(e) => self.break_queue(index, &e),
        }
    }

    /// Takes as many as there is room for; returns whether there may be more.
    fn serve_ring(&mut self, index: u16) -> Result<bool, Broken> {
        let room = self.room();
        let Session { memory: Some(memory), vrings, inflight, .. } = &mut self.session else {
            return Ok(false);
        };
        let memory = Arc::clone(memory);
        let vring = &mut vrings[usize::from(index)];
        if !vring.running {
            return Ok(false);
        }
        vring.want_kicks(false, &memory)?;
        let mut heads = Vec::new();
        while heads.len() < room
            && let Some(head) = vring.take(index, &memory, inflight.as_ref())?
        {
            heads.push(head);
        }
        let more = heads.len() == room || vring.want_kicks(true, &memory)?;
        let notified = std::mem::take(&mut self.kicked[usize::from(index)]);
        let wanted = notified || !heads.is_empty();
        let asker = wanted.then(|| self.share.asker(Source { queue: index, notified })).flatten();
        for head in heads {
            self.take_up(index, head, &memory, asker)?;
        }
        Ok(more)
    }

    /// A queue that makes no sense is not served until the guest's driver sets it up anew.
    fn break_queue(&mut self, index: u16, why: &Broken) {
        tracing::warn!("{}: queue {index} is stopped: {why}. The VM's driver is at fault", self.name);
        self.pending[usize::from(index)] = false;
        if let Some(vring) = self.session.vrings.get_mut(usize::from(index)) {
            vring.running = false;
        }
    }

    /// Begins with a request.
    fn take_up(
        &mut self,
        index: u16,
        head: u16,
        memory: &Arc<Memory>,
        asker: Option<Asker>,
    ) -> Result<(), Broken> {
        let vring = &self.session.vrings[usize::from(index)];
        let request = parse(memory.map(), vring.table(), vring.size(), head)?;
        let status = request.status;
        match admit(&request, &self.image) {
            Some(Op::GetId) => {
                let written = write_name(&self.name, &request, memory);
                let status_code = if written.is_some() { VIRTIO_BLK_S_OK } else { VIRTIO_BLK_S_IOERR };
                self.answer(index, head, memory, status, status_code, written.unwrap_or_default())?;
            }
            Some(Op::Refuse(code)) => self.answer(index, head, memory, status, u32::from(code), 0)?,
            Some(_) => {
                let transfer = Transfer::new(request, Arc::clone(memory));
                let work = transfer.work();
                let active = Some(Active { queue: index, head, transfer, asker });
                let slot = match self.free.pop() {
                    Some(slot) => {
                        self.slots[slot as usize] = active;
                        slot
                    }
                    None => {
                        self.slots.push(active);
                        // There are never as many requests.
                        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
                    }
                };
                self.share.ask(slot, work, asker);
            }
            None => self.answer(index, head, memory, status, VIRTIO_BLK_S_IOERR, 0)?,
        }
        Ok(())
    }

    /// Submits the pieces that may begin.
    fn begin_ready(&mut self) -> io::Result<()> {
        while let Some(slot) = self.ready.front().copied() {
            let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
                self.ready.pop_front();
                continue;
            };
            let alone = active.transfer.is_exclusive(&self.image);
            if self.exclusive || alone && self.submitted > 0 {
                break;
            }
            self.ready.pop_front();
            match active.transfer.prepare(&self.image) {
                Ok(()) => {
                    let entry = active.transfer.entry(&self.image);
                    // SAFETY: what it points to is in the slot, or in guest memory that the slot keeps
                    // mapped, until the completion has come.
                    unsafe { self.uring.push(entry, Token::Piece(slot))? };
                    self.submitted += 1;
                    self.exclusive = alone;
                }
                Err(e) => {
                    tracing::warn!("{}: a request cannot begin: {e}", self.name);
                    self.share.done(slot, None);
                    self.finish(slot, VIRTIO_BLK_S_IOERR, 0);
                }
            }
        }
        Ok(())
    }

    fn piece_ended(&mut self, slot: u32, result: i32) -> io::Result<()> {
        let Some(active) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let interrupted = matches!(-result, libc::EINTR | libc::EAGAIN);
        let step = if interrupted { Step::Again } else { active.transfer.end(&self.image, result) };
        if step == Step::Again {
            let entry = active.transfer.entry(&self.image);
            // SAFETY: as when it began.
            return unsafe { self.uring.push(entry, Token::Piece(slot)) };
        }
        self.submitted -= 1;
        self.exclusive = false;
        let next = match step {
            Step::Done { status, written } => {
                self.finish(slot, status, written);
                None
            }
            _ => Some((active.transfer.work(), active.asker)),
        };
        self.share.done(slot, next);
        self.ready.extend(self.share.granted());
        self.begin_ready()
    }

    /// A request has ended.
    fn finish(&mut self, slot: u32, status: u32, written: u64) {
        let Some(Active { queue, head, transfer, .. }) = self.slots[slot as usize].take() else {
            return;
        };
        self.free.push(slot);
        let place = transfer.status();
        if let Err(e) = self.answer(queue, head, transfer.memory(), place, status, written) {
            self.break_queue(queue, &e.into());
        }
    }

    /// Gives a request back to the guest.
    fn answer(
        &mut self,
        index: u16,
        head: u16,
        memory: &Memory,
        place: GuestAddress,
        status: u32,
        written: u64,
    ) -> Result<(), RingError> {
        let status = u8::try_from(status).unwrap_or(u8::MAX);
        memory.map().write_obj(status, place).map_err(|_| RingError::Place)?;
        // With the status itself.
        let written = u32::try_from(written + 1).unwrap_or(u32::MAX);
        let inflight = self.session.inflight.as_ref();
        let vring = &mut self.session.vrings[usize::from(index)];
        if vring.give_back(index, head, written, memory, inflight)? {
            self.interrupts[usize::from(index)] = true;
        }
        Ok(())
    }

    /// Tells the guest what it is to be told.
    fn interrupt(&mut self) {
        for (vring, interrupt) in self.session.vrings.iter().zip(&mut self.interrupts) {
            if let Some(call) = vring.call.as_ref().filter(|_| *interrupt) {
                // A descriptor that is full has told it already.
                let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
                *interrupt = false;
            }
        }
    }
}
