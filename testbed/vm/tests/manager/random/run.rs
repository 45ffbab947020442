//! A program and its model, run side by side.

use super::model::{Model, ModelPage, ModelProcess};
use super::program::{Kind, Op};
use super::{BASE, FILE_PAGES, FILES, PAGE, PAGES};
use crate::common::{Options, Program, be};
use quell::PageSize;
use quell_vm::{Backing, Call, Error, Protection};
use std::collections::BTreeMap;

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

pub struct Run {
    program: Program,
    model: Model,
    current: [u32; 2],
    cpu: usize,
}

impl Run {
    pub fn start(options: Options) -> Run {
        let program = Program::start(options);
        let mut model = Model::default();
        for _ in 0..FILES {
            program.call(Call::Create { bytes: FILE_PAGES * PAGE }).unwrap();
            model.files.push(vec![0; FILE_PAGES as usize]);
        }
        model.processes.insert(1, ModelProcess::default());
        be(1);
        program.vm.enter(1).unwrap();
        be(0);
        Run { program, model, current: [1; 2], cpu: 0 }
    }

    fn mine(&mut self) -> &mut BTreeMap<u64, ModelPage> {
        &mut self.model.processes.get_mut(&self.current[self.cpu]).unwrap().pages
    }

    /// Returns the result of a call that is refused if not all of the pages are mapped.
    fn if_covered(&mut self, at: u64, n: u64) -> Result<u64, Error> {
        self.covered(at, n).then_some(0).ok_or(Error::NotMapped)
    }

    fn covered(&mut self, at: u64, n: u64) -> bool {
        (at..at + n).all(|page| self.mine().contains_key(&page))
    }

    pub fn step(&mut self, op: &Op) {
        let program = self.program;
        let me = self.current[self.cpu];
        match *op {
            Op::Map(at, n, kind, writable) => {
                let protection = if writable { Protection::READ_WRITE } else { Protection::READ };
                let backing = match kind {
                    Kind::Zeros => Backing::Anonymous { page: PageSize::Large },
                    Kind::Shared(file, first) => {
                        Backing::Shared { file: file as u32, offset: first * PAGE }
                    }
                    Kind::Private(file, first) => {
                        Backing::Private { file: file as u32, offset: first * PAGE }
                    }
                };
                let address = address(at);
                let call =
                    Call::Map { address: Some(address), bytes: n * PAGE, protection, backing };
                assert_eq!(program.call(call), Ok(address));
                for page in at..at + n {
                    let kind = match kind {
                        Kind::Zeros => kind,
                        Kind::Shared(file, first) => Kind::Shared(file, first + page - at),
                        Kind::Private(file, first) => Kind::Private(file, first + page - at),
                    };
                    self.mine().insert(page, ModelPage { kind, protection, own: None });
                }
            }
            Op::Unmap(at, n) => {
                let call = Call::Unmap { address: address(at), bytes: n * PAGE };
                assert_eq!(program.call(call), Ok(0));
                (at..at + n).for_each(|page| {
                    self.mine().remove(&page);
                });
            }
            Op::Protect(at, n, level) => {
                let all = [Protection::NONE, Protection::READ, Protection::READ_WRITE];
                let protection = all[level as usize];
                let call = Call::Protect { address: address(at), bytes: n * PAGE, protection };
                let expected = self.if_covered(at, n);
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in at..at + n {
                        self.mine().get_mut(&page).unwrap().protection = protection;
                    }
                }
            }
            Op::Discard(at, n) => {
                let call = Call::Discard { address: address(at), bytes: n * PAGE };
                let expected = self.if_covered(at, n);
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in at..at + n {
                        self.mine().get_mut(&page).unwrap().own = None;
                    }
                }
            }
            Op::PageOut(at, n) => {
                let call = Call::PageOut { address: address(at), bytes: n * PAGE };
                assert_eq!(program.call(call).is_ok(), self.covered(at, n));
            }
            Op::Remap(at, n, to) => {
                let call =
                    Call::Remap { address: address(at), bytes: n * PAGE, to: Some(address(to)) };
                let expected = if !self.covered(at, n) {
                    Err(Error::NotMapped)
                } else if to < at + n && at < to + n {
                    Err(Error::Overlap)
                } else {
                    Ok(address(to))
                };
                assert_eq!(program.call(call), expected);
                if expected.is_ok() {
                    for page in 0..n {
                        let moved = self.mine().remove(&(at + page)).unwrap();
                        self.mine().insert(to + page, moved);
                    }
                }
            }
            Op::Read(at) => {
                let expected = self.model.load(me, at);
                assert_eq!(program.try_access(address(at), None), expected, "page {at}");
                assert_eq!(program.peek(address(at)), expected.ok(), "peek at page {at}");
            }
            Op::Write(at, value) => {
                let expected = self.model.store(me, at, value);
                assert_eq!(
                    program.try_access(address(at), Some(value)).map(drop),
                    expected,
                    "store to page {at}"
                );
            }
            Op::FileWrite(file, at, value) => {
                let call = Call::Write { file: file as u32, offset: at * PAGE, value };
                assert_eq!(program.call(call), Ok(0));
                let pages = &mut self.model.files[file as usize];
                let length = pages.len().max(at as usize + 1);
                pages.resize(length, 0);
                pages[at as usize] = value;
            }
            Op::FileRead(file, at) => {
                let call = Call::Read { file: file as u32, offset: at * PAGE };
                let held = self.model.files[file as usize].get(at as usize).copied();
                assert_eq!(program.call(call), held.ok_or(Error::BeyondEnd));
            }
            Op::Truncate(file, n) => {
                let call = Call::Truncate { file: file as u32, bytes: n * PAGE };
                assert_eq!(program.call(call), Ok(0));
                self.model.files[file as usize].resize(n as usize, 0);
            }
            Op::Sync(file) => assert!(program.call(Call::Sync { file: file as u32 }).is_ok()),
            Op::Fork => {
                if self.model.processes.len() < 4 {
                    let child = program.call(Call::Fork).unwrap() as u32;
                    let copy = self.model.processes[&me].clone();
                    self.model.processes.insert(child, copy);
                }
            }
            Op::Switch(which) => {
                if let Some(&process) = self.model.processes.keys().nth(which) {
                    assert_eq!(program.call(Call::Enter { process }), Ok(0));
                    self.current[self.cpu] = process;
                }
            }
            Op::Cpu(cpu) => {
                self.cpu = cpu;
                be(cpu);
            }
            Op::Exit(which) => {
                if let Some(&process) = self.model.processes.keys().nth(which) {
                    let busy = self.current.contains(&process);
                    let expected = if busy { Err(Error::Busy) } else { Ok(0) };
                    assert_eq!(program.call(Call::Exit { process }), expected);
                    if !busy {
                        self.model.processes.remove(&process);
                    }
                }
            }
            Op::Migrate(at, n, node) => {
                let call = Call::Migrate { address: address(at), bytes: n * PAGE, node };
                assert_eq!(program.call(call).is_ok(), self.covered(at, n));
            }
            Op::Demote(pages) => assert!(program.call(Call::Demote { pages }).is_ok()),
            Op::Reclaim(pages) => assert!(program.call(Call::Reclaim { pages }).is_ok()),
        }
    }

    pub fn finish(mut self) {
        for cpu in 0..2 {
            self.step(&Op::Cpu(cpu));
            (0..PAGES).for_each(|at| self.step(&Op::Read(at)));
        }
        let processes: Vec<u32> = self.model.processes.keys().copied().collect();
        self.program.finish(&processes);
    }
}
