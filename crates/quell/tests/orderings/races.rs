//! The programs that race.

use crate::machine::{Machine, Moment, Program, World, be, hold_up, leak};
use crate::word::LoomWord;
use loom::thread;
use quell::clear::{ClearPolicy, Clearable, Pool, Pooled, clear};
use quell::{Extent, Frame, Mechanism, Policy, Purpose, Scope, Word};

/// Programs on as many CPUs, and what each CPU did before.
pub struct Race {
    /// What the table of orderings calls it.
    pub name: &'static str,
    /// How many times loom takes a CPU from a thread that could go on.
    pub preemptions: usize,
    pub body: Body,
}

pub enum Body {
    /// The engine on CPUs.
    Engine(Setup),
    /// Anything else.
    Free(fn()),
}

/// The engine on as many CPUs as there are programs.
#[derive(Clone, Copy)]
pub struct Setup {
    policy: Policy,
    broadcast: bool,
    epochs: usize,
    /// What each CPU did before.
    prepare: Program,
    /// CPU 0's, CPU 1's and so on. All but CPU 0 then take interrupts until all are over.
    programs: &'static [Program],
    /// Where CPU 2 and those after it are held up, each taking page 1 away, before the programs
    /// start. They go on when CPU 0 is through, and are no threads of their own.
    held_up: &'static [Moment],
    /// What holds when all are over.
    finally: Program,
}

const SETUP: Setup = Setup {
    policy: Policy::ALL,
    broadcast: false,
    epochs: 2,
    prepare: run_there,
    programs: &[],
    held_up: &[],
    finally: |_| (),
};

fn run_there(world: &World) {
    if world.me() == 1 {
        world.engine.switch_to(None, &world.space);
        world.hw.access(0);
    }
}

fn run_both_pages_there(world: &World) {
    if world.me() == 1 {
        world.engine.switch_to(None, &world.space);
        world.hw.access(0);
        world.hw.access(1);
    }
}

fn idle_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.engine.enter_lazy();
    }
}

fn run_other_there(world: &World) {
    run_there(world);
    if world.me() == 1 {
        world.engine.switch_to(Some(&world.space), &world.other);
    }
}

fn idle_with_other_there(world: &World) {
    run_other_there(world);
    if world.me() == 1 {
        world.engine.enter_lazy();
    }
}

fn owe_there(world: &World) {
    run_there(world);
    if world.me() == 0 {
        world.unmap_lazily();
    }
}

fn unmap(world: &World) {
    world.unmap(0, Purpose::Call, Scope::Leaf);
}

fn unmap_one_by_one(world: &World) {
    world.unmap(0, Purpose::Reclaim, Scope::Leaf);
}

/// Clears the entry under the table's lock, and flushes after letting it go.
fn unmap_under_lock(world: &World) {
    let mut batch = world.engine.batch(Purpose::Call);
    let range = world.clear(0);
    batch.unmapped(&world.space, range, 0);
    world.unlock();
    if world.me() == 1 {
        world.hw.access(0);
    }
    for _ in batch.finish() {}
}

fn settle(world: &World) {
    world.engine.settle(&world.space);
}

/// A second actor finds the entry cleared and relies on it.
fn rely(world: &World) {
    if world.locks() {
        settle(world);
        world.hw.own(0);
    }
}

/// Fills the entry again, or the slot of the page cache.
fn refill(world: &World) {
    world.engine.settle_residue(&world.residue, &world.space);
    world.hw.own(0);
}

fn load(world: &World) {
    world.engine.switch_to(Some(&world.other), &world.space);
    world.hw.access(0);
}

fn resume(world: &World) {
    world.engine.switch_to(Some(&world.space), &world.space);
    world.hw.access(0);
}

fn leave(world: &World) {
    world.hw.access(0);
    world.engine.switch_to(Some(&world.space), &world.other);
}

fn owe_and_claim(world: &World) {
    world.unmap_lazily();
    world.claim();
}

fn flush_whole(world: &World) {
    world.hw.access(0);
    let mut batch = world.engine.batch::<_, ()>(Purpose::Call);
    batch.changed_all(&world.space, Scope::Leaf);
    for () in batch.finish() {}
    world.hw.access(0);
}

