//! Each call alone: what programs see, and that every frame comes back.

mod common;

use common::{Options, Program, be};
use quell::Rule;
use quell::{Frame, Mechanism, PageSize, Policy, Tagging};
use quell_vm::{Backing, Call, Error, Fault, MemoryMap, Node, Protection};

const PAGE: u64 = 4096;
const LARGE: u64 = 512 * PAGE;

fn anonymous(bytes: u64, page: PageSize) -> Call {
    Call::Map {
        address: None,
        bytes,
        protection: Protection::READ_WRITE,
        backing: Backing::Anonymous { page },
    }
}

/// Every machine and policy that a behaviour must not depend on.
fn everywhere(frames: u64, test: impl Fn(Program)) {
    let mut policies = vec![Policy::BASELINE, Policy::ALL];
    policies.extend(Mechanism::ALL.map(Policy::only));
    for policy in policies {
        for (tagging, broadcast, hardware_dirty) in [
            (Tagging::None, false, true),
            (Tagging::PerCpu { count: 6 }, false, true),
            (Tagging::Global { bits: 8 }, true, false),
        ] {
            let base = Options::new(frames);
            test(Program::start(Options {
                policy,
                tagging,
                broadcast,
                hardware_dirty,
                ..base
            }));
            be(0);
        }
    }
}

#[test]
fn anonymous_memory_reads_zero_and_keeps_what_is_written() {
    everywhere(128, |program| {
        let a = program.call(anonymous(8 * PAGE, PageSize::Base)).unwrap();
        for page in 0..8 {
            assert_eq!(program.read(a + page * PAGE + 8), 0);
            program.write(a + page * PAGE, page);
        }
        for page in 0..8 {
            assert_eq!(program.read(a + page * PAGE), page);
            assert_eq!(program.peek(a + page * PAGE), Some(page));
        }
        program
            .call(Call::Unmap {
                address: a,
                bytes: 8 * PAGE,
            })
            .unwrap();
        assert_eq!(program.try_access(a, None), Err(Fault::NotMapped));
        program.finish(&[1]);
    });
}

#[test]
fn discard_gives_zeros_again() {
    everywhere(128, |program| {
        let a = program.call(anonymous(2 * PAGE, PageSize::Base)).unwrap();
        for turn in 1..20 {
            program.write(a, turn);
            assert_eq!(
                program.call(Call::Discard {
                    address: a,
                    bytes: PAGE
                }),
                Ok(0)
            );
            assert_eq!(program.read(a), 0);
        }
        program.finish(&[1]);
    });
}

#[test]
fn protection_is_enforced_and_given_back() {
    everywhere(128, |program| {
        let a = program.call(anonymous(3 * PAGE, PageSize::Base)).unwrap();
        for page in 0..3 {
            program.write(a + page * PAGE, 7);
        }
        let protect = |protection| Call::Protect {
            address: a + PAGE,
            bytes: PAGE,
            protection,
        };
        program.call(protect(Protection::READ)).unwrap();
        assert_eq!(program.try_access(a + PAGE, Some(1)), Err(Fault::Forbidden));
        assert_eq!(program.read(a + PAGE), 7);
        program.call(protect(Protection::NONE)).unwrap();
        assert_eq!(program.try_access(a + PAGE, None), Err(Fault::Forbidden));
        assert_eq!(program.peek(a + PAGE), None);
        program.call(protect(Protection::READ_WRITE)).unwrap();
        program.write(a + PAGE, 8);
        assert_eq!(
            (
                program.read(a),
                program.read(a + PAGE),
                program.read(a + 2 * PAGE)
            ),
            (7, 8, 7)
        );
        program.finish(&[1]);
    });
}

#[test]
fn fork_shares_until_somebody_writes() {
    everywhere(256, |program| {
        let a = program.call(anonymous(4 * PAGE, PageSize::Base)).unwrap();
        for page in 0..3 {
            program.write(a + page * PAGE, 10 + page);
        }
        program
            .call(Call::PageOut {
                address: a + 2 * PAGE,
                bytes: PAGE,
            })
            .unwrap();
        let child = program.call(Call::Fork).unwrap() as u32;
        program.write(a, 99);
        program.call(Call::Enter { process: child }).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|page| program.read(a + page * PAGE)),
            [10, 11, 12, 0]
        );
        program.write(a + PAGE, 55);
        program.write(a + 2 * PAGE, 56);
        program.call(Call::Enter { process: 1 }).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|page| program.read(a + page * PAGE)),
            [99, 11, 12, 0]
        );
        assert_eq!(program.call(Call::Exit { process: 1 }), Err(Error::Busy));
        program.finish(&[1, child]);
    });
}

