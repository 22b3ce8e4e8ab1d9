//! Fairness, with an ideal fluid in place of the world's scheduler.

use super::*;
use crate::knob::book::HALF;
use crate::nanos::nanos_f64;
use crate::nanos::signed;

/// VMs that want all they can get share one CPU; the first ones are boosted for a part of the time, on
/// top of what their share gives. The fair class is modelled as an ideal fluid. What each got over its
/// fair share, after a minute: what is still owed then is bounded, however long it goes on. The
/// scheduler's `bias` for a VM in a window, in permille, is what it takes its weight for.
fn shares_after(weights: &[u32], boosted: &[u64], bias: impl Fn(u32, u64) -> u64) -> Vec<f64> {
    let config = Config::default();
    let mut ledger = Ledger::default();
    let claim =
        |(vm, weight): (u32, &u32)| VmAccount { weight: *weight, threads: 2, ..VmAccount::on(vm, &[0]) };
    let mut claims: Vec<VmAccount> = (0..).zip(weights).map(claim).collect();
    let mut now = Time(0);
    ledger.open(now, claims.iter().copied(), &config);
    let window = nanos(config.period);
    let rest = window - boosted.iter().sum::<u64>();
    for step in 0..1200 {
        let effective = |claim: &VmAccount| {
            let weight = u64::from(claim.weight) * u64::from(ledger.permille(claim.vm));
            weight * bias(claim.vm.0, step) / 1000
        };
        let all: u64 = claims.iter().map(effective).sum();
        let ran: Vec<u64> = claims.iter().map(|claim| rest * effective(claim) / all).collect();
        for (i, claim) in claims.iter_mut().enumerate() {
            let boosted = boosted.get(i).copied().unwrap_or(0);
            claim.ran += ran[i] + boosted;
            claim.boosted += boosted;
            claim.unmet = window - ran[i] - boosted;
        }
        now = now.plus(window);
        ledger.settle(now, &claims, &config);
    }
    let total: u64 = claims.iter().map(|claim| claim.ran).sum();
    let weights: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let share = |claim: &VmAccount| {
        nanos_f64(claim.ran) / nanos_f64(total) * nanos_f64(weights) / f64::from(claim.weight)
    };
    claims.iter().map(share).collect()
}

/// One of three is boosted, and what another one ran is not known: the two others settle, and who floods owes
/// what it was boosted.
#[test]
fn who_floods_keeps_nobody_from_settling() {
    let config = Config::default();
    let window = nanos(config.period);
    let mut ledger = Ledger::default();
    let mut claims: Vec<VmAccount> = (0..3).map(|vm| VmAccount::on(vm, &[0])).collect();
    claims[2].unsure = true;
    ledger.open(Time(0), claims.iter().copied(), &config);
    let boosted = [window / 20, 0, window / 50];
    let rest = window - boosted.iter().sum::<u64>();
    for step in 1..=600 {
        let all: u64 = claims.iter().map(|claim| u64::from(ledger.permille(claim.vm))).sum();
        let ran: Vec<u64> =
            claims.iter().map(|claim| rest * u64::from(ledger.permille(claim.vm)) / all).collect();
        for ((claim, ran), boosted) in claims.iter_mut().zip(ran).zip(boosted) {
            claim.ran += ran + boosted;
            claim.boosted += boosted;
            claim.unmet = window - ran - boosted;
        }
        // Of the last one nobody hears.
        let told = [claims[0], claims[1], VmAccount { ran: 0, ..claims[2] }];
        ledger.settle(Time(step * window), &told, &config);
    }
    let [one, other] = [claims[0].ran, claims[1].ran].map(nanos_f64);
    assert!((one / other - 1.0).abs() < 0.01, "{one} and {other}");
    assert!(ledger.debt(VmId(2)) >= signed(500 * boosted[2]), "{}", ledger.debt(VmId(2)));
}

