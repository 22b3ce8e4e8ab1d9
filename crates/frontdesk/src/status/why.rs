//! Why a VM was or was not boosted in the last minute, in words. Only from what the daemon told.

use super::disk;
use super::table::{frame_rate, task_name};
use crate::words::{self, count, percent};
use frontdesk_control_protocol::{Status, VmStatus};
use frontdesk_engine::{Outcomes, PortOutcomes, Protocol, Reason, nanos};

/// Tasks and ports that are named one by one.
const NAMED: usize = 5;

/// What came, how it was decided and why, what is known of the VM's tasks, and what the operator can do; a
/// paragraph each.
pub(crate) fn words(status: &Status, vm: &VmStatus) -> Vec<String> {
    let mut paragraphs = vec![events(vm)];
    paragraphs.extend(Reason::ALL.iter().copied().filter_map(|reason| decisions(status, vm, reason)));
    paragraphs.extend(unanswered(vm));
    paragraphs.push(tasks(status, vm));
    paragraphs.extend(patience(status, vm));
    paragraphs.extend(plays(vm));
    paragraphs.extend(waits(status, vm));
    paragraphs.extend(account(vm));
    paragraphs.extend(starved(status, vm));
    paragraphs.extend(vm.disks.iter().map(disk::requests));
    paragraphs.extend(vm.trouble.as_ref().map(|trouble| format!("Trouble: {trouble}.")));
    paragraphs.extend(vm.unheard.iter().map(|unheard| format!("Note: {unheard}.")));
    paragraphs.extend(advice(status, vm).map(|advice| format!("Advice: {advice}")));
    paragraphs
}

/// All that was decided about.
fn all(vm: &VmStatus) -> Outcomes {
    let mut all = vm.recent.other_packets;
    all.add(&vm.recent.pending_reads);
    all.add(&vm.recent.reads);
    vm.recent.packets.iter().for_each(|port| all.add(&port.outcomes));
    all
}

/// Joins parts of a sentence.
fn list(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Its name.
pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}

fn events(vm: &VmStatus) -> String {
    let (recent, name) = (&vm.recent, words::name(&vm.name));
    let window = format!("In the last {} s", recent.window_seconds);
    if all(vm).total() == 0 {
        return format!(
            "{window} nothing came that could boost {name}: no packet that a task may wait for, and no disk read."
        );
    }
    let mut parts: Vec<String> = Vec::new();
    let mut others = recent.other_packets.total();
    for (index, port) in recent.packets.iter().enumerate() {
        let packets = port.outcomes.total();
        if index < NAMED {
            let packets = count(packets, "packet", "packets");
            parts.push(format!("{packets} to {} port {}", protocol(port.protocol), port.port));
        } else {
            others = others.saturating_add(packets);
        }
    }
    if others > 0 {
        parts.push(format!("{} to other ports", count(others, "packet", "packets")));
    }
    if recent.pending_reads.total() > 0 {
        let signs = count(recent.pending_reads.total(), "sign", "signs");
        parts.push(format!("{signs} that a disk read is about to end"));
    }
    if recent.reads.total() > 0 {
        parts.push(format!("{} that ended", count(recent.reads.total(), "disk read", "disk reads")));
    }
    format!("{window} there came for {name}: {}.", list(&parts))
}

/// How many of the events came out for one reason.
fn decisions(status: &Status, vm: &VmStatus, reason: Reason) -> Option<String> {
    let number = all(vm).of(reason);
    if number == 0 {
        return None;
    }
    let (policy, name) = (&status.policy.tavs, words::name(&vm.name));
    Some(match reason {
        Reason::Boosted => {
            let ended = vm.recent.boosts_ended;
            let hits = vm.recent.hits;
            let outcome = match ended {
                0 => "It has not ended yet".to_owned(),
                _ => format!(
                    "In {hits} of {} an I/O-bound task ran",
                    count(ended, "boost that ended", "boosts that ended")
                ),
            };
            format!("{number} of these boosted. {outcome}.")
        }
        Reason::AlreadyBoosted => format!("{number} came while {name} was boosted already."),
        Reason::NotCorrelated => {
            format!(
                "{number} did not boost, because no I/O-bound task is known to wait for such: {}.",
                uncorrelated(status, vm)
            )
        }
        Reason::NoIoBoundTask => {
            format!("{number} did not boost, because none of its guest tasks is believed to be I/O-bound.")
        }
        Reason::BudgetSpent => {
            let (allowed, used) = (percent(vm.engine.pb_allowed_ratio), percent(vm.engine.pb_used_ratio));
            format!(
                "{number} did not boost, because the VM had used up pb_ratio: {allowed} of its CPU time may be boosted (now {used})."
            )
        }
        Reason::LimitReached => format!(
            "{number} did not boost, because its threads together had used up boost_limit: {} of a CPU.",
            percent(status.daemon.capabilities.boost_limit(policy.boost_limit))
        ),
        Reason::Overdrawn => format!(
            "{number} did not boost, because {name} owed too much of what it got beyond its share, and \
             repays first."
        ),
        Reason::Off => format!("{number} did not boost, because boosting is off for {name}."),
        Reason::Paused => format!("{number} did not boost, because {name} is paused."),
        Reason::Observed if !status.daemon.acting => {
            format!("{number} would have boosted, but the daemon only observes.")
        }
        Reason::Observed => format!("{number} would have boosted, but {name} is only observed."),
        Reason::Reserved => {
            format!("{number} would have boosted, but {name} has a reservation, which schedules it.")
        }
    })
}

