//! Blocks of assembly whose declarations are tested.
//!
//! A compiler trusts the declarations of a block of assembly. Suppose that a block changes a register, a flag or a word
//! below the stack pointer and doesn't declare it. Then other code that uses it fails, perhaps much later, and only
//! where the compiler happened to keep a value there. So we write each block of this crate once, in [`blocks!`], with
//! its declarations beside it, and use that text twice:
//!
//! * in `asm!`, with the declarations as operands and options;
//! * in tests, in a *probe*: a function that fills every register, the flags and the red zone with known values, runs
//!   the same text, and returns all of it. The test compares the changes with the declarations, in both directions.
//!
//! We test blocks for translation caches in a third way, on every host. In unit tests their functions record text and
//! operands instead of running privileged instructions. `manual` compares the record of each function of the crate with
//! the architecture's manual.
//!
//! Therefore operands name their registers: text with `{}` in it would differ between the two uses. A test checks that
//! the crate has no `asm!` elsewhere.
//!
//! # Declarations
//!
//! * `in`: a register that the block reads and doesn't change.
//! * `inout`: a register that it reads and changes.
//! * `out`: a register that it changes. The name of a vector register's lower 128 bits means the whole register: `xmm0`
//!   includes `ymm0` and `zmm0`, `v0` includes `z0`.
//! * `returns`: a register that it changes and that holds the result.
//! * `options`, as for `asm!`: `preserves_flags` if no flag changes; `nostack` if the stack pointer and the red zone
//!   don't change; `nomem` if the order of the block and the memory accesses around it doesn't matter. A block that
//!   changes the meaning of *addresses* writes memory as far as the compiler is concerned: it must have neither `nomem`
//!   nor `readonly`.
//!
//! # Every architecture
//!
//! The tests run the host's own blocks. With QEMU's user mode (Debian's `qemu-user`) and a Rust target, those of the
//! other architectures run on any host:
//!
//! ```text
//! RUSTFLAGS=-Clinker=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
//!     cargo test -p quell-arch --target aarch64-unknown-linux-musl
//! CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc \
//!     CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_RUNNER="qemu-riscv64 -L /usr/riscv64-linux-gnu" \
//!     cargo test -p quell-arch --target riscv64gc-unknown-linux-gnu
//! ```
//!
//! The last command also needs a C library and a linker (Debian's `gcc-riscv64-linux-gnu` and
//! `libc6-dev-riscv64-cross`).
//!
//! # Limits of the tests
//!
//! Blocks marked `privileged` fault in user mode, where tests run. For them the test compares the declarations with the
//! manuals' description of each instruction. We don't check segment registers, debug registers, SVE and SME state,
//! RISC-V's vectors and the thread pointer.

