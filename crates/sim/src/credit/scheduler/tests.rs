//! Each test pins a behaviour of the original that the papers' paragraphs do not tell.

mod bench;

use super::*;
use crate::Flow;
use bench::{Bench, exact};

const MS: Nanos = 1_000_000;
const US: Nanos = 1_000;

#[test]
fn note_1_charging_is_by_sampling() {
    let mut bench = Bench::plain(2);
    // The first runs 9.9 ms and sleeps over the tick; the second runs 0.2 ms over it.
    bench.wake(0);
    bench.to(9_900 * US);
    bench.block(0);
    bench.wake(1);
    bench.to(10_100 * US);
    assert_eq!((bench.credits(0), bench.credits(1)), (0, -100));
}

#[test]
fn note_2_one_unlucky_tick_is_over_for_periods_and_unboosted() {
    let mut bench = Bench::plain(9);
    (0..8).for_each(|hog| bench.hog(hog));
    bench.to(999_900 * US);
    bench.wake(8);
    bench.to(1_000_100 * US);
    bench.block(8);
    assert_eq!(bench.credits(8), -100);
    let mut over = 0;
    for period in 1..=4 {
        bench.to(period * 30 * MS + 991 * MS);
        if bench.stored(8) == Priority::Over {
            over += 1;
            // It wakes and waits behind the hogs.
            bench.wake(8);
            assert_ne!(bench.runs(), Some(8));
            bench.put_to_sleep(8);
        }
    }
    assert!((2..=3).contains(&over), "{over}");
}

#[test]
fn note_3_boost_starts_at_a_wake_up_while_under() {
    let mut bench = Bench::plain(3);
    bench.hog(0);
    bench.to(5 * MS);
    // A new vCPU's first wake-up is boosted, and preempts.
    bench.wake(1);
    assert_eq!((bench.runs(), bench.stored(1)), (Some(1), Priority::Boost));
    // One that is OVER is not.
    bench.set_credits(2, -1);
    bench.wake(2);
    assert_eq!((bench.runs(), bench.stored(2)), (Some(1), Priority::Over));
    // One that runs or waits is not woken: what is pending for it boosts nobody.
    bench.wake(0);
    assert_eq!((bench.stored(0), bench.queue()), (Priority::Under, vec![0, 2]));
}

#[test]
fn note_3_the_stored_priority_is_that_of_the_last_accounting() {
    let mut bench = Bench::plain(2);
    bench.hog(0);
    bench.to(MS);
    bench.wake(1);
    bench.block(1);
    bench.set_credits(1, -50);
    bench.credit.get().vcpu(Entity(1)).stored = Priority::Under;
    bench.wake(1);
    assert_eq!((bench.runs(), bench.stored(1)), (Some(1), Priority::Boost));
}

#[test]
fn note_4_boost_ends_at_a_tick_or_an_accounting_not_by_blocking_and_nobody_is_rescheduled() {
    let mut bench = Bench::plain(3);
    bench.hog(0);
    bench.to(9 * MS);
    bench.wake(1);
    bench.block(1);
    assert_eq!(bench.stored(1), Priority::Boost, "blocking does not end it");
    bench.wake(1);
    bench.wake(2);
    assert_eq!((bench.runs(), bench.queue()), (Some(1), vec![2, 0]));
    // The tick demotes the one that runs; the other is BOOST and waits all the same.
    bench.to(11 * MS);
    assert_eq!((bench.stored(1), bench.stored(2)), (Priority::Under, Priority::Boost));
    assert_eq!(bench.runs(), Some(1));
    bench.to(39 * MS - 1);
    assert_eq!(bench.runs(), Some(1), "until its slice ends");
    // The accounting at 30 ms demoted nobody who is not on the active list.
    assert_eq!(bench.stored(2), Priority::Boost);
    bench.to(39 * MS);
    assert_eq!(bench.runs(), Some(2));
    bench.to(41 * MS);
    bench.block(2);
    bench.credit.get().vcpu(Entity(2)).stored = Priority::Boost;
    bench.to(61 * MS);
    assert_ne!(bench.stored(2), Priority::Boost, "accounting demotes who sleeps, too");
}

