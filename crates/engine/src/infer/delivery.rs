//! What the guest is told of, packets and reads that have ended, and whether it has answered by a doorbell.

use super::guest::{Guest, GuestVcpu, Judgement, MAIN_LOOP, bit, inspect};
use super::io_bound::Verdict;
use super::ports::Port;
use super::reads::{Read, Reader};
use super::routing::Device;
use crate::config::Tavs;
use crate::event::Time;
use crate::nanos::nanos;
use crate::observe::ThreadTimes;

impl Guest {
    /// Whether an event is on its way that the guest has not been told of.
    pub(crate) fn awaits_delivery(&self) -> bool {
        self.undelivered || self.read_pending
    }

    /// Whether the emulator thread that hands packets over is awake: a vCPU that halts now may have been
    /// woken for something else, and will be for the packet.
    pub(crate) fn deliverer_is_awake(&self) -> bool {
        self.emulators.get(usize::from(self.deliverer)).is_some_and(ThreadTimes::is_awake)
    }

    /// The emulator thread that hands packets over sleeps: who halted before, and sleeps still, has not been
    /// woken for a packet again.
    pub(super) fn deliverer_slept(&mut self, config: &Tavs) {
        let patience = self.answers.patience(config);
        for index in 0..self.vcpus.len() {
            let at_rest = |vcpu: &&mut GuestVcpu| vcpu.seen.is_halted() && !vcpu.seen.thread.is_awake();
            let Some(vcpu) = self.vcpus.get_mut(index).filter(at_rest) else { continue };
            let verdict = vcpu.observer.next(None, false, patience, &self.tasks, config);
            self.learn(verdict);
        }
    }

    /// Whether a packet waits for an emulator thread that sleeps, in a guest whose network device is the
    /// emulator's: its main loop delivers, and it is known who takes the interrupts. A vhost worker waits for
    /// no lock that a vCPU may have.
    pub(crate) fn is_kept_waiting(&self) -> bool {
        let by_main_loop = self.deliverer == MAIN_LOOP && self.routing.takers(Device::Network).is_some();
        self.undelivered && by_main_loop && !self.emulator_is_awake()
    }

    /// Whether an event was delivered since this was asked last.
    pub(crate) fn take_delivered(&mut self) -> bool {
        std::mem::take(&mut self.delivered)
    }

    /// A packet was queued towards the VM. Without an emulator thread in sight it needs no help to reach the
    /// guest.
    pub(crate) fn queued(&mut self) {
        self.undelivered = !self.emulators.is_empty() && !self.emulators.iter().any(ThreadTimes::is_running);
    }

    /// The packet that was [queued](Self::queued) is on its way. The times of all vCPUs are up to date.
    pub(crate) fn packet(&mut self, port: Port, now: Time, config: &Tavs) {
        self.arrivals.add(port);
        // Some requests are of several packets.
        if let Some((before, at)) = self.asked.replace((port, now))
            && now.since(at) > nanos(config.max_boost)
        {
            self.replying.learn(before, false);
        }
        if !self.undelivered {
            self.deliver(config);
        }
    }

    /// The guest sent something from a port. Returns whether that is the reply to the last packet.
    pub(crate) fn replied(&mut self, port: Port) -> bool {
        let is_reply = self.asked.take_if(|(asked, _)| *asked == port).is_some();
        if is_reply {
            self.replying.learn(port, true);
        }
        is_reply
    }

    /// Whether the last packet is one to which the guest will reply, and it has not.
    pub(crate) fn owes_reply(&self) -> bool {
        self.asked.is_some_and(|(port, _)| self.replying.predicts(port))
    }

    /// Packets were handed to the guest. The vCPUs that take its interrupts are observed, or each if that is
    /// not known.
    pub(super) fn deliver(&mut self, config: &Tavs) {
        let single = self.arrivals.single();
        // Which packet woke whom can only be told of those that came before the guest runs, and they must all
        // be for one port.
        if self.vcpus.iter().any(|vcpu| vcpu.seen.thread.is_running()) {
            self.arrivals.clear();
        }
        self.notified();
        let takers = self.routing.takers(Device::Network);
        self.routing.delivered(Device::Network);
        let mut outstanding = 0;
        for vcpu in taking(takers, &mut self.vcpus) {
            // Verdicts from here are on the packet before, which a new one leaves unjudged.
            let _ = vcpu.observer.event_pending(single.is_some(), &vcpu.seen, &mut self.tasks, config);
            outstanding += 1;
        }
        self.judgement = single.map(|port| Judgement { port, outstanding, clear: true });
    }

