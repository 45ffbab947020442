//! Known mistakes, made on purpose by the tests.
//!
//! A test that passes with the mechanism taken out proves nothing. So each fence, flush, wait,
//! generation bump, debt check and guard of the engine can be left out: at that line the engine
//! asks [`Hardware::mutant`](crate::Hardware::mutant), which is a constant `false` on every real
//! machine, so that the question and the mistake are compiled away. The adversary of
//! `quell-model` answers `true` for one mutant at a time and must then find an interleaving that
//! breaks the contract.

/// Declares the mutants with their names and the one-line account of the mistake.
macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// One known mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Mutant { $($(#[doc = $doc])+ $name,)* }

        impl Mutant {
            /// Every mutant.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];
            /// The mutant's name, as it is written in the source.
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$name => stringify!($name),)* }
            }
            /// What the mutant does wrong.
            pub const fn mistake(self) -> &'static str {
                match self { $(Mutant::$name => concat!($($doc,)+),)* }
            }
        }
    };
}

mutants! {
    /// The initiator does not invalidate its own translations.
    SkipLocalFlush,
    /// Clearing leaves out the last page of an extent (C8).
    ZeroSkipsTail,
    /// Clearing leaves out the faulting page and its neighbours (C8).
    ZeroSkipsFaultingPage,
    /// The faulting page is cleared first, so that it is cold when the program reads it (S1).
    ZeroFaultingPageFirst,
    /// A piece may be longer than the cap (S1).
    ZeroIgnoresCap,
    /// There is no preemption point between pieces (S1).
    ZeroHoldsCpu,
    /// The pool takes frames in without clearing them (C8).
    PoolHandsOutDirty,
    /// The pool is filled without regard to the budget of bandwidth.
    PoolIgnoresBudget,
}