#[test]
fn paged_out_memory_comes_back() {
    everywhere(256, |program| {
        let a = program.call(anonymous(80 * PAGE, PageSize::Base)).unwrap();
        for page in 0..80 {
            program.write(a + page * PAGE + 16, page * 1_000_003);
        }
        assert_eq!(
            program.call(Call::PageOut {
                address: a,
                bytes: 80 * PAGE
            }),
            Ok(80)
        );
        assert_eq!(program.vm.check().unwrap().swapped, 80);
        assert_eq!(program.peek(a + 5 * PAGE + 16), Some(5 * 1_000_003));
        for page in 0..80 {
            assert_eq!(program.read(a + page * PAGE + 16), page * 1_000_003);
        }
        assert_eq!(program.vm.check().unwrap().swapped, 0);
        program
            .call(Call::PageOut {
                address: a,
                bytes: 80 * PAGE,
            })
            .unwrap();
        program.finish(&[1]);
    });
}

#[test]
fn more_memory_than_there_is() {
    everywhere(160, |program| {
        let a = program.call(anonymous(300 * PAGE, PageSize::Base)).unwrap();
        for turn in 0..3 {
            for page in 0..300 {
                let held = program.read(a + page * PAGE);
                assert_eq!(
                    held,
                    if turn == 0 { 0 } else { page + turn },
                    "page {page} turn {turn}"
                );
                program.write(a + page * PAGE, page + turn + 1);
            }
        }
        program.finish(&[1]);
    });
}

fn map_file(program: &Program, file: u64, bytes: u64, shared: bool, protection: Protection) -> u64 {
    let file = file as u32;
    let backing = if shared {
        Backing::Shared { file, offset: 0 }
    } else {
        Backing::Private { file, offset: 0 }
    };
    program
        .call(Call::Map {
            address: None,
            bytes,
            protection,
            backing,
        })
        .unwrap()
}

#[test]
fn files_are_shared_private_written_and_read() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 4 * PAGE }).unwrap();
        let file = id as u32;
        let shared = map_file(&program, id, 4 * PAGE, true, Protection::READ_WRITE);
        let reader = map_file(&program, id, 4 * PAGE, true, Protection::READ);
        let private = map_file(&program, id, 4 * PAGE, false, Protection::READ_WRITE);
        program
            .call(Call::Write {
                file,
                offset: 8,
                value: 1,
            })
            .unwrap();
        assert_eq!(
            [shared, reader, private].map(|at| program.read(at + 8)),
            [1; 3]
        );
        program.write(shared + 8, 2);
        assert_eq!(
            [shared, reader, private].map(|at| program.read(at + 8)),
            [2; 3]
        );
        assert_eq!(program.call(Call::Read { file, offset: 8 }), Ok(2));
        program.write(private + 8, 3);
        program.write(shared + 8, 4);
        assert_eq!(
            [shared, reader, private].map(|at| program.read(at + 8)),
            [4, 4, 3]
        );
        assert_eq!(program.try_access(reader, Some(1)), Err(Fault::Forbidden));
        assert_eq!(program.call(Call::Sync { file }), Ok(1));
        assert_eq!(program.call(Call::Sync { file }), Ok(0));
        program.write(shared + 2 * PAGE, 5);
        program.write(shared + 8, 6);
        assert_eq!(program.call(Call::Sync { file }), Ok(2));
        // Out of memory and back from the device.
        program
            .call(Call::PageOut {
                address: shared,
                bytes: 4 * PAGE,
            })
            .unwrap();
        assert_eq!([shared, reader].map(|at| program.read(at + 8)), [6, 6]);
        assert_eq!(
            [shared, private].map(|at| program.read(at + 2 * PAGE)),
            [5, 5]
        );
        program.finish(&[1]);
    });
}

