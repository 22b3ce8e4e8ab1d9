use super::*;
use proptest::prelude::*;

/// A kernel with threads that a test makes. It moves nothing to where no CPU is.
#[derive(Debug, Default)]
struct Fake {
    threads: BTreeMap<u32, Thread>,
    interrupts: BTreeMap<u32, Cpus>,
    /// Interrupts that cannot be moved.
    managed: BTreeSet<u32>,
}

const ALL: Cpus = Cpus(0b1111);

impl Kernel for Fake {
    fn threads(&self) -> io::Result<Option<Vec<Thread>>> {
        Ok(Some(self.threads.values().copied().collect()))
    }

    fn move_thread(&mut self, id: u32, to: Cpus) -> io::Result<()> {
        let thread = self.threads.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        thread.cpus = to;
        Ok(())
    }

    fn interrupts(&self) -> Vec<(u32, Cpus)> {
        self.interrupts.iter().map(|(number, cpus)| (*number, *cpus)).collect()
    }

    fn interrupt(&self, number: u32) -> Option<Cpus> {
        self.interrupts.get(&number).copied()
    }

    fn move_interrupt(&mut self, number: u32, to: Cpus) -> io::Result<()> {
        if self.managed.contains(&number) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.interrupts.insert(number, to);
        Ok(())
    }

    fn online(&self) -> io::Result<Cpus> {
        Ok(ALL)
    }

    fn idle(&self) -> Vec<(u32, u64, u64)> {
        Vec::new()
    }
}

impl Fake {
    fn spawn(&mut self, id: u32, process: u32, parent: u32, cpus: Cpus) {
        self.threads.insert(id, Thread { id, process, parent, began: id.into(), cpus });
    }

    fn fork(&mut self, id: u32, parent: u32) {
        let cpus = self.threads[&parent].cpus;
        self.spawn(id, id, parent, cpus);
    }

    fn cpus(&self, id: u32) -> Cpus {
        self.threads[&id].cpus
    }

    /// Init, a shell, a build of two threads, and an editor that its user keeps on the first two CPUs.
    fn desktop() -> Fake {
        let mut fake = Fake::default();
        fake.spawn(1, 1, 0, ALL);
        fake.spawn(10, 10, 1, ALL);
        fake.spawn(20, 20, 10, ALL);
        fake.spawn(21, 20, 10, ALL);
        fake.spawn(30, 30, 10, Cpus(0b0011));
        fake.interrupts = [(24, ALL), (25, ALL), (26, Cpus(0b1000))].into();
        fake.managed = [25].into();
        fake
    }
}

fn divide(ledger: &mut Ledger, fake: &mut Fake, fast: u32, list: &[u32]) -> Divided {
    let partition = Partition::of(ALL, fast).unwrap();
    ledger.divide(fake, partition, &list.iter().copied().collect(), |_| Ok(())).unwrap()
}

#[test]
fn background_work_and_all_else_have_vcpus_of_their_own() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    let divided = divide(&mut ledger, &mut fake, 1, &[20, 777]);
    assert_eq!(divided, Divided { background: 2, others: 3 });
    assert_eq!([1, 10, 30].map(|id| fake.cpus(id)), [Cpus(1); 3]);
    assert_eq!([20, 21].map(|id| fake.cpus(id)), [Cpus(0b1110); 2]);
    let interrupts = BTreeMap::from([(24, Cpus(1)), (25, ALL), (26, Cpus(1))]);
    assert_eq!(fake.interrupts, interrupts);
    // What is begun by whom goes where that is; and one more vCPU is fast.
    fake.fork(40, 20);
    fake.fork(41, 10);
    divide(&mut ledger, &mut fake, 2, &[20, 777]);
    assert_eq!([40, 41, 30].map(|id| fake.cpus(id)), [Cpus(0b1100), Cpus(0b0011), Cpus(0b0011)]);
    ledger.undo(&mut fake);
    assert_eq!([1, 10, 20, 21, 40, 41].map(|id| fake.cpus(id)), [ALL; 6]);
    assert_eq!(fake.cpus(30), Cpus(0b0011));
    assert_eq!(fake.interrupts, Fake::desktop().interrupts);
    assert!(ledger.is_empty());
}

#[test]
fn whoever_was_begun_meanwhile_is_moved_back_even_if_its_parent_has_ended() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    divide(&mut ledger, &mut fake, 1, &[20]);
    fake.fork(40, 20);
    fake.fork(41, 30);
    // An orphan of the build, which init takes.
    fake.threads.get_mut(&40).unwrap().parent = 1;
    fake.threads.remove(&20);
    ledger.undo(&mut fake);
    assert_eq!((fake.cpus(40), fake.cpus(41)), (ALL, Cpus(0b0011)));
}