/// Each time the accounts are opened one of two has had far more that is told only then; it is of before.
#[test]
fn what_is_of_before_is_not_settled() {
    let config = Config::default();
    let window = nanos(config.period);
    for (leaves_out, is_lowered) in [(true, false), (false, true)] {
        let mut ledger = Ledger::default();
        let mut claims: Vec<VmAccount> = (0..2).map(|vm| VmAccount::on(vm, &[0])).collect();
        let mut lowered = false;
        for round in 0..50 {
            let now = Time(round * 100 * window);
            ledger.open(now, claims.iter().copied(), &config);
            claims[1].ran += window / 2;
            if leaves_out {
                ledger.leave_out(claims[1].vm, window / 2);
            }
            for claim in &mut claims {
                claim.ran += window / 2;
                claim.unmet = window / 2;
            }
            let changes = ledger.settle(now.plus(window), &claims, &config);
            lowered |= changes.iter().any(|(vm, permille)| *vm == claims[1].vm && *permille < FULL);
        }
        assert_eq!(lowered, is_lowered, "{leaves_out}");
    }
}

#[test]
fn what_a_boost_gave_is_taken_back() {
    let shares = shares_after(&[1024; 6], &[2_500_000], |_, _| 1000);
    assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.01), "{shares:?}");
}

proptest::proptest! {
    /// Fairness: as long as no VM is boosted for more than its fair share, each gets that share.
    #[test]
    fn every_vm_gets_its_fair_share(
        weights in proptest::collection::vec(512..4096u32, 2..9),
        boosts in proptest::collection::vec(0.0..0.8f64, 0..4),
    ) {
        let all: u32 = weights.iter().sum();
        let window = nanos_f64(nanos(Config::default().period));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Below the window, above zero.
        let boosted: Vec<u64> = weights
            .iter()
            .zip(boosts)
            .map(|(weight, part)| (window * part * f64::from(*weight) / f64::from(all)) as u64)
            .collect();
        let shares = shares_after(&weights, &boosted, |_, _| 1000);
        proptest::prop_assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.02), "{:?}", shares);
    }
}

/// A scheduler gives some VMs more than others all the time, or keeps one from running for half a second
/// now and then.
#[test]
fn what_an_unfair_scheduler_gives_is_evened_out() {
    let favours = |vm: u32, _: u64| [1300u64, 1000, 700, 1000, 1100, 900][vm as usize];
    let starves = |vm: u32, step: u64| if vm == 0 && step % 60 < 10 { 10u64 } else { 1000 };
    for (name, bias) in [("favours", &favours as &dyn Fn(u32, u64) -> u64), ("starves", &starves)] {
        for boosted in [&[][..], &[2_500_000]] {
            let shares = shares_after(&[1024; 6], boosted, bias);
            assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.01), "{name} {boosted:?}: {shares:?}");
        }
    }
}

/// A VM that needs little of its share had more than that in one window, boosted. It gets all it wants ever
/// after.
#[test]
fn who_wants_less_than_its_share_repays_with_the_rest() {
    const MS: u64 = 1_000_000;
    let config = Config::default();
    let mut ledger = Ledger::default();
    let claim = |vm, ran, boosted| {
        let unmet = if vm == 0 { 0 } else { 50 * MS };
        VmAccount { ran, unmet, boosted, ..VmAccount::on(vm, &[0]) }
    };
    ledger.open(Time(0), [claim(0, 0, 0), claim(1, 0, 0)].into_iter(), &config);
    ledger.settle(Time(50 * MS), &[claim(0, 35 * MS, 35 * MS), claim(1, 15 * MS, 0)], &config);
    assert_eq!(ledger.debt(VmId(0)), signed(10 * MS));
    ledger.settle(Time(100 * MS), &[claim(0, 54 * MS, 40 * MS), claim(1, 46 * MS, 0)], &config);
    assert_eq!(ledger.debt(VmId(0)), signed(4 * MS), "6 of 25 ms were left to the other");
    ledger.settle(Time(150 * MS), &[claim(0, 55 * MS, 41 * MS), claim(1, 95 * MS, 0)], &config);
    assert_eq!(ledger.debt(VmId(0)), 0, "and no credit is saved up");
}