#[test]
fn truncation_takes_pages_from_under_their_mappings() {
    everywhere(256, |program| {
        let id = program.call(Call::Create { bytes: 40 * PAGE }).unwrap();
        let file = id as u32;
        let a = map_file(&program, id, 40 * PAGE, true, Protection::READ_WRITE);
        for page in 0..40 {
            program.write(a + page * PAGE, 1 + page);
            program.write(a + page * PAGE + 2048, 1 + page);
        }
        program.call(Call::Sync { file }).unwrap();
        program
            .call(Call::PageOut {
                address: a + 20 * PAGE,
                bytes: 10 * PAGE,
            })
            .unwrap();
        program
            .call(Call::Truncate {
                file,
                bytes: 2 * PAGE + 1024,
            })
            .unwrap();
        assert_eq!(program.read(a + 2 * PAGE), 3);
        assert_eq!(program.read(a + 2 * PAGE + 2048), 0);
        assert_eq!(
            program.try_access(a + 3 * PAGE, None),
            Err(Fault::BeyondEnd)
        );
        assert_eq!(
            program.try_access(a + 25 * PAGE, None),
            Err(Fault::BeyondEnd)
        );
        assert_eq!(
            program.call(Call::Read {
                file,
                offset: 3 * PAGE
            }),
            Err(Error::BeyondEnd)
        );
        program
            .call(Call::Truncate {
                file,
                bytes: 40 * PAGE,
            })
            .unwrap();
        assert_eq!(
            [3, 25, 39].map(|page| program.read(a + page * PAGE)),
            [0; 3]
        );
        program.finish(&[1]);
    });
}

#[test]
fn clean_pages_that_were_taken_lazily_are_rescued() {
    let policy = Policy::only(Mechanism::LazyUnmap);
    let program = Program::start(Options {
        policy,
        ..Options::new(256)
    });
    let id = program.call(Call::Create { bytes: 8 * PAGE }).unwrap();
    let file = id as u32;
    for page in 0..8 {
        program
            .call(Call::Write {
                file,
                offset: page * PAGE,
                value: page + 1,
            })
            .unwrap();
    }
    program.call(Call::Sync { file }).unwrap();
    let a = map_file(&program, id, 8 * PAGE, true, Protection::READ);
    let other = map_file(&program, id, 8 * PAGE, true, Protection::READ_WRITE);
    for page in 0..8 {
        program.read(a + page * PAGE);
        program.read(other + page * PAGE);
    }
    assert_eq!(
        program.call(Call::PageOut {
            address: a,
            bytes: 8 * PAGE
        }),
        Ok(8)
    );
    assert_eq!(program.vm.check().unwrap().stale, 8);
    // The write call, a write fault and truncation find the frame; the read of page 1 still goes
    // through the translation that was left behind.
    program
        .call(Call::Write {
            file,
            offset: 0,
            value: 100,
        })
        .unwrap();
    assert_eq!([program.read(a), program.read(other)], [100, 100]);
    assert_eq!(program.read(a + PAGE), 2);
    program.write(other + 2 * PAGE, 300);
    assert_eq!(program.read(a + 2 * PAGE), 300);
    program
        .call(Call::Truncate {
            file,
            bytes: 7 * PAGE,
        })
        .unwrap();
    assert_eq!(
        program.try_access(a + 7 * PAGE, None),
        Err(Fault::BeyondEnd)
    );
    assert_eq!(
        program
            .machine
            .rescued
            .load(std::sync::atomic::Ordering::Relaxed),
        3
    );
    program.vm.check().unwrap();
    // What is left is claimed when memory is short, and read from the device after that.
    let hog = program.call(anonymous(400 * PAGE, PageSize::Base)).unwrap();
    for page in 0..400 {
        program.write(hog + page * PAGE, page);
    }
    assert_eq!(
        [3, 4, 5, 6].map(|page| program.read(a + page * PAGE)),
        [4, 5, 6, 7]
    );
    program.finish(&[1]);
}