#[test]
fn note_5_a_tickle_needs_strictly_higher_priority() {
    let mut bench = Bench::plain(2);
    bench.wake(0);
    assert_eq!(bench.stored(0), Priority::Boost);
    bench.wake(1);
    assert_eq!((bench.runs(), bench.stored(1)), (Some(0), Priority::Boost), "BOOST does not preempt BOOST");
}

#[test]
fn note_5_idle_pcpus_are_kicked_whenever_the_local_one_is_busy() {
    let mut bench = Bench::new(exact(), 2, &[(256, None), (256, None), (256, None)]);
    bench.wake(0);
    // The third belongs to the first pCPU, which is busy; the second is idle and takes it, though neither
    // preempts.
    bench.wake(2);
    assert_eq!(bench.machine.host().running_on(Entity(2)), Some(Pcpu(1)));
}

#[test]
fn note_6_a_driver_domain_is_preempted_by_the_event_it_sends() {
    let mut bench = Bench::plain(3);
    bench.hog(2);
    bench.to(9_990 * US);
    bench.wake(0);
    bench.to(10_010 * US);
    assert_eq!(
        (bench.runs(), bench.stored(0)),
        (Some(0), Priority::Under),
        "a tick caught the driver domain"
    );
    // It sends an event, and has not yet blocked.
    bench.wake(1);
    assert_eq!(bench.runs(), Some(1));
    assert_eq!(bench.queue(), [2, 0], "at the tail of UNDER");
    // Its next reply finds it queued: no boost.
    bench.wake(0);
    assert_eq!((bench.stored(0), bench.queue()), (Priority::Under, vec![2, 0]));
    bench.block(1);
    assert_eq!(bench.runs(), Some(2));
}

#[test]
fn note_7_credits_by_weight_among_the_active_and_a_surplus_goes_down_the_list() {
    // Woken in this order, they are active in the reverse one: 1, then 0.
    let mut bench = Bench::new(exact(), 2, &[(100, None), (500, None)]);
    bench.wake(0);
    bench.wake(1);
    bench.to(29 * MS);
    assert_eq!((bench.credits(0), bench.credits(1)), (-200, -200));
    let order = bench.credit.get().active.clone();
    bench.to(30 * MS);
    // 600 credits: 500 are due to the heavy one, which can use 300 alone. The light one gets 100, and what is
    // left if it comes later.
    let light = if order == [Group(1), Group(0)] { 300 } else { 100 };
    assert_eq!((bench.credits(0), bench.credits(1)), (-300 + light, 0));
}

#[test]
fn note_7_new_active_domains_come_first_and_a_debt_is_handed_out_again() {
    let mut bench = Bench::plain(3);
    for entity in 0..3 {
        bench.wake(entity);
        bench.to(u64::from(entity) * 10 * MS + 11 * MS);
        bench.block(entity);
    }
    // At 10, 20 and 30 ms each paid 100; the last was active when accounts were made.
    assert_eq!(bench.credit.get().active, [Group(2), Group(1), Group(0)]);
    assert_eq!([0, 1, 2].map(|entity| bench.credits(entity)), [0, 0, 0]);
    bench.credit.get().balance = -90;
    bench.to(60 * MS);
    assert_eq!([0, 1, 2].map(|entity| bench.credits(entity)), [130, 130, 130], "300 and 90 by 3");
}

