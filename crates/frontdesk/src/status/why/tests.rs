use super::*;
use crate::status::tests::{playing, sample, waiting};
use frontdesk_control_protocol::Usage;
use frontdesk_engine::{AsymmetricExplain, MultimediaExplain, Standing, StarvationExplain};

fn told(change: impl FnOnce(&mut Status)) -> String {
    let mut status = sample();
    change(&mut status);
    words(&status, &status.vms[0]).join("\n")
}

#[test]
fn a_vm_that_is_boosted() {
    insta::assert_snapshot!(told(|status| {
        let recent = &mut status.vms[0].recent;
        recent.packets[0].outcomes = Outcomes { boosted: 30, budget_spent: 9, ..Outcomes::default() };
        let other = Outcomes { not_correlated: 3, ..Outcomes::default() };
        recent.packets.push(PortOutcomes {
            protocol: Protocol::Tcp,
            port: 8080,
            counter: 0,
            outcomes: other,
        });
        recent.reads = Outcomes { boosted: 1, already_boosted: 2, ..Outcomes::default() };
        (recent.boosts_ended, recent.hits) = (31, 28);
        status.vms[0].engine.debt_ns = 1_200_000;
        status.vms[0].engine.share_permille = 800;
    }));
}

#[test]
fn a_vm_under_frontdesks_scheduler() {
    let text = told(|status| {
        // Nothing is taken back: what it was boosted has been charged.
        (status.vms[0].engine.debt_ns, status.vms[0].engine.share_permille) = (1_200_000, 800);
        status.vms[0].charged = Some(Usage {
            consumed_ns: 604_000_000,
            boosted_ns: 1_250_000,
            runs: 40,
            boosted_runs: 1,
            gifts: 4,
            gifts_taken_over: 3,
        });
    });
    let charged = "frontdesk's scheduler has charged it 604 ms of CPU time in 40 runs, 1.2 ms of it in 1 run that went first. \
                   The kernel boosted it by itself 4 times; the engine decided the same 3 times.";
    assert!(text.contains(charged) && !text.contains("repays"), "{text}");
}

#[test]
fn a_vm_that_plays() {
    let text = |change: fn(&mut MultimediaExplain)| {
        let text = told(|status| {
            let media = status.vms[0].engine.multimedia.insert(playing());
            change(media);
        });
        text.lines().find(|line| line.contains("for what it plays")).map(str::to_owned)
    };
    let raised = "Shows frames and plays sound: sshd (431) shows 23.9 frames a second of 24.0 that it seems to want. \
                  Its weight is raised to 200 % of its usual for that. It has had 120 boosts for what it plays, 300 ms of CPU \
                  time, 7 more were refused (5 because it owed CPU time, 2 because boost_limit was used up).";
    assert_eq!(text(|_| ()).unwrap(), raised);
    let over = "Nothing plays at the moment. It has had 120 boosts for what it plays, 300 ms of CPU time.";
    let ended = text(|media| {
        media.players.clear();
        (media.share_permille, media.in_debt, media.limited) = (1000, 0, 0);
    });
    assert_eq!(ended.unwrap(), over);
    assert!(!told(|_| ()).contains("plays"), "it never has");
}

#[test]
fn a_vm_whose_user_waits() {
    let text = |change: fn(&mut AsymmetricExplain)| {
        let text = told(|status| {
            let mut known = waiting(status.at_ns);
            change(&mut known);
            status.vms[0].engine.asymmetric = Some(known);
        });
        text.lines().find(|line| line.contains("ackground work")).map(str::to_owned).unwrap()
    };
    let waits = "Somebody probably waits: an episode began 1.5 s ago with the Enter key. vCPU 0 is slow. \
                 Background work, as it used more than 50 % of a CPU before: sshd (431) (190 % of a CPU) \
                 and 0x770000 (51 % of a CPU). So far a vCPU was made slow 120 times, and fast again 45 of \
                 these for an interrupt.";
    assert_eq!(text(|_| ()), waits);
    let idle = text(|known| {
        known.episode.as_mut().unwrap().acts = false;
        known.background.clear();
    });
    assert!(idle.contains("No vCPU is slow: nobody else wants its physical CPUs"), "{idle}");
    assert!(idle.contains("No task used more than 50 % of a CPU before"), "{idle}");
    let over = text(|known| known.episode = None);
    assert!(over.starts_with("Nobody waits for anything"), "{over}");
    assert!(!told(|_| ()).contains("episode"), "nobody has used it");
}

#[test]
fn a_vm_for_which_nothing_came() {
    insta::assert_snapshot!(told(|status| {
        status.vms[0].recent.packets.clear();
        status.vms[0].recent.decisions.clear();
    }));
}

#[test]
fn a_vm_that_only_computes() {
    insta::assert_snapshot!(told(|status| {
        let vm = &mut status.vms[0];
        vm.recent.packets[0].outcomes = Outcomes { no_io_bound_task: 12, ..Outcomes::default() };
        vm.engine.io_bound_count = 0;
        vm.engine.tasks.iter_mut().for_each(|task| (task.belief, task.io_bound) = (-100, false));
        vm.identity.as_mut().unwrap().exact = false;
    }));
}