/// The four programs for which lazy unmapping was refused elsewhere.
fn stale_readers(forgotten: Option<&'static Rule>) {
    for policy in [Policy::ALL, Policy::only(Mechanism::LazyUnmap)] {
        let program = Program::start(Options {
            policy,
            forgotten,
            ..Options::new(256)
        });
        let files = [1, 2].map(|value| {
            let file = program.call(Call::Create { bytes: PAGE }).unwrap();
            program
                .call(Call::Write {
                    file: file as u32,
                    offset: 0,
                    value,
                })
                .unwrap();
            program.call(Call::Sync { file: file as u32 }).unwrap();
            file
        });
        let a = map_file(&program, files[0], PAGE, true, Protection::READ);
        // The second CPU keeps a translation throughout.
        let on = |cpu: usize, value: u64| {
            be(cpu);
            assert_eq!(program.read(a), value, "CPU {cpu} {policy:?}");
            be(0);
        };
        be(1);
        program.vm.enter(1).unwrap();
        be(0);
        let out = || assert!(program.call(Call::Reclaim { pages: 9 }).unwrap() >= 1);
        on(0, 1);
        on(1, 1);
        out();
        let backing = Backing::Shared {
            file: files[1] as u32,
            offset: 0,
        };
        let protection = Protection::READ;
        let replace = Call::Map {
            address: Some(a),
            bytes: PAGE,
            protection,
            backing,
        };
        program.call(replace).unwrap();
        on(0, 2);
        on(1, 2);
        out();
        program
            .call(Call::Write {
                file: files[1] as u32,
                offset: 0,
                value: 20,
            })
            .unwrap();
        on(1, 20);
        on(0, 20);
        program
            .call(Call::Sync {
                file: files[1] as u32,
            })
            .unwrap();
        out();
        let writer = map_file(&program, files[1], PAGE, true, Protection::READ_WRITE);
        program.write(writer, 200);
        on(1, 200);
        on(0, 200);
        program
            .call(Call::Sync {
                file: files[1] as u32,
            })
            .unwrap();
        out();
        let hog = program.call(anonymous(400 * PAGE, PageSize::Base)).unwrap();
        for page in 0..400 {
            program.write(hog + page * PAGE, 7);
        }
        on(1, 200);
        program.finish(&[1]);
    }
}

fn moved_under_readers(forgotten: Option<&'static Rule>) {
    let node = |first, frames, slow| Node {
        extent: quell::Extent {
            first: Frame(first),
            frames,
        },
        slow,
    };
    let map = MemoryMap::new(&[node(0x1000, 128, false), node(0x2000, 128, true)]);
    let policy = Policy::only(Mechanism::LazyUnmap);
    let program = Program::start(Options {
        map,
        policy,
        forgotten,
        ..Options::new(0)
    });
    let file = program.call(Call::Create { bytes: 4 * PAGE }).unwrap() as u32;
    let a = map_file(&program, file.into(), 4 * PAGE, true, Protection::READ);
    let writer = map_file(
        &program,
        file.into(),
        4 * PAGE,
        true,
        Protection::READ_WRITE,
    );
    be(1);
    program.vm.enter(1).unwrap();
    for page in 0..4 {
        assert_eq!(program.read(a + page * PAGE), 0);
    }
    be(0);
    let bytes = 4 * PAGE;
    assert_eq!(
        program.call(Call::Migrate {
            address: a,
            bytes,
            node: 1
        }),
        Ok(4)
    );
    assert_eq!(program.vm.check().unwrap().stale, 4);
    // CPU 1 still reads the old frames, and must not any more once the bytes differ.
    program
        .call(Call::Write {
            file,
            offset: 0,
            value: 1,
        })
        .unwrap();
    assert_eq!(
        program.call(Call::Migrate {
            address: a,
            bytes,
            node: 0
        }),
        Ok(0)
    );
    program.write(writer + PAGE, 2);
    program
        .call(Call::Truncate {
            file,
            bytes: 3 * PAGE,
        })
        .unwrap();
    be(1);
    assert_eq!(
        [0, 1, 2].map(|page| program.read(a + page * PAGE)),
        [1, 2, 0]
    );
    assert_eq!(
        program.try_access(a + 3 * PAGE, None),
        Err(Fault::BeyondEnd)
    );
    be(0);
    assert_eq!(
        [0, 1, 2].map(|page| program.read(a + page * PAGE)),
        [1, 2, 0]
    );
    program.finish(&[1]);
}

#[test]
fn stale_translations_never_show_wrong_bytes() {
    stale_readers(None);
    be(0);
    moved_under_readers(None);
}

/// The same programs notice each rule of lazy unmapping that is broken.
#[test]
fn broken_rules_of_lazy_unmapping_are_noticed() {
    let rules = [
        &quell_vm::rules::VmIgnoresMarker,
        &quell_vm::rules::VmRefillsOwedSlot,
        &quell_vm::rules::VmWritesShadowedPage,
        &quell::rules::ClaimSkipsDebt,
    ];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let unnoticed = rules.map(|rule| {
        [stale_readers, moved_under_readers]
            .into_iter()
            .all(|test| {
                be(0);
                std::panic::catch_unwind(|| test(Some(rule))).is_ok()
            })
    });
    std::panic::set_hook(hook);
    assert_eq!(unnoticed, [false; 4], "of {rules:?}");
}