#[test]
fn note_7_the_ceiling_takes_off_the_list_and_the_floor_is_minus_300() {
    let mut bench = Bench::plain(2);
    bench.wake(0);
    bench.to(11 * MS);
    bench.block(0);
    bench.wake(1);
    bench.set_credits(0, 290);
    bench.set_credits(1, -700);
    bench.to(30 * MS);
    assert_eq!(bench.credits(0), 0, "not 300");
    assert!(!bench.credit.get().vcpu(Entity(0)).active);
    assert_eq!(bench.credits(1), -300);
}

#[test]
fn note_8_a_preempted_vcpu_goes_to_the_tail_and_later_gets_a_whole_slice() {
    let mut bench = Bench::plain(4);
    (0..3).for_each(|hog| bench.hog(hog));
    bench.to(5 * MS);
    assert_eq!((bench.runs(), bench.queue()), (Some(0), vec![1, 2]));
    bench.wake(3);
    bench.to(6 * MS);
    bench.block(3);
    // The I/O rotated the hogs: the first lost 25 ms of its slice.
    assert_eq!((bench.runs(), bench.queue()), (Some(1), vec![2, 0]));
    bench.to(36 * MS);
    assert_eq!(bench.work.dispatches.last(), Some(&(36 * MS, Entity(2))));
}

#[test]
fn note_9_every_pass_queues_the_current_one_first_and_rearms_the_slice() {
    let mut bench = Bench::plain(2);
    bench.wake(0);
    bench.to(20 * MS);
    bench.flow(0, Flow::Yield);
    assert_eq!(bench.runs(), Some(0), "alone, it goes on");
    assert_eq!(bench.credit.get().pcpus[0].slice_due, 50 * MS, "with a new slice");
    bench.wake(1);
    bench.block(1);
    bench.set_credits(1, 0);
    bench.credit.get().vcpu(Entity(1)).stored = Priority::Over;
    bench.wake(1);
    bench.set_credits(0, -1);
    bench.flow(0, Flow::Yield);
    assert_eq!(bench.runs(), Some(1), "a yield goes behind those of its priority");
}

#[test]
fn note_10_the_queue_is_sorted_by_the_tick_after_an_accounting() {
    let mut queue = RunQueue::default();
    queue.insert(Entity(0), Priority::Under, false);
    queue.insert(Entity(1), Priority::Under, false);
    queue.insert(Entity(2), Priority::Under, false);
    queue.insert(Entity(3), Priority::Under, false);
    queue.reprioritise(Entity(0), Priority::Over);
    queue.reprioritise(Entity(2), Priority::Boost);
    assert_eq!(queue.head(), Some((Entity(0), Priority::Over)), "the order stays until then");
    queue.sort();
    let order: Vec<_> = queue.iter().map(|(entity, _)| entity.0).collect();
    assert_eq!(order, [1, 2, 3, 0], "BOOST does not pass UNDER");
}

#[test]
fn note_11_stealing_is_only_for_strictly_higher_priority_from_the_next_pcpu() {
    let mut credit = Bench::new(exact(), 3, &[(256, None); 9]);
    (0..9).for_each(|entity| credit.wake(entity));
    let shared = credit.credit.clone();
    let mut scheduler = shared.get();
    for entity in 0..9 {
        scheduler.vcpu(Entity(entity)).stored = Priority::Over;
        if scheduler.vcpu(Entity(entity)).queued {
            scheduler.dequeue(Entity(entity));
            scheduler.enqueue(Entity(entity), false);
        }
    }
    let host = credit.machine.host();
    assert_eq!(scheduler.steal(host, Pcpu(0), Priority::Over), None, "OVER never steals OVER");
    let waiting = |scheduler: &Credit, pcpu: usize| scheduler.pcpus[pcpu].queue.head().unwrap().0;
    let (second, third) = (waiting(&scheduler, 1), waiting(&scheduler, 2));
    for entity in [second, third] {
        scheduler.dequeue(entity);
        scheduler.vcpu(entity).stored = Priority::Under;
        scheduler.enqueue(entity, false);
    }
    assert_eq!(scheduler.steal(host, Pcpu(0), Priority::Over), Some(second), "the next one first");
    assert_eq!(scheduler.steal(host, Pcpu(1), Priority::Over), Some(third), "cyclically");
}

