//! What a producer may leave in its ring: bodies of property tests, and of fuzzing with coverage (`fuzz/`).

#![allow(clippy::unwrap_used)] // What panics is found.

use crate::layout::{Geometry, MAGIC, Mapping, VERSION, header};
use crate::{Consumer, Producer};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

fn count(consumer: &mut Consumer, vcpu: u16) -> usize {
    let mut count = 0;
    consumer.drain(vcpu, usize::MAX, |_| count += 1);
    count
}

/// Garbage in the lanes is survived; each 64 words are written before another look.
pub fn lanes(garbage: &[u64]) {
    let producer = Producer::with_capacity(2, 8).unwrap();
    let mut consumer =
        Consumer::with_capacity(producer.as_fd().try_clone_to_owned().unwrap().into(), 8).unwrap();
    let geometry = Geometry { vcpus: 2, capacity: 8 };
    let mapping = Mapping::new(&producer, geometry.words()).unwrap();
    for round in garbage.chunks(64) {
        for (word, value) in mapping.words()[header::WORDS..].iter().zip(round.iter().cycle()) {
            word.store(*value, Relaxed);
        }
        for vcpu in 0..3 {
            assert!(count(&mut consumer, vcpu) <= 8);
            let _ = (consumer.current_task(vcpu), consumer.dropped(vcpu));
        }
    }
}

/// Garbage in the header of a file of this size is refused or survived.
pub fn header(words: [u64; header::WORDS], size: u64) {
    let memfd = memfd_create("garbage", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, size).unwrap();
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    if size >= 64 {
        let mapping = Mapping::new(&memfd, header::WORDS).unwrap();
        for (word, value) in mapping.words().iter().zip(words) {
            word.store(value, Relaxed)
        }
        // Get past the first two checks, which random numbers rarely do.
        mapping.words()[header::MAGIC].store(MAGIC, Relaxed);
        mapping.words()[header::VERSION].store(VERSION, Relaxed);
    }
    if let Ok(mut consumer) = Consumer::attach(memfd.into()) {
        for vcpu in 0..consumer.vcpus() {
            count(&mut consumer, vcpu);
        }
    }
}