/// Defines functions of one block of assembly each and, in tests, a table of them.
///
/// With `TABLE of "architecture"` the functions exist in unit tests on every host. There they record their text and the
/// values of their registers ([`recorder`]), and skip instructions that are privileged or belong to another
/// architecture.
macro_rules! blocks {
    (
        @table $table:ident $place:tt;
        $(
            $(#[$attribute:meta])*
            $visibility:vis unsafe fn $name:ident($($argument:ident: $type:ty),* $(,)?)
            $(-> $result:ty)? {
                $mode:ident: $($text:literal),+;
                $(in($in:tt) $in_value:expr,)*
                $(inout($inout:tt) $inout_value:expr,)*
                $(out($out:tt),)*
                $(returns($return:tt),)?
                options($($option:ident),*)
            }
        )+
    ) => {
        $(
            blocks! {
                @function $mode $place;
                {
                    $(#[$attribute])*
                    #[inline]
                    $visibility unsafe fn $name($($argument: $type),*) $(-> $result)?
                }
                {
                    $(let result: $result;)?
                    // SAFETY: the caller meets the conditions in the function's documentation. The block declares every
                    // change of its text: tests compare the two.
                    unsafe {
                        core::arch::asm!(
                            $($text,)+
                            $(in($in) $in_value,)*
                            $(inout($inout) $inout_value => _,)*
                            $(out($out) _,)*
                            $(out($return) result,)?
                            options($($option),*)
                        );
                    }
                    $(blocks!(@result result, $return))?
                }
                {
                    crate::block::recorder::note(
                        stringify!($name),
                        &[$($text),+],
                        &[
                            $(($in, crate::block::recorder::Operand::words($in_value)),)*
                            $(($inout, crate::block::recorder::Operand::words($inout_value)),)*
                        ],
                    )
                }
                { $(crate::block::recorder::result($return) as $result)? }
            }
        )+

        /// Every block of this module.
        #[cfg(test)]
        pub(crate) const $table: &[crate::block::Block] = &[$(crate::block::Block {
            name: stringify!($name),
            text: &[$($text),+],
            inputs: &[$($in,)* $($inout,)*],
            changes: &[$($inout,)* $($out,)* $($return,)?],
            options: &[$(stringify!($option)),*],
            probe: blocks!(@probe $mode $place; $($text),+),
        }),+];
    };
    (@function $mode:ident (); { $($head:tt)+ } $body:tt $note:tt $result:tt) => {
        $($head)+ $body
    };
    (@function privileged ($architecture:tt); { $($head:tt)+ } $body:tt $note:tt $result:tt) => {
        #[cfg(not(test))]
        $($head)+ $body

        #[cfg(test)]
        $($head)+ { $note; $result }
    };
    (@function user ($architecture:tt); { $($head:tt)+ } $body:tt $note:tt $result:tt) => {
        #[cfg(not(test))]
        $($head)+ $body

        #[cfg(all(test, target_arch = $architecture))]
        $($head)+ { $note; $body }

        #[cfg(all(test, not(target_arch = $architecture)))]
        $($head)+ { $note; $result }
    };
    (@result $value:ident, $register:tt) => { $value };
    (@probe privileged $place:tt; $($text:literal),+) => { None };
    (@probe user (); $($text:literal),+) => { Some(probe!($($text),+)) };
    (@probe user ($architecture:tt); $($text:literal),+) => {{
        #[cfg(target_arch = $architecture)]
        {
            Some(probe!($($text),+))
        }
        #[cfg(not(target_arch = $architecture))]
        {
            None
        }
    }};
    ($table:ident of $architecture:tt; $($blocks:tt)+) => {
        blocks! { @table $table ($architecture); $($blocks)+ }
    };
    ($table:ident; $($blocks:tt)+) => {
        blocks! { @table $table (); $($blocks)+ }
    };
}

/// Defines blocks in one line each: they take at most one operand, return nothing, and change neither flags nor stack.
#[cfg(any(test, target_arch = "aarch64", target_arch = "riscv64"))]
macro_rules! short_blocks {
    (
        $table:ident of $architecture:tt;
        $($name:ident($($operand:ident in $register:tt)?): $mode:ident $($text:literal),+;)+
    ) => {
        blocks! {
            $table of $architecture;

            $(unsafe fn $name($($operand: u64)?) {
                $mode: $($text),+;
                $(in($register) $operand,)?
                options(nostack, preserves_flags)
            })+
        }
    };
}

#[cfg(all(test, target_arch = "x86_64"))]
#[macro_use]
#[path = "block/x86_64.rs"]
pub(crate) mod native;

#[cfg(all(test, target_arch = "aarch64"))]
#[macro_use]
#[path = "block/aarch64.rs"]
pub(crate) mod native;

#[cfg(all(test, target_arch = "riscv64"))]
#[macro_use]
#[path = "block/riscv64.rs"]
pub(crate) mod native;

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod tests;

#[cfg(test)]
mod manual;
#[cfg(test)]
pub(crate) mod recorder;

/// Returns pseudo-random words, or their complements: `flip` is 0 or all ones.
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
fn stream(flip: u64) -> impl FnMut() -> u64 {
    let mut random = rand_pcg::Pcg64::new(1, 0);
    move || rand::Rng::next_u64(&mut random) ^ flip
}

/// The declaration of a block, and how to run it.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")),
    allow(dead_code)
)]
pub(crate) struct Block {
    /// The function.
    pub name: &'static str,
    /// Its instructions.
    pub text: &'static [&'static str],
    /// The registers that it reads.
    pub inputs: &'static [&'static str],
    /// The registers that it declares as changed.
    pub changes: &'static [&'static str],
    /// Its options.
    pub options: &'static [&'static str],
    /// Runs the text between two sets of registers. `None` if user mode can't run it.
    pub probe: Option<unsafe extern "C" fn()>,
}