/// The page table of the space is freed when the space is retired; a lazy CPU walks it.
fn retire(world: &World) {
    world.engine.retire(&world.space);
    world.hw.own(0);
}

/// CPU 1 has done what it was asked for.
fn nothing_lost(world: &World) {
    let lost = (0..2).any(|page| world.hw.holds(1, page));
    assert!(!lost, "C1: a request was lost");
}

pub const RACES: &[Race] = &[
    Race {
        name: "a flush that waits until it is done",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::BASELINE,
            programs: &[|w| w.unmap_for_good(Scope::Leaf), |w| w.hw.access(0)],
            ..SETUP
        }),
    },
    Race {
        name: "a flush that waits for the receipt",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[unmap, |w| w.hw.access(0)],
            ..SETUP
        }),
    },
    Race {
        name: "the flush of a table",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[|w| w.unmap_for_good(Scope::Tables), |w| w.hw.access(0)],
            ..SETUP
        }),
    },
    Race {
        name: "a handler that nobody called",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[unmap, |w| {
                w.engine.on_interrupt();
                w.hw.access(0);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes idle while its space is flushed",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.enter_lazy();
            }],
            ..SETUP
        }),
    },
    Race {
        name: "an idle CPU comes back",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: idle_there,
            programs: &[unmap, resume],
            ..SETUP
        }),
    },
    Race {
        name: "an idle CPU comes back to a debt",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: idle_there,
            programs: &[owe_and_claim, resume],
            ..SETUP
        }),
    },
    Race {
        name: "a space is loaded while it is flushed",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: run_other_there,
            programs: &[unmap, load],
            ..SETUP
        }),
    },
    Race {
        name: "a space is loaded while one page of it after the other is flushed",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::only(Mechanism::Tags),
            prepare: run_other_there,
            programs: &[unmap_one_by_one, load],
            ..SETUP
        }),
    },
    Race {
        name: "an idle CPU loads a space while it is flushed",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: idle_with_other_there,
            programs: &[unmap, load],
            ..SETUP
        }),
    },
    Race {
        name: "a space is loaded while a debt is taken",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: run_other_there,
            programs: &[owe_and_claim, load],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU leaves a space while it is flushed",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[unmap, leave],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU leaves a space that is retired",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[retire, leave],
            ..SETUP
        }),
    },
    Race {
        name: "a space is retired under an idle CPU",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[retire, |w| {
                w.engine.enter_lazy();
                w.hw.look(0);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline while it is asked",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::BASELINE,
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline while its receipt is awaited",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline and comes back while it is asked to pay",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
                w.engine.cpu_online();
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU comes back while it is asked",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: |w| {
                run_other_there(w);
                if w.me() == 1 {
                    w.engine.cpu_offline(Some(&w.other));
                }
            },
            programs: &[unmap, |w| {
                w.engine.cpu_online();
                w.engine.switch_to(None, &w.space);
                w.hw.access(0);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a second actor meets a batch that flushes alone",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[rely, |w| {
                w.hw.access(0);
                unmap_under_lock(w);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a second actor meets a batch that flushes elsewhere",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::only(Mechanism::Batch),
            programs: &[
                |w| {
                    unmap_under_lock(w);
                },
                |w| {
                    w.hw.access(0);
                    rely(w);
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "two second actors meet a debt",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    settle(w);
                    w.hw.own(0);
                },
                |w| {
                    w.hw.access(0);
                    settle(w);
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a claim against an access",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| w.hw.access(0)],
            ..SETUP
        }),
    },
    Race {
        name: "a claim against a rescue",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                if w.residue.rescue(&w.engine) {
                    w.hw.look(0);
                }
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a rescue that comes too late",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if !w.residue.rescue(&w.engine) {
                        w.hw.own(0);
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a refill against a claim",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[refill, |w| {
                w.hw.access(0);
                let _ = w.engine.claim(&w.residue);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a refill against a debt that becomes none",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[
                |w| {
                    if w.locks() {
                        refill(w)
                    }
                },
                |w| {
                    w.hw.access(0);
                    w.residue.begin();
                    let mut batch = w.engine.batch(Purpose::Lazy);
                    let range = w.clear(0);
                    batch.unmapped(&w.space, range, 0);
                    w.unlock();
                    w.hw.access(0);
                    for _ in batch.finish() {}
                    w.residue.settle_flushed();
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a look at a frame that owes nothing any more",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.residue.is_clear() {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a look at a frame whose debt is paid",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.engine.is_paid(&w.residue) {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    w.engine.pay_all();
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a claim while the debt is taken",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.unmap_lazily();
                w.hw.access(0);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a look at a frame that was claimed",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.engine.is_paid(&w.residue) {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "the background pays while a debt is taken",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[
                |w| w.engine.pay_all(),
                |w| {
                    w.unmap_lazily();
                    let _ = w.engine.claim(&w.residue);
                    assert!(!w.hw.holds(1, 0), "C1: claimed, and the CPU holds the page");
                },
            ],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline with a space that is retired",
        preemptions: 2,
        body: Body::Engine(Setup {
            programs: &[retire, |w| {
                w.hw.look(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a claim of what the background pays",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.pay_all();
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a claim against a flush",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, flush_whole],
            ..SETUP
        }),
    },
    Race {
        name: "a debt against a flush",
        preemptions: 3,
        body: Body::Engine(Setup {
            programs: &[owe_and_claim, flush_whole],
            ..SETUP
        }),
    },
    Race {
        name: "a claim against a CPU that leaves",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, leave],
            ..SETUP
        }),
    },
    Race {
        name: "a claim against a CPU that goes idle",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.enter_lazy();
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a claim while the ledger is used again",
        preemptions: 2,
        body: Body::Engine(Setup {
            epochs: 1,
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.pay_all();
                let mut batch = w.engine.batch(Purpose::Lazy);
                batch.unmapped(&w.other, quell::PageRange::base(quell::Page(1), 1), 1);
                let _ = batch.finish_owed();
            }],
            ..SETUP
        }),
    },
    Race {
        name: "a request comes while another is taken",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            prepare: run_both_pages_there,
            programs: &[unmap_one_by_one, |_| ()],
            held_up: &[Moment::Sent],
            finally: nothing_lost,
            ..SETUP
        }),
    },
    Race {
        name: "a request comes while another is written",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            prepare: run_both_pages_there,
            programs: &[unmap_one_by_one, |_| ()],
            held_up: &[Moment::Sent, Moment::Locked],
            finally: nothing_lost,
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline while its inbox is locked",
        preemptions: 2,
        body: Body::Engine(Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            programs: &[unmap_one_by_one, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            held_up: &[Moment::Locked],
            ..SETUP
        }),
    },
    Race {
        name: "a CPU goes offline and comes back with a request in its inbox",
        preemptions: 2,
        body: Body::Engine(Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.engine.cpu_offline(Some(&w.space));
                w.engine.cpu_online();
            }],
            held_up: &[Moment::Sent],
            ..SETUP
        }),
    },
    Race {
        name: "a broadcast against an access",
        preemptions: 2,
        body: Body::Engine(Setup {
            broadcast: true,
            programs: &[unmap, |w| w.hw.access(0)],
            ..SETUP
        }),
    },
    Race {
        name: "a broadcast against a first load",
        preemptions: 2,
        body: Body::Engine(Setup {
            broadcast: true,
            prepare: |_| (),
            programs: &[unmap, |w| {
                w.engine.switch_to(None, &w.space);
                w.hw.access(0);
            }],
            ..SETUP
        }),
    },
    Race {
        name: "two CPUs need tags",
        preemptions: 2,
        body: Body::Engine(Setup {
            broadcast: true,
            prepare: |_| (),
            programs: &[
                |w| w.engine.switch_to(None, &w.other),
                |w| {
                    w.engine.switch_to(None, &w.space);
                    w.hw.access(0);
                },
            ],
            finally: tags_differ,
            ..SETUP
        }),
    },
    Race {
        name: "a tag rollover against a switch",
        preemptions: 2,
        body: Body::Engine(Setup {
            broadcast: true,
            prepare: use_up_tags,
            programs: &[
                |w| w.engine.switch_to(None, &w.third),
                |w| {
                    w.engine.switch_to(Some(&w.other), &w.space);
                    w.hw.access(0);
                },
            ],
            finally: tags_differ,
            ..SETUP
        }),
    },
    Race {
        name: "zeroed frames change hands",
        preemptions: 2,
        body: Body::Free(pool),
    },
];