/// A VM has all of a CPU that it shares, window by window: by boosts, or by the world's scheduler.
#[test]
fn who_owes_for_boosts_is_overdrawn_and_repays_with_half_of_its_share_while_somebody_waits() {
    const MS: u64 = 1_000_000;
    let config = Config::default();
    let settled = |windows: u64, boosted: u64, waits: bool| {
        let mut ledger = Ledger::default();
        let account = |vm, windows, of: u64, boosted: u64, waits| {
            let (ran, boosted) = (windows * of, windows * boosted);
            VmAccount { ran, boosted, waits, unmet: 50 * MS, ..VmAccount::on(vm, &[0]) }
        };
        ledger.open(Time(0), [account(0, 0, 0, 0, false), account(1, 0, 0, 0, false)].into_iter(), &config);
        for window in 1..=windows {
            let accounts = [account(0, window, 50 * MS, boosted, waits), account(1, window, 0, 0, false)];
            ledger.settle(Time(window * 50 * MS), &accounts, &config);
        }
        ledger
    };
    let overdrawn = |ledger: &Ledger| ledger.balance(VmId(0), &config).overdrawn;
    // It is due 25 of 50 ms. What it owes is 100 ms then, and a little more.
    assert!(!overdrawn(&settled(4, 50 * MS, false)));
    assert!(overdrawn(&settled(5, 50 * MS, false)));
    assert!(overdrawn(&settled(8, 14 * MS, false)));
    // It owes as much, but the boosts are not why.
    let unfair = settled(12, 11 * MS, false);
    assert!(unfair.debt(VmId(0)) > signed(150 * MS) && !overdrawn(&unfair));
    // Its share from the next settlement on, and if it owes little at once.
    let [mut much, waited] = [false, true].map(|waits| settled(8, 50 * MS, waits));
    assert!(much.permille(VmId(0)) < HALF && waited.permille(VmId(0)) == HALF);
    assert!(!much.postpone(VmId(0), &config) && much.permille(VmId(0)) < HALF);
    let mut little = settled(1, 50 * MS, false);
    assert!(little.permille(VmId(0)) < FULL && little.postpone(VmId(0), &config));
    assert_eq!(little.permille(VmId(0)), FULL);
    assert_eq!(settled(2, 50 * MS, true).permille(VmId(0)), FULL);
}

/// What is left to those who are not boosted is all at first, then what boosts leave, and a tenth at least.
#[test]
fn what_is_not_boosted_is_known_of_all_together() {
    const MS: u64 = 1_000_000;
    let config = Config::default();
    let unboosted = |boosted: u64| {
        let mut ledger = Ledger::default();
        let account = |vm, windows: u64, ran: u64, boosted: u64| VmAccount {
            ran: windows * ran,
            boosted: windows * boosted,
            ..VmAccount::on(vm, &[0])
        };
        for windows in 0..=40 {
            let accounts = [account(0, windows, 40 * MS, boosted), account(1, windows, 10 * MS, 0)];
            if windows == 0 {
                ledger.open(Time(0), accounts.into_iter(), &config);
                assert_eq!(ledger.unboosted(), 1000);
            }
            ledger.settle(Time(windows * 50 * MS), &accounts, &config);
        }
        ledger.unboosted()
    };
    assert_eq!(unboosted(0), 1000);
    assert!((590..=610).contains(&unboosted(20 * MS)), "{}", unboosted(20 * MS));
    assert_eq!(unboosted(50 * MS), 100);
}

/// A VM that is owed CPU has a share that is low still, and gets nothing for it. It grows by little at a
/// time, but it grows.
#[test]
fn no_share_is_so_low_that_it_is_not_left_again() {
    const MS: u64 = 1_000_000;
    let config = Config::default();
    for permille in 1..FULL {
        let mut ledger = Ledger::default();
        let account = |vm, ran| VmAccount { ran, unmet: 50 * MS, ..VmAccount::on(vm, &[0]) };
        ledger.open(Time(0), [account(0, 0), account(1, 0)].into_iter(), &config);
        let book = ledger.books.get_mut(&VmId(0)).unwrap();
        (book.debt, book.unfair, book.permille) = (Some(-signed(200 * MS)), true, permille);
        ledger.settle(Time(50 * MS), &[account(0, 0), account(1, 50 * MS)], &config);
        let now = ledger.permille(VmId(0));
        assert!(now > permille, "{permille}, and then {now}");
    }
}