/// Which events the correlation speaks against.
fn uncorrelated(status: &Status, vm: &VmStatus) -> String {
    let recent = &vm.recent;
    let most = (1u64 << status.policy.tavs.counter_bits.min(8)) - 1;
    let against = recent.packets.iter().filter(|port| port.outcomes.not_correlated > 0);
    let port = |port: &PortOutcomes| {
        format!("{} port {} (counter now {} of {most})", protocol(port.protocol), port.port, port.counter)
    };
    let mut parts: Vec<String> = against.take(NAMED).map(port).collect();
    if recent.reads.not_correlated > 0 || recent.pending_reads.not_correlated > 0 {
        parts.push("disk reads that none of them asked for".to_owned());
    }
    if recent.other_packets.not_correlated > 0 {
        parts.push("other ports".to_owned());
    }
    list(&parts)
}

/// What became of the events whose boosts ended too early.
fn unanswered(vm: &VmStatus) -> Option<String> {
    let outcomes = vm.recent.unanswered;
    let events = count(outcomes.total(), "event was", "events were");
    let others =
        Reason::ALL.iter().copied().filter(|reason| *reason != Reason::Boosted && outcomes.of(*reason) > 0);
    let others = others.map(|reason| format!("{} did not: {reason}", outcomes.of(reason)));
    let boosted = (outcomes.boosted > 0).then(|| format!("{} boosted once more", outcomes.boosted));
    let taken_up: Vec<String> = boosted.into_iter().chain(others).collect();
    (outcomes.total() > 0).then(|| {
        format!(
            "{events} not answered when the boost ended, and an I/O-bound task was seen after that: {}.",
            list(&taken_up)
        )
    })
}

/// How long an answer may take, if that is longer than an I/O-bound task runs: guests may let what runs
/// finish its tick before they switch to the task that an event woke.
fn patience(status: &Status, vm: &VmStatus) -> Option<String> {
    let tavs = &status.policy.tavs;
    if vm.identity.is_none() || vm.engine.patience_ns <= nanos(tavs.io_threshold) {
        return None;
    }
    let unlearnt = vm.engine.patience_ns == nanos(tavs.patience.max(tavs.io_threshold).min(tavs.max_boost));
    let why = if unlearnt {
        "a guest may finish a tick before it runs the task, and how long this one takes is not known yet"
    } else {
        "its guest has been seen to finish a tick before it runs the task"
    };
    Some(format!(
        "A boosted vCPU is given {} of CPU time to answer: {why}.",
        words::duration(vm.engine.patience_ns)
    ))
}

