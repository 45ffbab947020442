//! What is timed, and how: operations of one CPU in loops, samples, and what of them counts.

use crate::{Threads, pulse};
use quell::{
    AddressSpace, AllRules, Batch, Engine, Features, Frame, Hardware, Outcome, Page, PageRange,
    Purpose, Rules, Stamp, Tagging,
};
use std::hint::black_box;
use std::time::Instant;

pub(super) type Machine = Threads<false>;
pub(super) type Gather<'a, H = Machine, R = AllRules> =
    Batch<'a, 'a, H, &'a AddressSpace<H>, Frame, R>;

/// Nanoseconds and cycles of one operation.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Cost {
    /// Wall-clock time.
    pub ns: f64,
    /// Ticks of the time-stamp counter; 0 where there is none to read.
    pub cycles: f64,
}

/// One operation beside what it replaces.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub name: &'static str,
    /// Its cost: the median of the [quiet](pulse::quiet) samples.
    pub cost: Cost,
    /// The first and the third quartile of all samples, in nanoseconds.
    pub quartiles: (f64, f64),
    /// What it is compared with.
    pub baseline_name: &'static str,
    /// The cost of that, likewise.
    pub baseline: Cost,
    /// What it must stay below, in nanoseconds, if that is promised.
    pub limit_ns: Option<f64>,
}

#[cfg(target_arch = "x86_64")]
pub(super) fn cycles() -> u64 {
    // SAFETY: RDTSC is present on every x86-64 processor and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
pub(super) fn cycles() -> u64 {
    let ticks: u64;
    // SAFETY: user code may read the virtual counter on every system that runs std.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn cycles() -> u64 {
    0
}

pub(super) fn timed(operations: usize, body: impl FnOnce()) -> Cost {
    let (ticks, began) = (cycles(), Instant::now());
    body();
    let (ns, ticks) = (began.elapsed().as_nanos(), cycles().wrapping_sub(ticks));
    Cost {
        ns: ns as f64 / operations as f64,
        cycles: ticks as f64 / operations as f64,
    }
}

/// What one operation took, again and again, each time with the slower of the pulses around it.
#[derive(Clone, Default)]
pub(super) struct Samples(pub(super) Vec<(f64, Cost)>);

impl Samples {
    pub(super) fn pulses(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|&(pulse, _)| pulse)
    }

    /// The median of the quiet ones.
    pub(super) fn cost(&self, longest_own: f64) -> Cost {
        let quiet = pulse::quiet(self.0.iter().copied(), longest_own);
        let all = || self.0.iter().map(|&(_, cost)| cost).collect();
        quantile(quiet.map_or_else(all, |quiet| quiet.values), 0.5)
    }

    /// The first and the third quartile of all, in nanoseconds.
    pub(super) fn quartiles(&self) -> (f64, f64) {
        let all: Vec<_> = self.0.iter().map(|&(_, cost)| cost).collect();
        (quantile(all.clone(), 0.25).ns, quantile(all, 0.75).ns)
    }
}

/// How long a pulse may be on a core of one's own, by all that was felt.
pub(super) fn longest_own<'a>(samples: impl IntoIterator<Item = &'a Samples>) -> f64 {
    pulse::longest_own(samples.into_iter().flat_map(Samples::pulses)).unwrap_or(f64::MAX)
}

pub(super) fn quantile(mut costs: Vec<Cost>, part: f64) -> Cost {
    costs.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let place = ((costs.len().max(1) - 1) as f64 * part).round();
    costs.get(place as usize).copied().unwrap_or_default()
}

pub(super) const TAGGED: Features = Features {
    tagging: Tagging::PerCpu { count: 8 },
    broadcast: false,
    full_above: 33,
};

/// Operations in each timed loop.
pub(super) const LOOP: usize = 512;

/// Why an engine can be made here.
pub(super) const HOLDS: &str = "the engine runs on such machines";

pub(super) fn page(index: usize) -> PageRange {
    PageRange::base(Page(index as u64), 1)
}

/// Unmaps `pages` of `space`, one batch.
#[inline]
pub(super) fn unmap<'a, H: Hardware, R: Rules>(
    engine: &'a Engine<'a, H, R>,
    space: &'a AddressSpace<H>,
    pages: impl Iterator<Item = usize>,
) {
    let mut gather: Gather<'a, H, R> = engine.batch(Purpose::Call);
    for index in pages {
        gather.unmapped(space, page(index), Frame(index as u64));
    }
    for frame in gather.finish() {
        black_box(frame);
    }
}

/// Takes a debt about a page of `space` and pays it; returns its stamp.
pub(super) fn paid_debt<H: Hardware, R: Rules>(
    engine: &Engine<'_, H, R>,
    space: &AddressSpace<H>,
) -> Stamp {
    let stamp = {
        let mut gather: Batch<'_, '_, H, &AddressSpace<H>, Frame, R> = engine.batch(Purpose::Lazy);
        gather.unmapped(space, page(0), Frame(0));
        match gather.finish_owed() {
            Outcome::Owed(owed) => owed.stamp(),
            Outcome::Flushed(_) => unreachable!("an empty ledger has room"),
        }
    };
    engine.pay_all();
    stamp
}

/// Switches [`LOOP`] times between two spaces.
pub(super) fn ping_pong<H: Hardware, R: Rules>(
    engine: &Engine<'_, H, R>,
    spaces: &[AddressSpace<H>; 2],
) {
    for _ in 0..LOOP / 2 {
        engine.switch_to(Some(&spaces[1]), &spaces[0]);
        engine.switch_to(Some(&spaces[0]), &spaces[1]);
    }
}