    /// A read of the guest was taken up. What counts is who asked for it, not who runs by now.
    pub(crate) fn read(&mut self, request: u64, config: &Tavs) {
        let late = self.vcpus.iter().any(|vcpu| inspect(&vcpu.seen, &self.tasks, config));
        let read = self.kick.map_or(Read { io_bound: late, asker: None }, |kick| Read {
            io_bound: kick.io_bound || late,
            ..kick
        });
        self.reads.request(request, read);
    }

    /// A read has ended; returns whether it was an I/O-bound task's. The times of all vCPUs are up to date.
    pub(crate) fn read_done(&mut self, request: u64, config: &Tavs) -> bool {
        let read = self.reads.complete(request);
        self.read_pending = false;
        // What is answered from here on is the read.
        self.asked = None;
        self.routing.delivered(Device::Disk);
        for (index, vcpu) in (0u16..).zip(&mut self.vcpus) {
            let here = |asker: Reader| asker.vcpu == index && asker.switches == vcpu.seen.switches;
            if read.asker.is_some_and(here) {
                vcpu.observer.read_ended_at_once(&vcpu.seen, &mut self.tasks, config);
                vcpu.falling_asleep = vcpu.seen.current().is_some_and(|task| self.tasks.is_io_bound(task));
                vcpu.seen.begin_run(0);
            } else {
                let _ = vcpu.observer.event_pending(false, &vcpu.seen, &mut self.tasks, config);
            }
        }
        self.notified();
        read.io_bound
    }

    /// The guest was notified of an event: what was to be answered before is as answered as it will be.
    fn notified(&mut self) {
        self.delivered = true;
        let tells_takers = self.routing.takers(Device::Network).is_some();
        for vcpu in &mut self.vcpus {
            if vcpu.served && !vcpu.rang {
                self.answers.handled(false);
            }
            let io_bound = vcpu.seen.current().is_some_and(|task| self.tasks.is_io_bound(task));
            let only_loaded = vcpu.resumed && tells_takers && !vcpu.served;
            vcpu.served = io_bound && !vcpu.falling_asleep && !only_loaded;
            (vcpu.rang, vcpu.handles_since) = (false, None);
        }
    }

    /// The guest rang a doorbell on a vCPU. Returns whether what it was told of is answered by that.
    pub(crate) fn doorbell(&mut self, index: u16) -> bool {
        if self.awaits_delivery() {
            return false;
        }
        // Of one that is halted the emulator wakes its threads for itself.
        let serves = |vcpu: &&mut GuestVcpu| vcpu.served && !vcpu.seen.is_halted();
        let Some(vcpu) = self.vcpus.get_mut(usize::from(index)).filter(serves) else {
            return false;
        };
        if !std::mem::replace(&mut vcpu.rang, true) {
            self.answers.handled(true);
        }
        !self.owes_reply()
    }

    /// Whether what the guest was told of last is answered, when an I/O-bound task has given up a vCPU: the
    /// guest has replied; or, where no reply is seen, it has rung a doorbell, or is none that would.
    pub(crate) fn is_answered(&self, index: u16) -> bool {
        if self.owes_reply() {
            return false;
        }
        let Some(vcpu) = self.vcpus.get(usize::from(index)).filter(|vcpu| vcpu.served) else { return false };
        !self.awaits_delivery() && (vcpu.rang || !self.answers.expects_doorbell(vcpu.seen.is_sampled()))
    }

    /// Takes a vCPU's verdict on the packet (TAVS §4.3.2).
    pub(super) fn learn(&mut self, verdict: Option<Verdict>) {
        let (Some(verdict), Some(judgement)) = (verdict, self.judgement.as_mut()) else { return };
        judgement.outstanding = judgement.outstanding.saturating_sub(1);
        match verdict {
            Verdict::IoBound => self.ports.learn(judgement.port, true),
            Verdict::Unclear => judgement.clear = false,
            Verdict::NotIoBound => {}
        }
        if verdict == Verdict::IoBound {
            self.judgement = None;
        } else if judgement.outstanding == 0 {
            if judgement.clear {
                self.ports.learn(judgement.port, false);
            }
            self.judgement = None;
        }
    }
}

/// The vCPUs of a set, or all if it is not known or none of it exists.
fn taking(set: Option<u64>, vcpus: &mut [GuestVcpu]) -> impl Iterator<Item = &mut GuestVcpu> {
    let here = (0u16..).take(vcpus.len()).fold(0, |here, index| here | bit(index));
    let set = set.filter(|set| set & here != 0);
    (0u16..)
        .zip(vcpus)
        .filter(move |(index, _)| set.is_none_or(|set| set & bit(*index) != 0))
        .map(|(_, vcpu)| vcpu)
}