#[test]
fn large_pages_are_used_split_copied_and_collapsed() {
    everywhere(8 * 512, |program| {
        let a = program.call(anonymous(2 * LARGE, PageSize::Large)).unwrap();
        assert_eq!(a % LARGE, 0);
        program.write(a + 5 * PAGE, 5);
        program.write(a + LARGE, 6);
        assert_eq!(program.vm.check().unwrap().anonymous, 1024);
        // Splitting keeps contents; what was cut out is gone.
        program
            .call(Call::Unmap {
                address: a + 7 * PAGE,
                bytes: PAGE,
            })
            .unwrap();
        assert_eq!(
            program.try_access(a + 7 * PAGE, None),
            Err(Fault::NotMapped)
        );
        assert_eq!(
            (program.read(a + 5 * PAGE), program.read(a + LARGE)),
            (5, 6)
        );
        assert_eq!(program.vm.check().unwrap().anonymous, 1023);
        // A copy of a shared large page.
        let child = program.call(Call::Fork).unwrap() as u32;
        program.write(a + LARGE + PAGE, 61);
        program.call(Call::Enter { process: child }).unwrap();
        assert_eq!(
            (program.read(a + LARGE), program.read(a + LARGE + PAGE)),
            (6, 0)
        );
        program.call(Call::Enter { process: 1 }).unwrap();
        // One that must be split while shared.
        let again = program.call(Call::Fork).unwrap() as u32;
        program
            .call(Call::Discard {
                address: a + LARGE + PAGE,
                bytes: PAGE,
            })
            .unwrap();
        assert_eq!(
            (program.read(a + LARGE), program.read(a + LARGE + PAGE)),
            (6, 0)
        );
        program.call(Call::Enter { process: again }).unwrap();
        assert_eq!(
            (program.read(a + LARGE), program.read(a + LARGE + PAGE)),
            (6, 61)
        );
        program.call(Call::Enter { process: 1 }).unwrap();
        program.vm.leave();
        for process in [child, again] {
            program.vm.call(Call::Exit { process }).unwrap();
        }
        program.vm.enter(1).unwrap();
        for page in 0..512 {
            program.write(a + LARGE + page * PAGE + 8, page);
        }
        assert_eq!(
            program.call(Call::Collapse {
                address: a + LARGE + 1
            }),
            Ok(1)
        );
        assert_eq!(program.call(Call::Collapse { address: a + LARGE }), Ok(0));
        for page in 0..512 {
            assert_eq!(program.read(a + LARGE + page * PAGE + 8), page);
        }
        program.write(a + LARGE, 8);
        assert_eq!(program.read(a + LARGE), 8);
        // Out to swap in pieces.
        assert_eq!(
            program.call(Call::PageOut {
                address: a + LARGE,
                bytes: LARGE
            }),
            Ok(512)
        );
        assert_eq!(program.read(a + LARGE + 9 * PAGE + 8), 9);
        program.finish(&[1]);
    });
}

#[test]
fn shared_large_pages_are_copied_in_pieces_where_no_block_is_left() {
    let by_store = |program: Program, a: u64| program.write(a + 5 * PAGE, 50);
    let by_discard = |program: Program, a: u64| {
        let (address, bytes) = (a + 5 * PAGE, PAGE);
        program.call(Call::Discard { address, bytes }).unwrap();
        program.write(address, 50);
    };
    for change in [by_store, by_discard] {
        // One block of 512 frames, and twice 511 that make none.
        let map = MemoryMap::flat(Frame(0x1001), 511 + 512 + 511);
        let program = Program::start(Options {
            map,
            ..Options::new(0)
        });
        let a = program.call(anonymous(LARGE, PageSize::Large)).unwrap();
        for page in 0..512 {
            program.write(a + page * PAGE, page);
        }
        let child = program.call(Call::Fork).unwrap() as u32;
        assert_eq!(program.vm.check().unwrap().anonymous, 512);
        change(program, a);
        assert_eq!(program.vm.check().unwrap().anonymous, 1024);
        for (process, fifth) in [(1, 50), (child, 5)] {
            program.call(Call::Enter { process }).unwrap();
            for page in 0..512 {
                let expected = if page == 5 { fifth } else { page };
                assert_eq!(program.read(a + page * PAGE), expected);
            }
        }
        program.write(a, 7);
        program.call(Call::Enter { process: 1 }).unwrap();
        assert_eq!(program.read(a), 0);
        program.finish(&[1, child]);
    }
}