/// No two CPUs run two spaces under one tag.
fn tags_differ(world: &World) {
    let ((tag, root), (other_tag, other_root)) = (world.hw.runs(0), world.hw.runs(1));
    assert!(
        tag != other_tag || root == other_root,
        "C5: one tag for two"
    );
}

/// All tags are dealt; CPU 1 runs the other space and has entries of the first.
fn use_up_tags(world: &World) {
    if world.me() == 1 {
        run_other_there(world);
        let passing = leak(world.engine.new_space(Frame(9)));
        world.engine.switch_to(Some(&world.other), passing);
        world.engine.switch_to(Some(passing), &world.other);
    }
}

/// The only frame of the pool: its memory is a cell.
struct PoolFrame;

impl Clearable for PoolFrame {
    fn extent(&self) -> Extent {
        Extent {
            first: Frame(0),
            frames: 1,
        }
    }
}

impl Pooled for PoolFrame {
    fn into_raw(self) -> u64 {
        0
    }
    fn from_raw(_: u64) -> Self {
        PoolFrame
    }
}

/// One CPU clears a frame and puts it in, another takes it out and uses it.
fn pool() {
    let slots: &'static [LoomWord; 1] = leak([LoomWord::new(0)]);
    let pool: &'static Pool<'static, LoomWord, PoolFrame> = leak(Pool::new(slots, 4096));
    let machine = leak(Machine::new(2, false));
    machine.own(0);
    let filler = thread::spawn(move || {
        be(1);
        let (zeroed, _) = clear(machine, PoolFrame, None, &ClearPolicy::default(), || ());
        let _ = pool.put(zeroed);
    });
    be(0);
    if let Some(zeroed) = pool.take() {
        let _ = zeroed.into_inner();
        assert_eq!(machine.look(0), 0, "C8: a frame that is not zero");
    }
    filler.join().expect("it ended");
}