#[test]
fn note_12_a_cap_parks_and_unparks_at_accounting_without_a_boost() {
    let mut bench = Bench::new(exact(), 1, &[(256, Some(50)), (256, None)]);
    bench.wake(0);
    bench.to(29 * MS);
    assert_eq!(bench.runs(), Some(0), "not before the accounting");
    // -200 and another tick, then half a period's credits.
    bench.to(30 * MS);
    assert_eq!((bench.credits(0), bench.runs()), (-150, Some(0)), "not below the cap");
    bench.to(60 * MS);
    assert_eq!((bench.credits(0), bench.runs()), (-300, None), "parked");
    bench.to(61 * MS);
    bench.wake(0);
    assert_eq!(bench.runs(), None);
    bench.to(121 * MS);
    assert_eq!((bench.runs(), bench.stored(0)), (Some(0), Priority::Under), "unparked, and not boosted");
    let capped = bench.machine.host().ran(Entity(0));
    bench.to(3_000 * MS);
    let share = (bench.machine.host().ran(Entity(0)) - capped) * 100 / (2_879 * MS);
    assert!((48..=52).contains(&share), "{share} %");
}

#[test]
fn note_12_ticks_on_an_idle_pcpu_charge_nothing() {
    let mut bench = Bench::plain(1);
    bench.to(100 * MS);
    assert_eq!(bench.credits(0), 0);
    assert!(Priority::Idle < Priority::Over);
}

#[test]
fn note_13_a_tick_charges_then_accounts_then_sorts() {
    let mut bench = Bench::plain(2);
    bench.wake(0);
    bench.to(29 * MS);
    assert_eq!(bench.credits(0), -200);
    bench.to(30 * MS);
    // Charged first, it is paid in the same tick; and the queue is sorted in it, too.
    assert_eq!(bench.credits(0), 0);
    let credit = bench.credit.get();
    assert_eq!(credit.pcpus[0].sorted, credit.epoch);
}

#[test]
fn note_13_later_versions_account_by_a_timer_of_its_own() {
    let config = Config { accounting_timer: true, timers_late: true, ..Config::default() };
    let mut bench = Bench::new(config, 1, &[(256, None), (256, None)]);
    bench.wake(0);
    bench.to(30 * MS);
    assert_eq!(bench.credits(0), -200, "timers fire late");
    bench.to(30 * MS + 150 * US);
    assert!([0, -100].contains(&bench.credits(0)), "{}", bench.credits(0));
    assert!(bench.credit.get().accounting.is_some());
}

#[test]
fn note_13_timers_fire_up_to_50_us_early() {
    let mut bench = Bench::new(Config::default(), 1, &[(256, None), (256, None)]);
    bench.to(40 * US);
    bench.wake(0);
    bench.wake(1);
    bench.to(30 * MS);
    // Its slice would end at 30.04 ms; the tick at 30 ms takes that along.
    assert_eq!(bench.work.dispatches, [(40 * US, Entity(0)), (30 * MS, Entity(1))]);
}

#[test]
fn fine_accounting_charges_what_ran() {
    let config = Config { fine_accounting: true, ..exact() };
    let mut bench = Bench::new(config, 1, &[(256, None), (256, None)]);
    bench.wake(0);
    bench.to(3 * MS);
    bench.block(0);
    bench.wake(1);
    bench.to(11 * MS);
    assert_eq!((bench.credits(0), bench.credits(1)), (-30, -70));
    bench.to(31 * MS);
    assert_eq!(bench.credits(0), -30, "it ran at no tick, so it earns nothing");
}