#[test]
fn huge_pages_are_used_and_split() {
    let frames = 3 * 512 * 512;
    let program = Program::start(Options {
        map: MemoryMap::flat(Frame(512 * 512), frames),
        ..Options::new(0)
    });
    let bytes = PageSize::Huge.bytes();
    let a = program.call(anonymous(bytes, PageSize::Huge)).unwrap();
    program.write(a + 77 * LARGE, 7);
    assert_eq!(program.vm.check().unwrap().anonymous, 512 * 512);
    program
        .call(Call::Unmap {
            address: a + PAGE,
            bytes: PAGE,
        })
        .unwrap();
    assert_eq!((program.read(a), program.read(a + 77 * LARGE)), (0, 7));
    assert_eq!(program.vm.check().unwrap().anonymous, 512 * 512 - 1);
    program.finish(&[1]);
}

#[test]
fn remap_moves_pages_without_copying() {
    everywhere(256, |program| {
        let a = program.call(anonymous(6 * PAGE, PageSize::Base)).unwrap();
        for page in 0..5 {
            program.write(a + page * PAGE, page + 1);
        }
        program
            .call(Call::PageOut {
                address: a + PAGE,
                bytes: PAGE,
            })
            .unwrap();
        let b = program
            .call(Call::Remap {
                address: a,
                bytes: 6 * PAGE,
                to: None,
            })
            .unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|page| program.read(b + page * PAGE)),
            [1, 2, 3, 4, 5, 0]
        );
        assert_eq!(program.try_access(a, None), Err(Fault::NotMapped));
        let c = b + (1 << 30);
        let to = Some(c);
        assert_eq!(
            program.call(Call::Remap {
                address: b,
                bytes: 2 * PAGE,
                to
            }),
            Ok(c)
        );
        assert_eq!(
            (
                program.read(c),
                program.read(c + PAGE),
                program.read(b + 2 * PAGE)
            ),
            (1, 2, 3)
        );
        let to = Some(b + PAGE);
        let overlap = Call::Remap {
            address: b + 2 * PAGE,
            bytes: 4 * PAGE,
            to,
        };
        assert_eq!(program.call(overlap), Ok(b + PAGE).and(Err(Error::Overlap)));
        program.finish(&[1]);
    });
}