impl Race {
    /// Runs the race once; loom runs this in every way it knows.
    pub fn run(&self) {
        let setup = match &self.body {
            Body::Free(run) => return run(),
            Body::Engine(setup) => *setup,
        };
        let cpus = setup.programs.len() + setup.held_up.len();
        let world = World::new(
            cpus,
            setup.broadcast,
            setup.epochs,
            setup.policy,
            setup.prepare,
        );
        setup.run(world, 0);
        (setup.finally)(world);
    }
}

impl Setup {
    /// Runs the programs with that many CPUs held up already.
    fn run(self, world: &'static World, held_up: usize) {
        let Some(&moment) = self.held_up.get(held_up) else {
            return self.start(world);
        };
        let cpu = (self.programs.len() + held_up) as u16;
        hold_up(cpu, moment, Box::new(move || self.run(world, held_up + 1)));
        be(cpu);
        world.unmap(1, Purpose::Reclaim, Scope::Leaf);
        world.end();
        if held_up == 0 {
            HANDLES
                .take()
                .into_iter()
                .for_each(|other: thread::JoinHandle<()>| {
                    other.join().expect("the other program ended");
                });
        }
    }

    fn start(self, world: &'static World) {
        let ends = self.programs.len() + self.held_up.len();
        let others = (1..self.programs.len()).map(|cpu| {
            thread::spawn(move || {
                be(cpu as u16);
                self.programs[cpu](world);
                world.end();
                world.serve(ends);
            })
        });
        HANDLES.set(others.collect());
        be(0);
        self.programs[0](world);
        world.end();
        if self.held_up.is_empty() {
            HANDLES.take().into_iter().for_each(|other| {
                other.join().expect("the other program ended");
            });
        }
    }
}

std::thread_local! {
    static HANDLES: std::cell::RefCell<Vec<thread::JoinHandle<()>>> = const { std::cell::RefCell::new(Vec::new()) };
}