/// What is known of the guest's tasks.
fn tasks(status: &Status, vm: &VmStatus) -> String {
    let threshold = status.policy.tavs.belief_threshold;
    let identity = match &vm.identity {
        None => return "Its guest tasks cannot be told apart, and so nothing boosts it.".to_owned(),
        Some(identity) if identity.exact => {
            format!("Every switch of its guest tasks is seen ({}).", identity.source)
        }
        Some(identity) => format!(
            "Its guest tasks are seen by samples ({}), so what is believed of them is less sure, and boosts end by time.",
            identity.source
        ),
    };
    let mut known: Vec<_> = vm.engine.tasks.iter().collect();
    known.sort_by_key(|task| std::cmp::Reverse((task.belief, task.last_seen)));
    let io_bound = known.iter().filter(|task| task.io_bound);
    let named: Vec<String> =
        io_bound.take(NAMED).map(|task| format!("{} ({})", task_name(task), task.belief)).collect();
    let belief = if named.is_empty() {
        let highest = known.first().map_or_else(String::new, |task| {
            format!("; the highest belief is {}, of {}", task.belief, task_name(task))
        });
        format!("None is believed to be I/O-bound (belief above {threshold}){highest}.")
    } else {
        let more = vm.engine.io_bound_count.saturating_sub(named.len());
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        format!("Believed to be I/O-bound (belief above {threshold}): {}{more}.", list(&named))
    };
    format!("{identity} {belief}")
}

/// What it plays, and what it gets for that.
fn plays(vm: &VmStatus) -> Option<String> {
    let media = vm.engine.multimedia.as_ref()?;
    let task = |id| {
        let known = vm.engine.tasks.iter().find(|task| task.id == id);
        known.map_or_else(|| format!("{:#x}", id.0), task_name)
    };
    let players = media.players.iter().map(|player| {
        let by = if player.gpu { ", by what its graphics processor completes" } else { "" };
        format!(
            "{} shows {:.1} frames a second of {:.1} that it seems to want{by}",
            task(player.task),
            player.frame_rate,
            player.desired_rate
        )
    });
    let players: Vec<String> = players.collect();
    let now = if players.is_empty() {
        "Nothing plays at the moment".to_owned()
    } else {
        format!("Shows frames and plays sound: {}", list(&players))
    };
    let share = match media.share_permille {
        0..=1000 => String::new(),
        permille => format!(
            " Its weight is raised to {} of its usual for that.",
            percent(f64::from(permille) / 1000.0)
        ),
    };
    let refused = media.in_debt.saturating_add(media.limited);
    let refused = match refused {
        0 => String::new(),
        refused => format!(
            ", {refused} more were refused ({} because it owed CPU time, {} because boost_limit was used up)",
            media.in_debt, media.limited
        ),
    };
    let boosts = count(media.boosts, "boost", "boosts");
    Some(format!(
        "{now}.{share} It has had {boosts} for what it plays, {} of CPU time{refused}.",
        words::duration(media.boosted_ns)
    ))
}

/// What a person waits for, and what works in the background meanwhile.
fn waits(status: &Status, vm: &VmStatus) -> Option<String> {
    let known = vm.engine.asymmetric.as_ref()?;
    let task = |id| {
        let known = vm.engine.tasks.iter().find(|task| task.id == id);
        known.map_or_else(|| format!("{:#x}", id.0), task_name)
    };
    let background = known.background.iter().take(NAMED).map(|background| {
        let load = percent(background.load_permille as f64 / 1000.0);
        format!("{} ({load} of a CPU)", task(background.task))
    });
    let background: Vec<String> = background.collect();
    let more = match known.background.len().saturating_sub(background.len()) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let least = percent(status.policy.asymmetric.background_load);
    let background = match background.as_slice() {
        [] => format!("No task used more than {least} of a CPU before: none is background work."),
        some => {
            format!("Background work, as it used more than {least} of a CPU before: {}{more}.", list(some))
        }
    };
    let now = match &known.episode {
        None => "Nobody waits for anything that they have just started.".to_owned(),
        Some(episode) => {
            let since = status.at_ns.saturating_sub(episode.since.0);
            let began = format!(
                "Somebody probably waits: an episode began {} ago with {}.",
                words::duration(since),
                episode.cause
            );
            let slow: Vec<String> = episode.slow.iter().map(ToString::to_string).collect();
            let pace = match slow.as_slice() {
                _ if !episode.acts => {
                    "No vCPU is slow: nobody else wants its physical CPUs, or nothing is to be done about it."
                        .to_owned()
                }
                [] => "No vCPU runs background work alone, so none is slow.".to_owned(),
                [one] => format!("vCPU {one} is slow."),
                some => format!("vCPUs {} are slow.", list(some)),
            };
            format!("{began} {pace}")
        }
    };
    let client = known.sound_client.map_or_else(String::new, |client| {
        format!(" A sound server plays for {}, which is no background work.", task(client))
    });
    let slowed = count(known.slowed, "time", "times");
    Some(format!(
        "{now} {background}{client} So far a vCPU was made slow {slowed}, and fast again {} of these for an interrupt.",
        known.restored
    ))
}