#[test]
fn migration_keeps_contents_and_demotion_makes_room() {
    for policy in [Policy::BASELINE, Policy::ALL] {
        let node = |first, frames, slow| Node {
            extent: quell::Extent {
                first: Frame(first),
                frames,
            },
            slow,
        };
        let map = MemoryMap::new(&[node(0x1000, 128, false), node(0x2000, 1024, true)]);
        let program = Program::start(Options {
            map,
            policy,
            ..Options::new(0)
        });
        let a = program.call(anonymous(20 * PAGE, PageSize::Base)).unwrap();
        for page in 0..20 {
            program.write(a + page * PAGE, page);
        }
        assert_eq!(
            program.call(Call::Migrate {
                address: a,
                bytes: 20 * PAGE,
                node: 1
            }),
            Ok(20)
        );
        for page in 0..20 {
            assert_eq!(program.read(a + page * PAGE), page);
            program.write(a + page * PAGE, page + 1);
        }
        assert_eq!(
            program.call(Call::Migrate {
                address: a,
                bytes: 20 * PAGE,
                node: 1
            }),
            Ok(0)
        );
        assert_eq!(
            program.call(Call::Migrate {
                address: a,
                bytes: PAGE,
                node: 0
            }),
            Ok(1)
        );
        assert_eq!(
            program.call(Call::Migrate {
                address: a,
                bytes: PAGE,
                node: 2
            }),
            Err(Error::NoNode)
        );
        // More than the fast node holds: old pages go to the slow one, none to swap.
        let b = program.call(anonymous(300 * PAGE, PageSize::Base)).unwrap();
        for page in 0..300 {
            program.write(b + page * PAGE, page);
        }
        let totals = program.vm.check().unwrap();
        assert_eq!((totals.anonymous, totals.swapped), (320, 0));
        for page in 0..300 {
            assert_eq!(program.read(b + page * PAGE), page);
        }
        program.finish(&[1]);
    }
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let program = Program::start(Options::new(64));
    let a = program.call(anonymous(2 * PAGE, PageSize::Base)).unwrap();
    program.write(a, 1);
    let end = 1 << 47;
    let none = Protection::NONE;
    let file = Backing::Shared { file: 9, offset: 0 };
    let cases = [
        (
            Call::Unmap {
                address: a + 1,
                bytes: PAGE,
            },
            Error::Unaligned,
        ),
        (
            Call::Unmap {
                address: a,
                bytes: 0,
            },
            Error::BadRange,
        ),
        (
            Call::Unmap {
                address: end,
                bytes: PAGE,
            },
            Error::BadRange,
        ),
        (
            Call::Unmap {
                address: 0,
                bytes: u64::MAX,
            },
            Error::BadRange,
        ),
        (
            Call::Unmap {
                address: u64::MAX - 4095,
                bytes: 4096,
            },
            Error::BadRange,
        ),
        (
            Call::Protect {
                address: a,
                bytes: 3 * PAGE,
                protection: none,
            },
            Error::NotMapped,
        ),
        (
            Call::Discard {
                address: a,
                bytes: 3 * PAGE,
            },
            Error::NotMapped,
        ),
        (
            Call::PageOut {
                address: a - PAGE,
                bytes: 2 * PAGE,
            },
            Error::NotMapped,
        ),
        (
            Call::Remap {
                address: a,
                bytes: 3 * PAGE,
                to: None,
            },
            Error::NotMapped,
        ),
        (Call::Collapse { address: 0 }, Error::NotMapped),
        (Call::Enter { process: 99 }, Error::NoProcess),
        (Call::Exit { process: 99 }, Error::NoProcess),
        (Call::Exit { process: 1 }, Error::Busy),
        (
            Call::Write {
                file: 0,
                offset: 0,
                value: 0,
            },
            Error::NoFile,
        ),
        (Call::Sync { file: 7 }, Error::NoFile),
        (
            Call::Truncate {
                file: u32::MAX,
                bytes: 0,
            },
            Error::NoFile,
        ),
        (Call::Create { bytes: u64::MAX }, Error::BadRange),
        (
            Call::Map {
                address: None,
                bytes: PAGE,
                protection: none,
                backing: file,
            },
            Error::NoFile,
        ),
        (anonymous(end, PageSize::Base), Error::NoSpace),
        (anonymous(0, PageSize::Base), Error::BadRange),
    ];
    for (call, error) in cases {
        assert_eq!(program.call(call), Err(error), "{call:?}");
        assert_eq!(program.read(a), 1, "{call:?}");
    }
    program.finish(&[1]);
}

#[test]
fn memory_that_runs_out_is_an_error() {
    let config = |config: &mut quell_vm::VmConfig| config.swap_pages = 10;
    let program = Program::start(Options {
        config,
        ..Options::new(64)
    });
    let a = program.call(anonymous(100 * PAGE, PageSize::Base)).unwrap();
    let full = (0..100).find(|page| program.try_access(a + page * PAGE, Some(*page)).is_err());
    let full = full.expect("64 frames and 10 pages of swap do not hold 100 pages");
    assert_eq!(
        program.try_access(a + full * PAGE, Some(1)),
        Err(Fault::OutOfMemory)
    );
    assert_eq!(program.call(Call::Fork), Err(Error::OutOfMemory));
    for page in 0..full {
        assert_eq!(
            program.try_access(a + page * PAGE, None).unwrap_or(page),
            page
        );
    }
    program.finish(&[1]);
}

#[test]
fn empty_tables_are_freed() {
    let program = Program::start(Options::new(64));
    let before = program.vm.check().unwrap().tables;
    for turn in 1..50 {
        let address = Some(turn << 32);
        let protection = Protection::READ_WRITE;
        let backing = Backing::Anonymous {
            page: PageSize::Base,
        };
        let a = program
            .call(Call::Map {
                address,
                bytes: PAGE,
                protection,
                backing,
            })
            .unwrap();
        program.write(a, 1);
        program
            .call(Call::Unmap {
                address: a,
                bytes: PAGE,
            })
            .unwrap();
        assert_eq!(program.vm.check().unwrap().tables, before);
    }
    program.finish(&[1]);
}