#[test]
fn head_of_list_keeps_the_place_of_who_a_driver_domain_preempts() {
    let config = Config { head_of_list: true, ..exact() };
    let mut bench = Bench::new(config, 1, &[(256, None); 4]);
    (1..4).for_each(|hog| bench.hog(hog));
    bench.to(5 * MS);
    bench.wake(0);
    assert_eq!((bench.runs(), bench.queue()), (Some(0), vec![1, 2, 3]));
    bench.block(0);
    assert_eq!(bench.runs(), Some(1));
}

#[test]
fn a_partial_boost_is_whatever_the_priority_and_gives_way_when_it_is_revoked() {
    let mut bench = Bench::plain(3);
    bench.wake(0);
    bench.set_credits(0, 0);
    bench.set_credits(1, -100);
    bench.wake(1);
    assert_eq!(bench.runs(), Some(0));
    bench.machine.boost(Entity(1), Boost::Io);
    bench.to(bench.machine.now());
    assert_eq!(bench.runs(), Some(1), "OVER, and boosted all the same");
    bench.machine.boost(Entity(1), Boost::None);
    bench.to(bench.machine.now());
    assert_eq!((bench.runs(), bench.stored(1)), (Some(0), Priority::Over));
}

#[test]
fn equal_weights_get_equal_shares_on_any_number_of_pcpus() {
    // Where 300 can be divided: what is rounded up otherwise is lost to whom it takes above the ceiling, up
    // to 2 %.
    for (pcpus, each) in [(1u16, 4), (1, 6), (2, 3), (8, 2), (8, 3)] {
        for fine_accounting in [false, true] {
            let config = Config { fine_accounting, ..Config::default() };
            let domains = usize::from(pcpus) * each;
            let mut bench = Bench::new(config, pcpus, &vec![(256, None); domains]);
            let entities = 0..u32::try_from(domains).unwrap();
            for entity in entities.clone() {
                bench.wake(entity);
                bench.to(bench.machine.now() + 7 * MS);
            }
            bench.to(10_000 * MS);
            let ran = |bench: &Bench, entity| bench.machine.host().ran(Entity(entity));
            let begin: Vec<Nanos> = entities.clone().map(|entity| ran(&bench, entity)).collect();
            let start = bench.machine.now();
            bench.to(start + 120_000 * MS);
            let ideal = 120_000.0 * f64::from(pcpus) / f64::from(entities.end);
            for entity in entities {
                let got = (ran(&bench, entity) - begin[entity as usize]) / MS;
                let error = f64::from(u32::try_from(got).unwrap()) / ideal - 1.0;
                assert!(
                    error.abs() < 0.01,
                    "{pcpus} pCPUs, {entity}: {got} ms of {ideal}, {fine_accounting}"
                );
            }
        }
    }
}

#[test]
fn staggered_ticks_have_a_phase_each_and_the_same_period() {
    let due = |staggered_ticks, rng| {
        let config = Config { staggered_ticks, ..exact() };
        let mut bench = Bench::seeded(config, 4, &[(256, None); 4], rng);
        let ticks = |bench: &Bench| bench.credit.get().pcpus.iter().map(|pcpu| pcpu.tick_due).collect();
        let first: Vec<Nanos> = ticks(&bench);
        (0..4).for_each(|hog| bench.hog(hog));
        bench.to(1_000 * MS);
        let last: Vec<Nanos> = ticks(&bench);
        assert!(first.iter().zip(&last).all(|(first, last)| (last - first) % (10 * MS) == 0));
        first
    };
    assert_eq!(due(false, Rng::new(1, 0)), [10 * MS; 4]);
    let staggered = due(true, Rng::new(1, 0));
    assert!(staggered.iter().all(|due| (1..=10 * MS).contains(due)), "{staggered:?}");
    assert!((1..4).all(|pcpu| !staggered[..pcpu].contains(&staggered[pcpu])), "{staggered:?}");
    assert_eq!(staggered, due(true, Rng::new(1, 0)));
    assert_ne!(staggered, due(true, Rng::new(2, 0)));
}