#[test]
fn what_the_user_moves_meanwhile_stays() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    divide(&mut ledger, &mut fake, 1, &[20]);
    fake.threads.get_mut(&10).unwrap().cpus = Cpus(0b0110);
    fake.threads.get_mut(&20).unwrap().cpus = Cpus(0b0010);
    divide(&mut ledger, &mut fake, 1, &[20]);
    // The first has none of the fast ones, and keeps what it was given.
    assert_eq!((fake.cpus(10), fake.cpus(20)), (Cpus(0b0110), Cpus(0b0010)));
    ledger.undo(&mut fake);
    assert_eq!((fake.cpus(10), fake.cpus(20)), (Cpus(0b0110), Cpus(0b0010)));
}

#[test]
fn a_number_that_another_thread_has_got_is_not_taken_for_the_first() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    divide(&mut ledger, &mut fake, 1, &[20]);
    let other = fake.threads.get_mut(&20).unwrap();
    (other.began, other.parent, other.cpus) = (99, 1, Cpus(0b0100));
    ledger.undo(&mut fake);
    assert_eq!(fake.cpus(20), Cpus(0b0100));
}

#[test]
fn another_list_takes_the_place_of_the_first() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    divide(&mut ledger, &mut fake, 1, &[20]);
    fake.fork(40, 20);
    divide(&mut ledger, &mut fake, 1, &[10]);
    assert_eq!([10, 20, 40].map(|id| fake.cpus(id)), [Cpus(0b1110), Cpus(1), Cpus(1)]);
    ledger.undo(&mut fake);
    assert_eq!([10, 20, 40].map(|id| fake.cpus(id)), [ALL; 3]);
}

#[test]
fn what_cannot_be_written_down_is_not_moved() {
    let (mut fake, mut ledger) = (Fake::desktop(), Ledger::default());
    let partition = Partition::of(ALL, 1).unwrap();
    let full = |_: &Ledger| Err(io::ErrorKind::StorageFull.into());
    let result = ledger.divide(&mut fake, partition, &[20].into(), full);
    assert_eq!(result, Err(Trouble::Kernel));
    assert_eq!(fake.threads, Fake::desktop().threads);
    ledger.undo(&mut fake);
    assert_eq!((fake.threads, fake.interrupts), {
        let before = Fake::desktop();
        (before.threads, before.interrupts)
    });
}

/// What happens between two looks.
#[derive(Clone, Debug)]
enum Step {
    Divide {
        fast: u32,
        list: BTreeSet<u32>,
    },
    Fork(u32),
    Thread(u32),
    End(u32),
    /// Another process undoes what was written down.
    Killed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 1u32..60;
    let list = prop::collection::btree_set(which.clone(), 0..8);
    let step = prop_oneof![
        3 => (0u32..6, list).prop_map(|(fast, list)| Step::Divide { fast, list }),
        3 => which.clone().prop_map(Step::Fork),
        1 => which.clone().prop_map(Step::Thread),
        2 => which.prop_map(Step::End),
        1 => Just(Step::Killed),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever is begun and ended in episodes: none ever runs where it might not, and in the end all may
    /// run where they could without. Of equal CPUs, so that whom an orphan has them from does not matter.
    #[test]
    fn nothing_is_widened_and_everything_is_undone(own in 1u64..16, steps in steps()) {
        let own = Cpus(own);
        let (mut fake, mut ledger, mut journal) = (Fake::default(), Ledger::default(), String::new());
        for id in 1..5 {
            fake.spawn(id, id, id - 1, own);
        }
        fake.interrupts.insert(24, own);
        let mut next = 5;
        let nth = |fake: &Fake, n: u32| {
            let index = usize::try_from(n).unwrap() % fake.threads.len().max(1);
            fake.threads.values().nth(index).copied()
        };
        for step in steps {
            match step {
                Step::Divide { fast, list } => {
                    let partition = Partition::of(ALL, fast).unwrap();
                    let note = |ledger: &Ledger| {
                        journal = ledger.to_text();
                        Ok(())
                    };
                    ledger.divide(&mut fake, partition, &list, note).unwrap();
                    let sides = [true, false].map(|background| partition.target(own, background));
                    prop_assert!(fake.threads.values().all(|thread| sides.contains(&thread.cpus)));
                }
                Step::Fork(n) => if let Some(of) = nth(&fake, n) {
                    fake.fork(next, of.id);
                    next += 1;
                },
                Step::Thread(n) => if let Some(of) = nth(&fake, n) {
                    fake.spawn(next, of.process, of.parent, of.cpus);
                    next += 1;
                },
                Step::End(n) => if let Some(of) = nth(&fake, n) {
                    fake.threads.remove(&of.id);
                    for thread in fake.threads.values_mut().filter(|thread| thread.parent == of.id) {
                        thread.parent = 1;
                    }
                },
                Step::Killed => {
                    Ledger::parse(&journal).undo(&mut fake);
                    ledger = Ledger::default();
                    journal.clear();
                }
            }
            prop_assert!(fake.threads.values().all(|thread| thread.cpus.and(own) == thread.cpus));
        }
        let read = Ledger::parse(&ledger.to_text());
        prop_assert_eq!(&read, &ledger);
        ledger.undo(&mut fake);
        prop_assert!(fake.threads.values().all(|thread| thread.cpus == own), "{:?}", fake);
        prop_assert_eq!(fake.interrupts[&24], own);
    }
}