#[test]
fn a_vm_that_was_never_boosted_is_left_alone() {
    let config = Config::default();
    let mut ledger = Ledger::default();
    let claim = |vm, ran, boosted| VmAccount { ran, unmet: 50_000_000, boosted, ..VmAccount::on(vm, &[0]) };
    ledger.open(Time(0), [claim(0, 0, 0), claim(1, 0, 0)].into_iter(), &config);
    let changes =
        ledger.settle(Time(50_000_000), &[claim(0, 45_000_000, 0), claim(1, 5_000_000, 1_000_000)], &config);
    assert_eq!(changes, [(VmId(1), 1120)], "who was boosted and got less is owed it, a little at a time");
    assert_eq!(ledger.debt(VmId(0)), 0);
}

/// A VM with one of two vCPUs at a low weight, beside an even one, on two CPUs. The kernel divides a group's
/// weight among CPUs by the weights of what runs there, which is modelled as an ideal fluid. The share of CPU
/// that the uneven VM has at the end.
fn uneven_share(fast: u64, slow: u64, corrected: bool) -> f64 {
    const WINDOW: u64 = 50_000_000;
    let config = Config::default();
    let mut ledger = Ledger::default();
    let account = |vm, uneven| VmAccount { weight: 1024, threads: 2, uneven, ..VmAccount::on(vm, &[0, 1]) };
    let mut accounts = [account(0, corrected), account(1, false)];
    ledger.open(Time(0), accounts.iter().copied(), &config);
    for round in 1..=600 {
        let weight = 1024 * u64::from(ledger.permille(VmId(0)));
        let on = |part: u64| {
            let mine = u128::from(weight) * u128::from(part) / u128::from(fast + slow);
            u64::try_from(u128::from(WINDOW) * mine / (mine + 512_000)).unwrap()
        };
        let got = on(fast) + on(slow);
        if round == 400 {
            accounts[0].ran = 0;
            accounts[1].ran = 0;
            ledger.open(Time((round - 1) * WINDOW), accounts.iter().copied(), &config);
        }
        for (account, ran) in accounts.iter_mut().zip([got, 2 * WINDOW - got]) {
            account.ran += ran;
            account.unmet = 2 * WINDOW - ran;
        }
        if corrected {
            ledger.settle(Time(round * WINDOW), &accounts, &config);
        }
    }
    nanos_f64(accounts[0].ran) / nanos_f64(accounts[0].ran + accounts[1].ran)
}

#[test]
fn a_vm_with_unequal_vcpus_keeps_its_share() {
    for (slow, alone) in [(335, 0.46), (110, 0.40), (56, 0.37)] {
        let kernel = uneven_share(1024, slow, false);
        assert!(kernel < alone + 0.02, "the kernel alone: {kernel}");
        let share = uneven_share(1024, slow, true);
        assert!((share - 0.5).abs() < 0.005, "{slow} of 1024: {share}");
    }
}

#[test]
fn who_waits_for_an_answer_repays_later_but_not_never() {
    const MS: u64 = 1_000_000;
    let config = Config::default();
    let settled = |waits, boosted| {
        let account = |vm, ran, boosted, waits| VmAccount {
            ran,
            unmet: 50 * MS,
            boosted,
            waits,
            ..VmAccount::on(vm, &[0])
        };
        let mut ledger = Ledger::default();
        ledger.open(Time(0), [account(0, 0, 0, false), account(1, 0, 0, false)].into_iter(), &config);
        let now = [account(0, 25 * MS + boosted, boosted, waits), account(1, 25 * MS - boosted, 0, false)];
        let mut time = Time(0);
        let mut accounts = now;
        for _ in 0..8 {
            time = time.plus(50 * MS);
            ledger.settle(time, &accounts, &config);
            for (account, step) in accounts.iter_mut().zip(now) {
                (account.ran, account.boosted) = (account.ran + step.ran, account.boosted + step.boosted);
            }
        }
        ledger.permille(VmId(0))
    };
    assert!(settled(false, 5 * MS) < FULL);
    assert!(settled(true, 5 * MS) >= FULL);
    assert!(settled(true, 20 * MS) < FULL, "who waits for ever repays all the same");
}

