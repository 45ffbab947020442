//! Random programs: sequences of calls and accesses.

use super::{FILE_PAGES, FILES, PAGES};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Zeros,
    Shared(u64, u64),
    Private(u64, u64),
}

#[derive(Clone, Debug)]
pub enum Op {
    Map(u64, u64, Kind, bool),
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Discard(u64, u64),
    PageOut(u64, u64),
    Remap(u64, u64, u64),
    Read(u64),
    Write(u64, u64),
    FileWrite(u64, u64, u64),
    FileRead(u64, u64),
    Truncate(u64, u64),
    Sync(u64),
    Fork,
    Switch(usize),
    Cpu(usize),
    Exit(usize),
    Migrate(u64, u64, u32),
    Demote(u64),
    Reclaim(u64),
}

pub fn op() -> impl Strategy<Value = Op> {
    let range = || (0..PAGES, 1..10u64);
    let kind = prop_oneof![
        3 => Just(Kind::Zeros),
        2 => (0..FILES, 0..8u64).prop_map(|(file, first)| Kind::Shared(file, first)),
        1 => (0..FILES, 0..8u64).prop_map(|(file, first)| Kind::Private(file, first)),
    ];
    prop_oneof![
        6 => (range(), kind, any::<bool>()).prop_map(|((at, n), kind, w)| Op::Map(at, n, kind, w)),
        2 => range().prop_map(|(at, n)| Op::Unmap(at, n)),
        3 => (range(), 0..3u8).prop_map(|((at, n), p)| Op::Protect(at, n, p)),
        2 => range().prop_map(|(at, n)| Op::Discard(at, n)),
        3 => range().prop_map(|(at, n)| Op::PageOut(at, n)),
        1 => (range(), 0..PAGES).prop_map(|((at, n), to)| Op::Remap(at, n, to)),
        20 => (0..PAGES).prop_map(Op::Read),
        15 => (0..PAGES, 1..1000u64).prop_map(|(at, v)| Op::Write(at, v)),
        3 => (0..FILES, 0..FILE_PAGES, 1..1000u64).prop_map(|(f, at, v)| Op::FileWrite(f, at, v)),
        2 => (0..FILES, 0..FILE_PAGES).prop_map(|(f, at)| Op::FileRead(f, at)),
        1 => (0..FILES, 0..FILE_PAGES).prop_map(|(f, n)| Op::Truncate(f, n)),
        2 => (0..FILES).prop_map(Op::Sync),
        1 => Just(Op::Fork),
        2 => (0..4usize).prop_map(Op::Switch),
        3 => (0..2usize).prop_map(Op::Cpu),
        1 => (0..4usize).prop_map(Op::Exit),
        2 => (range(), 0..2u32).prop_map(|((at, n), node)| Op::Migrate(at, n, node)),
        1 => (0..40u64).prop_map(Op::Demote),
        2 => (0..40u64).prop_map(Op::Reclaim),
    ]
}
