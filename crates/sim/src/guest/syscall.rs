//! The steps of the programs of a guest's tasks.

use super::{Effect, GuestKernel};
use crate::program::{Step, TaskState, Waits};
use crate::queue::Nanos;

/// Steps that a task takes without using CPU time before somebody looks whether it gets anywhere.
const MOST_FREE_STEPS: u32 = 1_000;

impl GuestKernel {
    /// CPU time that a step takes before it has its effect.
    fn price(&mut self, task: usize, step: Step) -> Nanos {
        if let Step::Prepare { window } = step {
            let (cost, frames) = self.windows[window].begin(self.now);
            if frames > 0 {
                self.effects.push(Effect::Dropped { window, frames });
            }
            return cost;
        }
        let costs = &self.costs;
        let copy = |bytes: u32| costs.copy_kib.saturating_mul(u64::from(bytes)) / 1024;
        let of_request = |average| self.tasks[task].request.map_or(average, |packet| packet.cost(average));
        match step {
            Step::Compute(time) => of_request(time),
            Step::Reply => of_request(costs.send),
            Step::Read { bytes, .. } | Step::Write { bytes, .. } => costs.block + copy(bytes),
            Step::Send { messages, .. } => costs.message.saturating_mul(u64::from(messages)),
            Step::Wait { .. } | Step::Signal { .. } | Step::WaitSignal { .. } | Step::Draw { .. } => {
                costs.message
            }
            Step::Display { .. } => costs.frame,
            Step::NewSpace | Step::Play { .. } => costs.block,
            Step::Sleep(_)
            | Step::SleepUntil(_)
            | Step::Timer { .. }
            | Step::Receive { .. }
            | Step::Done { .. }
            | Step::Prepare { .. }
            | Step::Due { .. }
            | Step::Show { .. }
            | Step::Repeat { .. }
            | Step::End => 0,
        }
    }

    /// Lets the current task of a vCPU go on; false if it gets nowhere without CPU time or others.
    pub(super) fn execute(&mut self, vcpu: usize, task: usize) -> bool {
        if self.tasks[task].began.is_none() {
            self.tasks[task].began = Some(self.now);
            self.tasks[task].released = Some(self.now);
        }
        for _ in 0..MOST_FREE_STEPS {
            let step = self.tasks[task].step();
            if !self.tasks[task].paid {
                self.tasks[task].paid = true;
                self.tasks[task].left = self.price(task, step);
                if self.tasks[task].left > 0 {
                    self.tasks[task].worked |= !matches!(step, Step::WaitSignal { mutex: None, .. });
                    return true;
                }
            }
            if let Some(waits) = self.take(vcpu, task, step) {
                self.tasks[task].state = TaskState::Blocked(waits);
                self.tasks[task].since = self.now;
                self.cpus[vcpu].current = None;
                return true;
            }
            if self.cpus[vcpu].reschedule || self.exits {
                return true;
            }
        }
        false
    }