/// What it owes.
fn account(vm: &VmStatus) -> Option<String> {
    if let Some(used) = vm.charged {
        let charged = format!(
            "frontdesk's scheduler has charged it {} of CPU time in {}, {} of it in {} that went first.",
            words::duration(used.consumed_ns),
            count(used.runs, "run", "runs"),
            words::duration(used.boosted_ns),
            count(used.boosted_runs, "run", "runs"),
        );
        return Some(match used.gifts {
            0 => charged,
            gifts => format!(
                "{charged} The kernel boosted it by itself {}; the engine decided the same {}.",
                count(gifts, "time", "times"),
                count(used.gifts_taken_over, "time", "times"),
            ),
        });
    }
    (vm.engine.debt_ns > 0 && vm.engine.share_permille < 1000).then(|| {
        format!(
            "It has got {} of CPU time beyond its fair share. While it repays, its weight is {} of its usual.",
            words::signed_duration(vm.engine.debt_ns),
            percent(f64::from(vm.engine.share_permille) / 1000.0)
        )
    })
}

/// How long its threads starved, and what was done about it.
fn starved(status: &Status, vm: &VmStatus) -> Option<String> {
    let known = vm.engine.starvation?;
    let boost = words::duration(nanos(status.policy.tavs.max_boost));
    Some(format!(
        "Threads of it have been runnable for up to {} before the host's scheduler gave them a CPU; they got {} of up \
         to {boost} meanwhile. `frontdesk doctor` tells whether this kernel is known to forget threads.",
        words::duration(known.longest_wait_ns),
        count(known.turns, "turn", "turns"),
    ))
}

/// What the operator can do about the reason that kept most events from boosting.
fn advice(status: &Status, vm: &VmStatus) -> Option<String> {
    let outcomes = all(vm);
    if !status.daemon.acting {
        return Some("run the daemon without --observe for it to act.".to_owned());
    }
    if vm.identity.is_none() {
        return Some(
            "start its QEMU with frontdesk's plugin, or see `frontdesk doctor` for other ways to tell its tasks apart.".to_owned(),
        );
    }
    if outcomes.total() == 0 && frame_rate(vm).is_some() {
        return None;
    }
    if outcomes.total() == 0 {
        return Some(
            "if somebody works in it now, its network or disk cannot be followed; `frontdesk doctor` and the daemon's log say more."
                .to_owned(),
        );
    }
    let against = Reason::ALL
        .iter()
        .copied()
        .filter(|reason| !matches!(reason, Reason::Boosted | Reason::AlreadyBoosted));
    let reason =
        against.max_by_key(|reason| outcomes.of(*reason)).filter(|reason| outcomes.of(*reason) > 0)?;
    let policy = &status.policy.tavs;
    Some(match reason {
        Reason::BudgetSpent => "its I/O-bound work uses more CPU than may be boosted. If people wait for it, give this VM a larger pb_ratio: \
             other VMs lose nothing but the order."
            .to_owned(),
        Reason::LimitReached => "all VMs share the CPU time that the host gives to real time; a larger budget for its control group raises \
             boost_limit."
            .to_owned(),
        Reason::Overdrawn => "its I/O-bound work, with what its guest runs before that, uses more CPU than the \
             VM is due. If people wait for it, give this VM a larger weight."
            .to_owned(),
        Reason::NotCorrelated if outcomes.boosted > 0 => return None,
        Reason::NotCorrelated => "nothing is wrong if nobody waits for these. A port is learnt after a few packets that wake an I/O-bound \
             task."
            .to_owned(),
        Reason::NoIoBoundTask if vm.engine.io_bound_count > 0 => return None,
        Reason::NoIoBoundTask => format!(
            "nothing is wrong if it only computes. A task is believed to be I/O-bound after some {} runs of at most {} right after an \
             event; one longer run undoes several.",
            policy.belief_threshold / policy.positive_evidence.max(1) + 1,
            words::duration(nanos(policy.io_threshold))
        ),
        Reason::Off => "set pb_ratio above 0 and off = false for this VM, and reload the daemon, to boost it.".to_owned(),
        Reason::Reserved => {
            "nothing is wrong. `frontdesk release` ends the reservation, and it is boosted again.".to_owned()
        }
        Reason::Paused | Reason::Observed | Reason::Boosted | Reason::AlreadyBoosted => return None,
    })
}

#[cfg(test)]
mod tests;
