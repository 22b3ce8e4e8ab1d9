//! Timers in the total order of (time, sequence).

/// Simulated time and CPU time, in nanoseconds.
pub type Nanos = u64;

/// A point in time that does not come: that of a timer which is not armed.
pub const NEVER: Nanos = Nanos::MAX;

/// A timer of a [`Queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer(u32);

/// Children of a node. Four make the heap half as deep as two, and lie side by side in memory.
const ARITY: usize = 4;
/// Place of a timer that is not armed.
const IDLE: u32 = u32::MAX;

/// When a timer fires and which: from the highest bits on the time, the sequence and the timer, so that the
/// order of nodes is that of the numbers, and the children of a node fill a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimerNode(u128);

/// Bits of a sequence: enough for days at millions of events per second.
const SEQUENCE_BITS: u32 = 40;
/// Bits of a timer's number.
const TIMER_BITS: u32 = 24;

impl TimerNode {
    fn new(at: Nanos, sequence: u64, timer: Timer) -> TimerNode {
        let sequence = sequence % (1 << SEQUENCE_BITS);
        TimerNode(u128::from(at) << 64 | u128::from(sequence << TIMER_BITS | u64::from(timer.0)))
    }

    #[allow(clippy::cast_possible_truncation)] // What is cut off is cut off on purpose.
    fn at(self) -> Nanos {
        (self.0 >> 64) as u64
    }

    #[allow(clippy::cast_possible_truncation)]
    fn timer(self) -> usize {
        self.0 as usize % (1 << TIMER_BITS)
    }
}

/// All that will happen: an indexed heap of timers, each of which is armed at most once.
///
/// Whoever wants to be called makes a timer, once; arming, moving and cancelling it allocate nothing. Timers
/// that are due at the same time fire in the order in which they were armed.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    heap: Vec<TimerNode>,
    /// Place of each timer in the heap.
    places: Vec<u32>,
    /// What each timer stands for.
    tokens: Vec<T>,
    /// The node at the top has fired. It stays until another one takes its place, for most of what fires is
    /// armed again at once.
    hole: bool,
    sequence: u64,
    fired: u64,
}

impl<T: Copy> Default for Queue<T> {
    fn default() -> Self {
        Queue { heap: Vec::new(), places: Vec::new(), tokens: Vec::new(), hole: false, sequence: 0, fired: 0 }
    }
}

impl<T: Copy> Queue<T> {
    /// Makes a timer, which gives `token` when it fires.
    pub fn add(&mut self, token: T) -> Timer {
        let timer = u32::try_from(self.places.len()).unwrap_or(IDLE);
        assert!(timer < 1 << TIMER_BITS, "more timers than a model ever has");
        self.places.push(IDLE);
        self.tokens.push(token);
        Timer(timer)
    }

    /// Arms a timer; one that is armed moves. [`NEVER`] cancels it.
    pub fn arm(&mut self, timer: Timer, at: Nanos) {
        if at == NEVER {
            return self.cancel(timer);
        }
        self.sequence += 1;
        let node = TimerNode::new(at, self.sequence, timer);
        match self.place(timer) {
            Some(place) if node < self.heap[place] => self.sift_up(place, node),
            Some(place) => self.sift_down(place, node),
            None if std::mem::take(&mut self.hole) => self.sift_down(0, node),
            None => {
                self.heap.push(node);
                self.sift_up(self.heap.len() - 1, node);
            }
        }
    }

    /// Cancels a timer, if it is armed.
    pub fn cancel(&mut self, timer: Timer) {
        if let Some(place) = self.place(timer) {
            self.places[timer.0 as usize] = IDLE;
            self.remove(place);
        }
    }

    /// When a timer fires; [`NEVER`] if it is not armed.
    #[must_use]
    pub fn due(&self, timer: Timer) -> Nanos {
        self.place(timer).map_or(NEVER, |place| self.heap[place].at())
    }