/// Two VMs beside eight processes that nobody tells of, on one CPU. One is boosted, and both owe, as when
/// others came and went; what they have of the CPU then.
#[test]
fn what_all_owe_is_owed_to_nobody() {
    let config = Config::default();
    let window = nanos(config.period);
    let mut ledger = Ledger::default();
    let mut claims: Vec<VmAccount> = (0..2).map(|vm| VmAccount::on(vm, &[0])).collect();
    ledger.open(Time(0), claims.iter().copied(), &config);
    for book in ledger.books.values_mut() {
        (book.debt, book.unfair, book.permille) = (Some(signed(4 * window)), true, 50);
    }
    let (mut ran, steps) = ([0, 0], 800);
    for step in 1..=steps {
        let weights = [0, 1].map(|vm| u64::from(ledger.permille(VmId(vm))));
        let all = weights.iter().sum::<u64>() + 8 * u64::from(FULL);
        let boosted = [window * 35 / 1000, 0];
        for (vm, claim) in claims.iter_mut().enumerate() {
            let got = (window - boosted[0]) * weights[vm] / all + boosted[vm];
            claim.ran += got;
            claim.boosted += boosted[vm];
            claim.unmet = window - got;
            ran[vm] += got;
        }
        ledger.settle(Time(step * window), &claims, &config);
    }
    let parts = ran.map(|ran| nanos_f64(ran) / nanos_f64(steps * window));
    assert!(parts.iter().all(|part| *part > 0.08), "{parts:?}");
}

/// One of two is kept from running for a second and owed for it, but from then on is alone on its CPU, beside
/// processes that nobody tells of. It pays back nobody, and nobody pays it.
#[test]
fn what_all_are_owed_nobody_owes() {
    let config = Config::default();
    let window = nanos(config.period);
    let mut ledger = Ledger::default();
    let mut claims: Vec<VmAccount> = (0..2).map(|vm| VmAccount::on(vm, &[0])).collect();
    ledger.open(Time(0), claims.iter().copied(), &config);
    for _ in 0..20 {
        let_run(&mut ledger, &mut claims, [0, window]);
    }
    assert!(ledger.debt(VmId(0)) < 0 && ledger.permille(VmId(0)) > FULL);
    claims[0].pcpus = VmAccount::on(0, &[1]).pcpus;
    for _ in 0..1000 {
        let_run(&mut ledger, &mut claims, [window / 2, window]);
        assert_eq!(ledger.permille(VmId(0)), FULL);
    }
    assert_eq!((ledger.debt(VmId(0)), ledger.next()), (0, None));
}

/// A window in which each had so much and wanted all.
fn let_run(ledger: &mut Ledger, claims: &mut [VmAccount], ran: [u64; 2]) {
    let config = Config::default();
    let window = nanos(config.period);
    for (claim, ran) in claims.iter_mut().zip(ran) {
        claim.ran += ran;
        claim.unmet = window - ran;
    }
    ledger.settle(ledger.settled.plus(window), claims, &config);
}

proptest::proptest! {
    /// Of two whose vCPUs are of unequal weight, and whom a scheduler forgets now and then, one always has no
    /// more than its weight: the ratio of the shares is what counts, and both together cannot be raised.
    #[test]
    fn not_all_are_raised(forgotten in proptest::collection::vec(0..4u32, 200)) {
        let config = Config::default();
        let window = nanos(config.period);
        let mut ledger = Ledger::default();
        let claim = |vm| VmAccount { uneven: true, threads: 2, ..VmAccount::on(vm, &[0]) };
        let mut claims: Vec<VmAccount> = (0..2).map(claim).collect();
        ledger.open(Time(0), claims.iter().copied(), &config);
        for forgotten in forgotten {
            let effective = |vm: u32| {
                let permille = u64::from(ledger.permille(VmId(vm)));
                if vm == forgotten { permille / 50 } else { permille }
            };
            let all: u64 = (0..2).map(effective).sum();
            let ran = [0, 1].map(|vm| window * effective(vm) / all.max(1));
            let_run(&mut ledger, &mut claims, ran);
            let shares = [0, 1].map(|vm| ledger.permille(VmId(vm)));
            proptest::prop_assert!(shares.iter().any(|share| *share <= FULL), "{:?}", shares);
        }
    }
}