    /// The effect of a step. What the task waits for from now on, if it does.
    fn take(&mut self, vcpu: usize, task: usize, step: Step) -> Option<Waits> {
        let state = &mut self.tasks[task];
        match step {
            Step::Repeat { from, times } => {
                state.repeat(from, times);
                return None;
            }
            Step::End => {
                self.respond(task);
                return Some(Waits::Nothing);
            }
            Step::Receive { socket, shift } => return self.receive(task, socket, shift),
            Step::Wait { channel, messages } => {
                let channel_state = &mut self.channels[channel];
                state.advance();
                if channel_state.waiting.is_empty() && channel_state.messages >= messages {
                    channel_state.messages -= messages;
                    return None;
                }
                channel_state.waiting.push_back((task, messages));
                return Some(Waits::Messages { channel });
            }
            _ => state.advance(),
        }
        match step {
            Step::Sleep(time) => {
                let at = self.now.saturating_add(time);
                self.respond(task);
                self.tasks[task].released = Some(at);
                self.effects.push(Effect::Arm { task, at });
                Some(Waits::Time)
            }
            Step::SleepUntil(period) => {
                let at = (self.now / period.max(1) + 1).saturating_mul(period);
                self.effects.push(Effect::Arm { task, at });
                Some(Waits::Time)
            }
            Step::Timer { timer, period, absolute } => self.timer(task, timer, period, absolute),
            Step::Signal { channel, all } => {
                self.signal(vcpu, channel, all);
                None
            }
            Step::WaitSignal { channel, mutex } => {
                self.channels[channel].waiting.push_back((task, 1));
                match mutex {
                    Some(mutex) => {
                        self.channels[mutex].messages = self.channels[mutex].messages.saturating_add(1);
                        self.serve_channel(vcpu, mutex);
                    }
                    None => self.respond(task),
                }
                Some(Waits::Messages { channel })
            }
            Step::Reply => {
                if let Some(packet) = state.request.take() {
                    self.exit();
                    self.effects.push(Effect::Reply { vcpu, packet });
                }
                None
            }
            Step::Read { bytes, sequential } => {
                self.exit();
                self.effects.push(Effect::Disk { vcpu, task, bytes, sequential, write: false, waits: true });
                Some(Waits::Disk)
            }
            Step::Write { bytes, sync: waits } => {
                self.exit();
                self.effects.push(Effect::Disk { vcpu, task, bytes, sequential: true, write: true, waits });
                waits.then_some(Waits::Disk)
            }
            Step::Send { channel, messages } => {
                self.channels[channel].messages = self.channels[channel].messages.saturating_add(messages);
                self.serve_channel(vcpu, channel);
                None
            }
            Step::Prepare { window } => {
                self.windows[window].finish();
                None
            }
            Step::Due { window } => {
                let at = self.windows[window].first_due().filter(|due| *due > self.now)?;
                self.effects.push(Effect::Arm { task, at });
                Some(Waits::Time)
            }
            Step::Show { window, late } => {
                if !self.windows[window].show(self.now) {
                    self.tasks[task].jump(late);
                    self.effects.push(Effect::Dropped { window, frames: 1 });
                    self.make_room(vcpu, window);
                }
                None
            }
            Step::Draw { window } => {
                self.asked.push_back(window);
                let server = self.display_server?;
                self.channels[server].messages = self.channels[server].messages.saturating_add(1);
                self.serve_channel(vcpu, server);
                None
            }
            Step::Display { window, gpu } => {
                self.exit();
                let window = window.or_else(|| self.asked.pop_front());
                self.effects.push(Effect::Frame { vcpu, task, window, gpu });
                if let Some(window) = window {
                    self.make_room(vcpu, window);
                }
                (gpu > 0).then_some(Waits::Gpu)
            }
            Step::Play { period } => {
                self.exit();
                self.effects.push(Effect::Sound { vcpu, task, period });
                Some(Waits::Sound)
            }
            Step::Done { bytes } => {
                let workload = state.workload;
                if let Some(packet) = state.request.take_if(|_| bytes > 0) {
                    self.exit();
                    self.effects.push(Effect::Took { vcpu, packet });
                }
                self.effects.push(Effect::Done { workload, bytes });
                None
            }
            Step::NewSpace => {
                let (before, space) = (self.tasks[task].space, self.new_space());
                // A program's threads are new, too.
                let threads = self.tasks.iter_mut().filter(|thread| thread.space == before);
                threads.for_each(|thread| thread.space = space);
                self.cpus[vcpu].loaded = Some(space);
                self.effects.push(Effect::Switch { vcpu, space });
                None
            }
            _ => None,
        }
    }

    /// A task of a file waits for time, or to be resumed: what it was released for is done.
    fn respond(&mut self, task: usize) {
        let state = &mut self.tasks[task];
        let (released, worked) = (state.released.take(), std::mem::take(&mut state.worked));
        if let Some(released) = released.filter(|_| worked && state.name.is_some()) {
            self.effects.push(Effect::Responded { task, released });
        }
    }

    /// Another frame of a window may be begun.
    fn make_room(&mut self, vcpu: usize, window: usize) {
        let room = self.windows[window].room;
        self.channels[room].messages = self.channels[room].messages.saturating_add(1);
        self.serve_channel(vcpu, room);
    }

    fn receive(&mut self, task: usize, socket: usize, shift: Option<(Nanos, usize)>) -> Option<Waits> {
        if let Some((period, elsewhere)) = shift {
            let number = self.now / period.max(1);
            if number % 2 == 1 {
                self.tasks[task].jump(elsewhere);
                return None;
            }
        }
        if let Some(packet) = self.sockets[socket].backlog.pop_front() {
            self.tasks[task].request = Some(packet);
            self.tasks[task].advance();
            return None;
        }
        if let Some((period, _)) = shift {
            let at = (self.now / period.max(1) + 1).saturating_mul(period);
            self.effects.push(Effect::Arm { task, at });
        }
        self.tasks[task].paid = false;
        self.sockets[socket].waiting.push_back(task);
        Some(Waits::Packet { socket })
    }

    fn timer(&mut self, task: usize, timer: usize, period: Nanos, absolute: bool) -> Option<Waits> {
        let began = self.tasks[task].began.unwrap_or(self.now);
        let at = self.timers[timer].unwrap_or(began).saturating_add(period);
        let missed = at <= self.now;
        let expired = if missed && !absolute { self.now } else { at };
        self.timers[timer] = Some(expired);
        self.respond(task);
        self.tasks[task].released = Some(expired);
        if missed {
            return None;
        }
        self.effects.push(Effect::Arm { task, at });
        Some(Waits::Time)
    }

    fn signal(&mut self, vcpu: usize, channel: usize, all: bool) {
        while let Some((task, _)) = self.channels[channel].waiting.pop_front() {
            self.tasks[task].released.get_or_insert(self.now);
            self.wake(vcpu, task, false);
            if !all {
                return;
            }
        }
    }

    /// Gives messages to those that wait for them, in order.
    fn serve_channel(&mut self, vcpu: usize, channel: usize) {
        while let Some((task, messages)) = self.channels[channel].waiting.front().copied() {
            if self.channels[channel].messages < messages {
                return;
            }
            self.channels[channel].messages -= messages;
            self.channels[channel].waiting.pop_front();
            self.wake(vcpu, task, false);
        }
    }
}