    /// The time of the next timer; [`NEVER`] if none is armed.
    #[must_use]
    pub fn next(&self) -> Nanos {
        let first =
            if self.hole { self.least_child(0).map(|(node, _)| node) } else { self.heap.first().copied() };
        first.map_or(NEVER, TimerNode::at)
    }

    /// Fires the next timer: its time and its token.
    pub fn pop(&mut self) -> Option<(Nanos, T)> {
        if std::mem::take(&mut self.hole) {
            self.remove(0);
        }
        let first = *self.heap.first()?;
        self.places[first.timer()] = IDLE;
        self.hole = true;
        self.fired += 1;
        Some((first.at(), self.tokens[first.timer()]))
    }

    /// Timers that fired so far.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    fn place(&self, timer: Timer) -> Option<usize> {
        let place = self.places[timer.0 as usize];
        (place != IDLE).then_some(place as usize)
    }

    /// Takes a node out; its timer is not armed any more.
    fn remove(&mut self, place: usize) {
        let Some(last) = self.heap.pop() else { return };
        if place == self.heap.len() {
            return;
        }
        if place > 0 && last < self.heap[(place - 1) / ARITY] {
            self.sift_up(place, last);
        } else {
            self.sift_down(place, last);
        }
    }

    fn put(&mut self, place: usize, node: TimerNode) {
        self.heap[place] = node;
        self.places[node.timer()] = u32::try_from(place).unwrap_or(IDLE);
    }

    fn sift_up(&mut self, mut place: usize, node: TimerNode) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if node >= self.heap[parent] {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, node);
    }

    fn sift_down(&mut self, mut place: usize, node: TimerNode) {
        while let Some((least, child)) = self.least_child(place).filter(|(least, _)| *least < node) {
            self.put(place, least);
            place = child;
        }
        self.put(place, node);
    }

    /// The first of the children of a node, and its place.
    fn least_child(&self, place: usize) -> Option<(TimerNode, usize)> {
        let first = place * ARITY + 1;
        let less = |a: (TimerNode, usize), b: (TimerNode, usize)| if b.0 < a.0 { b } else { a };
        let children = self.heap.get(first..)?;
        if let Some([a, b, c, d]) = children.first_chunk() {
            let (ab, cd) = (less((*a, first), (*b, first + 1)), less((*c, first + 2), (*d, first + 3)));
            return Some(less(ab, cd));
        }
        children.iter().copied().zip(first..).reduce(less)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn timers_of_one_time_fire_in_the_order_in_which_they_were_armed() {
        let mut queue = Queue::default();
        let timers: Vec<_> = (0..9).map(|token| queue.add(token)).collect();
        for token in [3, 1, 8, 2] {
            queue.arm(timers[token], 5);
        }
        queue.arm(timers[1], 5);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(5, 3), (5, 8), (5, 2), (5, 1)]);
    }

    #[test]
    fn behaves_as_a_sorted_list_does() {
        let mut rng = Rng::new(1, 2);
        let mut queue = Queue::default();
        let timers: Vec<_> = (0..50usize).map(|token| queue.add(token)).collect();
        let mut list: Vec<(Nanos, u64, usize)> = Vec::new();
        let mut now = 0;
        for step in 0..20_000u64 {
            let token = usize::try_from(rng.uniform(0, 49)).unwrap();
            match rng.uniform(0, 2) {
                0 => {
                    let at = now + rng.uniform(0, 30);
                    queue.arm(timers[token], at);
                    list.retain(|entry| entry.2 != token);
                    list.push((at, step, token));
                }
                1 => {
                    queue.cancel(timers[token]);
                    list.retain(|entry| entry.2 != token);
                }
                _ => {
                    list.sort_unstable();
                    let first = (!list.is_empty()).then(|| list.remove(0));
                    assert_eq!(queue.pop(), first.map(|(at, _, token)| (at, token)));
                    now = first.map_or(now, |first| first.0);
                }
            }
            assert_eq!(queue.next(), list.iter().map(|entry| entry.0).min().unwrap_or(NEVER));
        }
    }
}