#[test]
fn a_daemon_that_only_observes() {
    insta::assert_snapshot!(told(|status| {
        status.daemon.acting = false;
        status.vms[0].recent.packets[0].outcomes = Outcomes { observed: 12, ..Outcomes::default() };
    }));
}

#[test]
fn a_vm_that_is_only_observed_and_one_with_a_reservation() {
    let text = told(|status| {
        status.vms[0].engine.standing = Standing::Observed;
        status.vms[0].trouble = Some("it shares its group".to_owned());
        status.vms[0].recent.packets[0].outcomes = Outcomes { observed: 12, ..Outcomes::default() };
    });
    assert!(text.contains("12 would have boosted, but alice is only observed."), "{text}");
    assert!(text.contains("Trouble: it shares its group."), "{text}");
    let text = told(|status| {
        status.vms[0].engine.standing = Standing::Reserved;
        status.vms[0].recent.packets[0].outcomes = Outcomes { reserved: 12, ..Outcomes::default() };
    });
    assert!(text.contains("12 would have boosted, but alice has a reservation"), "{text}");
    assert!(text.contains("Advice: nothing is wrong."), "{text}");
}

#[test]
fn a_guest_that_finishes_its_tick_first() {
    let given = |patience_ns| {
        let text = told(|status| status.vms[0].engine.patience_ns = patience_ns);
        text.lines().find(|line| line.contains("to answer")).map(str::to_owned)
    };
    let learnt = "A boosted vCPU is given 4.5 ms of CPU time to answer: its guest has been seen to finish a tick before it runs the task.";
    assert_eq!(given(4_500_000).unwrap(), learnt);
    assert!(given(6_000_000).unwrap().contains("how long this one takes is not known yet"));
    assert_eq!(given(500_000), None, "it switches at once");
}

#[test]
fn events_that_stayed_unanswered() {
    let text = told(|status| {
        status.vms[0].recent.unanswered = Outcomes { boosted: 2, budget_spent: 1, ..Outcomes::default() };
    });
    let words = "3 events were not answered when the boost ended, and an I/O-bound task was seen after that: 2 boosted once more and 1 did not: pb_ratio is used up.";
    assert!(text.contains(words), "{text}");
    assert!(text.contains("\n5 of these boosted."), "they are no new events: {text}");
}

#[test]
fn the_limit_told_is_the_one_that_holds() {
    let text = told(|status| {
        status.daemon.capabilities.realtime_permille = 304;
        status.vms[0].recent.packets[0].outcomes = Outcomes { limit_reached: 1, ..Outcomes::default() };
    });
    assert!(text.contains("used up boost_limit: 30.4 % of a CPU."), "{text}");
}

#[test]
fn a_vm_that_cannot_be_looked_into() {
    let status = sample();
    insta::assert_snapshot!(words(&status, &status.vms[1]).join("\n"));
}

#[test]
fn a_vm_that_the_host_forgot() {
    let text = told(|status| {
        status.vms[0].engine.starvation =
            Some(StarvationExplain { turns: 31, longest_wait_ns: 1_600_000_000, boosted_ns: 300_000_000 });
    });
    let starved = "Threads of it have been runnable for up to 1.6 s before the host's scheduler gave them a CPU; they got 31 \
                   turns of up to 10 ms meanwhile.";
    assert!(text.contains(starved), "{text}");
    assert!(!told(|_| ()).contains("runnable"), "it never did");
}

#[test]
fn advice_fits_what_kept_most_events_from_boosting() {
    let none = Outcomes { already_boosted: 40, ..Outcomes::default() };
    for (outcomes, wanted) in [
        (Outcomes { budget_spent: 9, ..none }, Some("give this VM a larger pb_ratio")),
        (Outcomes { limit_reached: 9, ..none }, Some("raises boost_limit")),
        (Outcomes { overdrawn: 9, ..none }, Some("give this VM a larger weight")),
        (Outcomes { not_correlated: 9, ..none }, Some("A port is learnt")),
        (Outcomes { no_io_bound_task: 9, ..none }, Some("nothing is wrong if it only computes")),
        (Outcomes { off: 9, ..none }, Some("set pb_ratio above 0")),
        (Outcomes { boosted: 9, ..none }, None),
        (none, None),
    ] {
        let text = told(|status| {
            status.vms[0].recent.packets[0].outcomes = outcomes;
            status.vms[0].engine.io_bound_count = 0;
        });
        let advice = text.lines().find(|line| line.starts_with("Advice:"));
        assert_eq!(advice.is_some(), wanted.is_some(), "{outcomes:?}: {text}");
        assert!(wanted.is_none_or(|wanted| advice.unwrap().contains(wanted)), "{outcomes:?}: {text}");
    }
}
