//! Proposes changes at a site or for a program, and computes the remaining interrupts.
//!
//! This is arithmetic on the recorded events of the site. Gains are computed later.

use rustc_hash::FxHashMap;

use crate::perf::Prices;

use crate::attribute::Attribution;
use crate::attribute::reuse::{BINS, ReuseTimes, bin, within};
use crate::attribute::site::{Place, Site, spread};
use crate::figures::{self, Range, time};
use crate::line::Line;
use crate::scales::SampleScales;

/// The least number of real interrupts (not recorded ones) that can show a pattern.
pub(super) const LEAST: f64 = 50.0;
/// The least number of recorded samples that can represent the others.
///
/// A sample is a gap between interrupts, or a range that was touched again.
const TOLD: u64 = 5;
/// The smallest page size of all supported machines.
const PAGE: f64 = 4096.0;
const GIVES_BACK: [&str; 9] = [
    "brk",
    "fallocate",
    "ftruncate",
    "madvise",
    "mmap",
    "mremap",
    "munmap",
    "process_madvise",
    "shmdt",
];
/// The largest batch to assume: as many ranges as allocators pass to one vectored call.
const BATCH: u64 = 64;

/// Returns the rest of `all` interrupts if these shares disappear.
fn left(all: u64, gone: Range) -> Range {
    let left = |gone: f64| all as f64 * (1.0 - gone);
    Range { least: left(gone.most), most: left(gone.least) }
}

/// The largest scope of unrecorded work that a change may remove.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovableWork {
    Nothing,
    /// Other kernel work for the program: reading a file or copying pages, for example.
    Kernel,
    /// The same, and the work of forked processes that are no longer started.
    Forked,
}

/// A possible change at a site, or for a whole program.
pub(super) struct Proposal {
    pub(super) kind: &'static str,
    pub(super) said: String,
    /// The change in a few words.
    pub(super) brief: Line,
    /// Bounds for the recorded interrupts that the change leaves. They're fractions, because each recorded interrupt
    /// represents many.
    pub(super) left: Range,
    /// The share of the refill time that the change removes, too. The lower bound is a share of the recorded refaults,
    /// the upper bound one of all possible ones.
    pub(super) filled: Range,
    /// The real page faults that the change removes for certain, recorded or not.
    pub(super) certain: f64,
    /// The share of the time in the calls themselves that the change removes, too.
    pub(super) served: Range,
    /// Unrecorded work that the change may remove, too.
    pub(super) around: RemovableWork,
    /// Whether the change keeps the memory. Then other sites needn't flush for memory that was given back.
    pub(super) kept: bool,
}

impl Proposal {
    /// Creates a proposal that removes interrupts and nothing else.
    fn new(kind: &'static str, said: String, brief: Line, left: Range) -> Self {
        Proposal {
            kind,
            said,
            brief,
            left,
            filled: Range::default(),
            certain: 0.0,
            served: Range::default(),
            around: RemovableWork::Nothing,
            kept: false,
        }
    }

    /// Returns the proposal with unrecorded work around the flush.
    fn with(self, around: RemovableWork) -> Self {
        Proposal { around, ..self }
    }
}

/// Creates a short text.
fn few(words: &str) -> Line {
    Line::new("").text(words)
}

/// Creates a short text that names the place in the program.
fn few_at(words: &str, more: &str, at: &str) -> Line {
    few(words).remark(more).text(", at ").name(at)
}

pub(super) fn place(site: &Site) -> String {
    figures::place(site.place.frames.iter().map(|frame| &**frame)).to_owned()
}

/// Facts about a whole program that advice on its sites needs.
#[derive(Clone, Default)]
pub(super) struct Program {
    /// Whether it may have forked.
    forks: bool,
    /// The pages that it filled for each page that it gave back, at most 1.
    ///
    /// We need it because kept memory serves the next allocation, at the same address or another.
    demand: f64,
    /// The page faults in memory that no recorded call gave back, for each byte given back. These calls may have been
    /// made while we recorded nothing.
    unclaimed: f64,
    /// The page faults that certainly filled memory again, whichever call gave it back.
    again: f64,
    /// The most pages that its calls gave back, by the allocator that made them, if any, and by place.
    returned: Vec<(Option<&'static str>, Place, Option<f64>)>,
    /// The length of the recording.
    elapsed_ns: u64,
}

/// Returns the most pages of a site that page faults may fill again, by the kernel's sums. `None` if that isn't known.
///
/// A flush of the whole address space has no number of pages. We assume twice the mean of recorded calls, which is
/// `mean` if none was recorded from here, or if these give nothing back.
fn returned(site: &Site, mean: Option<f64>) -> Option<f64> {
    let call = &*site.place.call;
    // If there are sums, a site without one has never flushed.
    let summed = site.summed.unwrap_or_default();
    let mean = match site.calls {
        calls if calls > 0 && !protects(site) => Some(site.bytes as f64 / PAGE / calls as f64),
        _ => mean,
    };
    match call {
        "copy-on-write" => Some(summed.flushes as f64),
        // Other calls flush as threads move to other CPUs, for example, and give nothing back.
        _ if !site.kernel && !GIVES_BACK.contains(&call) && !protects(site) => Some(0.0),
        _ if summed.full == 0 => Some(summed.pages as f64),
        _ => mean.map(|mean| summed.pages as f64 + 2.0 * mean * summed.full as f64),
    }
}

/// Returns whether a site's flushes change the protection of memory.
pub(super) fn protects(site: &Site) -> bool {
    ["mprotect", "pkey_mprotect"].contains(&&*site.place.call)
}

/// Returns the allocator that gave a site's memory back by itself.
fn keeper(site: &Site) -> Option<&'static str> {
    super::knobs::keeper(site.place.frames.iter().map(|frame| &**frame))
}

impl Program {
    /// Returns whether so many page faults filled memory of this site that it's worth advice.
    pub(super) fn is_much_filled(&self, site: &Site) -> bool {
        self.refilled_for_certain(site) >= 10.0 * LEAST
    }

    pub(super) fn of(from: &Attribution, scales: SampleScales, name: &str) -> Program {
        let gives = |site: &&Site| {
            let call = &*site.place.call;
            &*site.place.program == name && GIVES_BACK.contains(&call)
        };
        let givers = || from.sites.iter().filter(gives);
        let given = givers().map(|site| site.bytes).sum::<u64>().max(1) as f64;
        let known = from.programs.iter().find(|program| &*program.name == name);
        let faults = known.map_or(0, |program| program.faults);
        let refaults: u64 = givers().map(|site| site.refaults).sum();
        // Ranges may have been empty when they were given back. If not, their pages were filled before, or are missing
        // from the program's memory now.
        let filled = filled(from, scales, name);
        let kept = from
            .ran(name)
            .filter(|_| filled > 0.0)
            .map_or(0.0, |ran| filled / (filled + ran.shrank_pages as f64));
        // The kernel reclaims or moves pages of any program. It copies or forks only those of the running one.
        let own = |site: &Site| ["copy-on-write", "fork"].contains(&&*site.place.call);
        let may = |site: &&Site| {
            [name, ""].contains(&&*site.place.program) || (site.kernel && !own(site))
        };
        let mut calls: FxHashMap<&str, (f64, f64)> = FxHashMap::default();
        for site in givers() {
            // The empty name is for all calls.
            for call in ["", &site.place.call] {
                let (pages, count) = calls.entry(call).or_default();
                *pages += site.bytes as f64 / PAGE;
                *count += site.calls as f64;
            }
        }
        let mean = |site: &Site| {
            let known = |call: &str| calls.get(call).filter(|(_, count)| *count > 0.0);
            let of = known(&site.place.call).or_else(|| known(""));
            of.map(|(pages, count)| pages / count)
        };
        let returned = |site: &Site| (keeper(site), site.place.clone(), returned(site, mean(site)));
        Program {
            forks: forks(from, name),
            again: filled_again(from, scales, name),
            returned: from.sites.iter().filter(may).map(returned).collect(),
            elapsed_ns: from.elapsed_ns(),
            demand: (faults as f64 * PAGE / given).min(1.0).max(kept),
            unclaimed: faults.saturating_sub(refaults) as f64 / given,
        }
    }

    /// Returns the page faults that certainly filled memory which this site gave back, because others gave back too
    /// little for them.
    ///
    /// A setting keeps the memory of all sites of an allocator, so we split the faults among these.
    fn refilled_for_certain(&self, site: &Site) -> f64 {
        let keeper = keeper(site);
        let (mut own, mut all, mut others) = (0.0, 0.0, 0.0);
        for (by, place, pages) in &self.returned {
            let is_own = *place == site.place;
            match (*pages, is_own || (keeper.is_some() && *by == keeper)) {
                (Some(pages), false) => others += pages,
                // These may have given back all of it.
                (None, false) => return 0.0,
                (pages, true) => {
                    let pages = pages.unwrap_or(1.0);
                    all += pages;
                    own += if is_own { pages } else { 0.0 };
                }
            }
        }
        (self.again - others).max(0.0) * own / f64::max(all, 1.0)
    }

    /// Estimates the page faults that filled memory which this site gave back.
    ///
    /// These are the recorded ones and the possible ones, but together no more than there were pages.
    pub(super) fn refilled(&self, site: &Site) -> f64 {
        let (seen, pages) = (site.refaults as f64, site.bytes as f64 / PAGE);
        let most = (seen + self.unclaimed * site.bytes as f64).min(pages);
        most.max(seen)
    }
}

/// Returns the page faults of a program.
fn filled(from: &Attribution, scales: SampleScales, name: &str) -> f64 {
    let known = from.programs.iter().find(|program| &*program.name == name);
    known.map_or(0.0, |program| program.faults as f64 * scales.faults(from, name))
}

fn forks(from: &Attribution, name: &str) -> bool {
    let known = from.programs.iter().find(|program| &*program.name == name);
    !from.begins_known || known.is_some_and(|program| program.forked)
}

/// Returns the page faults of a program that certainly filled memory again, because it never held so many pages.
pub(crate) fn filled_again(from: &Attribution, scales: SampleScales, name: &str) -> f64 {
    let is_summed = from.sites.iter().any(|site| site.summed.is_some());
    // All its processes together held no more pages than this.
    let held = from.ran(name).filter(|ran| !forks(from, name) && ran.peak_pages > 0);
    let once = held.filter(|_| is_summed).map(|ran| (ran.processes.max(1) * ran.peak_pages) as f64);
    once.map_or(0.0, |once| (filled(from, scales, name) - once).max(0.0))
}

pub(super) fn changes(site: &Site, prices: Option<&Prices>, program: &Program) -> Vec<Proposal> {
    let (call, at, all) = (&*site.place.call, place(site), site.interrupts as f64);
    let one = |kind, said, brief, least, most| {
        vec![Proposal::new(kind, said, brief, Range { least, most })]
    };
    match call {
        "munmap" if site.files > site.memory => vec![read(&at)],
        "madvise" | "process_madvise" | "munmap" => {
            let all = [
                merged(site, call, &at),
                kept(site, call, &at, program),
                freed(site, &at),
                huge(site, &at, prices),
            ];
            all.into_iter().flatten().collect()
        }
        "brk" | "mmap" | "mremap" | "fallocate" | "ftruncate" => {
            kept(site, call, &at, program).into_iter().collect()
        }
        "mprotect" | "pkey_mprotect" => {
            let left = all - site.followed.min(site.interrupts) as f64 / 2.0;
            let what = "instead of mprotect, map the pages a second time as writable, or use memory protection keys";
            let brief = few_at("map it twice, or use protection keys", " (no mprotect)", &at);
            one("protect", format!("At {at}, {what}"), brief, 0.0, left)
        }
        // Without a fork, the kernel copies pages for other reasons: the first write to a privately mapped file, or to
        // a page of zeros.
        "copy-on-write" if !program.forks => Vec::new(),
        "copy-on-write" | "fork" => {
            let what = "write less between fork and the child's exit, fork from a small process, or fork less often with more \
                        work for each child";
            let said = format!("To reduce {call} in {}, {what}", site.place.program);
            let left = Range { least: 0.0, most: all / 2.0 };
            let brief = few("fork less often, or write less between fork and the child's exit");
            vec![Proposal::new("fork", said, brief, left).with(RemovableWork::Forked)]
        }
        "NUMA balancing" => {
            let said =
                format!("Bind {} to a node, or set kernel.numa_balancing=0", site.place.program);
            let brief = few("bind ")
                .name(&site.place.program)
                .text(" to a node, or set kernel.numa_balancing=0");
            one("numa", said, brief, 0.0, 0.0)
        }
        "KSM" => {
            let said = "Stop KSM (echo 2 > /sys/kernel/mm/ksm/run), or exempt the process";
            let brief = few("stop KSM (2 in /sys/kernel/mm/ksm/run), or exempt the process");
            one("ksm", said.into(), brief, 0.0, 0.0)
        }
        "compaction" | "migration" | "huge pages (khugepaged)" => {
            let said = format!(
                "To reduce {call}, set transparent_hugepage/defrag to defer or madvise, and vm.compaction_proactiveness=0"
            );
            let brief = few("set transparent_hugepage/defrag=defer, vm.compaction_proactiveness=0");
            one("compaction", said, brief, 0.0, all / 2.0)
        }
        call if call.starts_with("reclaim") => {
            // Today's kernels need at least one flush for each batch of clean pages.
            let batched = site.requests.div_ceil(32).min(site.interrupts);
            let limit = format!(
                "To reduce {call}, raise the memory limit, or read files with pread into a cache of your own instead of mapping them"
            );
            let kernel = format!(
                "Use a kernel that defers flushes of {call} until the memory is reused (lazy unmap), or that batches them"
            );
            let more = few("raise the memory limit, or read files (pread) instead of mapping");
            let other = few("use a kernel that defers such flushes (lazy unmap) or batches them");
            let left = Range { least: 0.0, most: batched as f64 };
            vec![
                Proposal::new("reclaim", limit, more, left).with(RemovableWork::Kernel),
                Proposal::new("kernel", kernel, other, left),
            ]
        }
        _ => Vec::new(),
    }
}

/// Proposes to run a program elsewhere, given the number of CPUs that it keeps busy.
///
/// A flush interrupts only CPUs that ran the same process, so fewer CPUs mean fewer interrupts. If all CPUs were busy,
/// the program may want more CPUs than it got. Then we don't pin it.
pub(super) fn placed(from: &Attribution, whole: &Site, busy: f64) -> Vec<Proposal> {
    /// The highest load of CPUs to which a program is pinned.
    const FULL: f64 = 0.8;
    /// The busy share from which CPUs have no room for more.
    const NO_ROOM: f64 = 0.9;
    let name = &whole.place.program;
    let targets = whole.interrupts as f64 / whole.remote.max(1) as f64;
    let cpus = (busy / FULL).ceil().max(1.0);
    let is_full = from.busy().is_some_and(|part| part > NO_ROOM);
    if !is_full && cpus - 1.0 < targets * 0.9 {
        let on = if cpus == 1.0 { "one CPU".into() } else { format!("{cpus} CPUs") };
        let said = format!(
            "Pin {name} to {on} (taskset, a cpuset): it keeps {busy:.1} CPUs busy, and each flush interrupts {targets:.1} other CPUs"
        );
        let brief = few("pin ").name(name).text(format!(" to {on} (taskset, a cpuset)"));
        let brief = brief.remark(format!(": {busy:.1} are busy"));
        let gone = 1.0 - (cpus - 1.0) / targets;
        let gone = Range { least: gone, most: gone };
        let left = left(whole.interrupts, gone);
        return vec![Proposal::new("pin", said, brief, left)];
    }
    let own = |(&(sender, target), count): (&(usize, usize), &u64)| {
        let is = |program: usize| from.programs[program].name == *name;
        (is(sender) && is(target)).then_some(*count)
    };
    let own: u64 = from.matrix.iter().filter_map(own).sum();
    // We know the target only of interrupts that were recorded whole.
    if whole.whole == 0 || own * 2 < whole.whole {
        return Vec::new();
    }
    let said = format!(
        "Split {name} into one process for each CPU, so that no other CPU has its translations (arenas bound to CPUs do not \
         help, because Linux interrupts every CPU that runs the process)"
    );
    let gone = Range { least: (own as f64 / whole.whole as f64).min(1.0), most: 1.0 };
    vec![Proposal::new(
        "shard",
        said,
        few("split ").name(name).text(" into one process for each CPU"),
        left(whole.interrupts, gone),
    )]
}

/// Proposes one call in place of several that follow each other. For example, one `munmap` of a large range instead of
/// ten of its parts.
fn merged(site: &Site, call: &str, at: &str) -> Option<Proposal> {
    // Choose the shortest wait that catches nine tenths of the gaps below 1 ms.
    let last = bin(999_999);
    let total = within(&site.gaps, last);
    if total * 4 < site.interrupts || site.interrupts < TOLD {
        return None;
    }
    let chosen = (0..=last).find(|&bin| within(&site.gaps, bin) * 10 >= total * 9)?;
    let merged = within(&site.gaps, chosen);
    // Memory at unknown addresses may all be touched in between.
    let unplaced = (site.unplaced as f64 / site.calls.max(1) as f64 * merged as f64).ceil() as u64;
    let hasty = within(&site.hasty, chosen).max(unplaced).min(merged);
    let left = |merged: u64| (site.interrupts - merged + merged.div_ceil(BATCH)) as f64;
    let (how, one) = match call {
        _ if site.followed > 0 && site.adjacent * 2 >= site.followed => {
            ("one call over the whole span", "one over the whole span")
        }
        "munmap" => (
            "one call over adjacent memory, or let one thread collect ranges and unmap them together",
            "one, or collect them",
        ),
        _ => (
            "one process_madvise with a list of ranges (Linux 6.16 or later flushes once for all of them)",
            "one process_madvise",
        ),
    };
    let brief = few("merge ").name(call).text(format!(" calls into {one}")).text(", at ").name(at);
    let text = format!(
        "At {at}, merge {call} calls that follow each other within {} into {how}",
        time(BINS[chosen] as f64)
    );
    Some(Proposal::new(
        "merge",
        text,
        brief,
        Range { least: left(merged), most: left(merged - hasty) },
    ))
}

/// Returns the bin of [`BINS`] within which most memory is touched again, and that share.
///
/// Memory that we couldn't follow for so long counts only in the upper bound. Returns `None` if hardly any memory is
/// touched again.
fn touched(site: &Site) -> Option<(usize, Range)> {
    let within = site.reuse.within();
    let last = BINS.len() - 2;
    if within[last] < 0.2 || site.reuse.known() < TOLD {
        return None;
    }
    let chosen = (0..=last).find(|&bin| within[bin] >= 0.95 * within[last])?;
    let missed = 1.0 - site.whole as f64 / site.estimate().max(1.0);
    let share = share_touched(&site.reuse, missed.max(0.0), chosen);
    Some((chosen, share))
}

/// Returns whether memory was touched again, but too little was observed to say how soon.
fn is_filled_some_time(site: &Site, certain: f64) -> bool {
    let is_filled = site.refaults > 0 && site.reuse.known() < TOLD;
    is_filled || certain > 0.0
}

/// Returns bounds for the share touched again.
///
/// The lower bound is for the chosen time, and the upper bound for ten times as long.
///
/// Each bound has two standard deviations of slack, both for a plain share and for the estimate from followed ranges.
/// `missed` is the share of all ranges that wasn't recorded.
fn share_touched(reuse: &ReuseTimes, missed: f64, chosen: usize) -> Range {
    const DEVIATIONS: f64 = 2.0;
    let within = reuse.within();
    let followed = reuse.followed(chosen + 1);
    // Memory that we couldn't follow may all be touched.
    let touched = |share: f64| 1.0 - (1.0 - share) * followed;
    let (least, most) = (within[chosen], touched(within[chosen + 1]));
    let known = reuse.known() as f64;
    let spread = |share: f64| DEVIATIONS * (share * (1.0 - share) / known).sqrt();
    let between = reuse.between(DEVIATIONS, missed);
    Range {
        least: (least - spread(least)).min(between[chosen].0).max(0.0),
        most: (most + spread(most)).max(touched(between[chosen + 1].1)).min(1.0),
    }
}

/// Returns the share of refaults within this time after the memory was given back, of those whose time is known.
fn refilled_within(site: &Site, last: usize) -> f64 {
    let known: u64 = site.refills.iter().sum();
    within(&site.refills, last) as f64 / known.max(1) as f64
}

/// Returns the share of refaults that kept memory saves.
///
/// Each recorded refault within the chosen time is saved for certain. Refaults of one range come together, so few
/// ranges don't show how many there were while nothing was recorded.
fn refilled_soon(site: &Site, chosen: usize, share: Range) -> Range {
    let soon = refilled_within(site, chosen);
    let ranges = site.refilled_ranges();
    let all = ranges * site.weight.max(1.0);
    let least = soon * (1.0 - spread(ranges as u64, all)).max(0.0);
    Range { least: least.max(share.least), most: share.most.max(soon) }
}

/// Proposes to keep memory that the program soon needs again.
fn kept(site: &Site, call: &str, at: &str, program: &Program) -> Option<Proposal> {
    // Allocators give kept memory back little by little. Most reuse takes up to `chosen`. If memory is kept for ten
    // times as long, it's still there when the program needs it.
    let certain = program.refilled_for_certain(site);
    let known = touched(site);
    if known.is_none() && !is_filled_some_time(site, certain) {
        return None;
    }
    let any = Range { least: 0.0, most: 1.0 };
    let (chosen, mut share) = known.unwrap_or((BINS.len() - 2, any));
    // Most recorded refaults come within the time for which memory is kept.
    let last = BINS.len() - 1;
    let soon = |kept| refilled_within(site, kept);
    let late = (0..last).find(|&kept| soon(kept) >= 0.9).unwrap_or(last);
    let chosen = match site.refills.iter().sum::<u64>() {
        0 => chosen,
        _ => chosen.max(late.saturating_sub(1)),
    };
    share.most = share.most.max(program.demand);
    let keeps = match known {
        Some(_) => format!("for {}", time(BINS[chosen + 1] as f64)),
        None => "longer".to_owned(),
    };
    // A thread that ends gives its own stack back. Then there are only frames of the C library below its start.
    let mut innermost = site.place.frames.iter().take(3);
    let is_stack = innermost.any(|frame| frame.starts_with("start_thread"));
    let (kind, what, brief) = match call {
        _ if is_stack => (
            "pool",
            "keep threads in a pool, because a thread that ends gives its stack back".to_owned(),
            few("keep threads in a pool").remark(" instead of ending them"),
        ),
        "munmap" => (
            "cache",
            format!(
                "keep unmapped memory {keeps} for reuse (a cache of mappings, a larger mmap threshold)"
            ),
            few_at(&format!("keep unmapped memory {keeps}"), " for reuse", at),
        ),
        "brk" => (
            "keep",
            format!(
                "keep the top of the heap {keeps} (a larger trim threshold: MALLOC_TRIM_THRESHOLD_ of glibc)"
            ),
            few_at(&format!("keep the top of the heap {keeps}"), " (trim threshold)", at),
        ),
        "mmap" => (
            "keep",
            format!(
                "keep memory {keeps} before mapping over it (a fixed heap size, a later uncommit)"
            ),
            few_at(
                &format!("keep memory {keeps}, and do not map over it"),
                " (uncommit later)",
                at,
            ),
        ),
        // The memory that was filled again had other addresses.
        _ if known.is_none() && site.refaults + site.unplaced == 0 => (
            "keep",
            "reuse memory instead of giving it back and filling new memory".to_owned(),
            few_at("reuse memory", " instead of giving it back", at),
        ),
        _ => (
            "keep",
            format!("keep memory {keeps} before giving it back (a larger decay)"),
            few_at(&format!("keep memory {keeps} before giving it back"), " (decay)", at),
        ),
    };
    Some(Proposal {
        // Kept memory needs no refill, and no call to give it back.
        filled: refilled_soon(site, chosen, share),
        certain: match site.refaults {
            // They came within the recording.
            0 if program.elapsed_ns > BINS[chosen + 1] => 0.0,
            0 => certain,
            _ => certain * soon(chosen + 1),
        },
        served: share,
        kept: true,
        ..Proposal::new(kind, format!("At {at}, {what}"), brief, left(site.interrupts, share))
    })
}

/// Proposes to read files instead of mapping them.
///
/// This removes the unmapping and the page faults. But copying may cost as much, so the lower bound is 0.
fn read(at: &str) -> Proposal {
    let all = Range { least: 0.0, most: 1.0 };
    let said = format!(
        "At {at}, read these files into a reused buffer (pread) instead of mapping and unmapping each"
    );
    let brief = few_at("read these files (pread) instead of mapping them", "", at);
    let none = Range { least: 0.0, most: 0.0 };
    Proposal { filled: all, served: all, ..Proposal::new("read", said, brief, none) }
}

/// Proposes to let the kernel take memory only when memory is short.
///
/// The flushes remain, but memory that is touched earlier needs no refill.
fn freed(site: &Site, at: &str) -> Option<Proposal> {
    if &*site.place.call != "madvise" || site.dontneed * 2 < site.calls || site.calls == 0 {
        return None;
    }
    let (_, share) = touched(site)?;
    let said = format!(
        "At {at}, use MADV_FREE instead of MADV_DONTNEED, so that pages touched again before memory runs short need no refill"
    );
    let all = site.interrupts as f64;
    Some(Proposal {
        filled: share,
        ..Proposal::new(
            "free",
            said,
            few_at("use MADV_FREE instead of MADV_DONTNEED", "", at),
            Range { least: all, most: all },
        )
    })
}

/// Proposes huge pages. The zeroing remains, but one fault replaces 512.
fn huge(site: &Site, at: &str, prices: Option<&Prices>) -> Option<Proposal> {
    const HUGE: u64 = 2 << 20;
    let Prices { fault_ns, zero_ns, .. } = prices?;
    if site.calls == 0 || site.bytes / site.calls < HUGE || site.refaults < 512 {
        return None;
    }
    let said = format!(
        "At {at}, use huge pages for this memory (madvise with MADV_HUGEPAGE): one page fault replaces 512"
    );
    let all = site.interrupts as f64;
    let trap = (1.0 - zero_ns.least / fault_ns.least).max(0.0);
    Some(Proposal {
        filled: Range {
            // The kernel may find no huge page.
            least: 0.0,
            most: trap * 511.0 / 512.0,
        },
        ..Proposal::new(
            "huge",
            said,
            few_at("use huge pages for this memory", " (MADV_HUGEPAGE)", at),
            Range { least: all, most: all },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::reuse::tests::seen;
    use crate::perf::{CpuTime, Flushes, Item};
    use crate::stack::Stacks;

    #[test]
    fn memory_that_nobody_saw_filled_again_may_have_been_filled_all_the_same() {
        let place = Place { program: "server".into(), call: "madvise".into(), frames: [].into() };
        let mut site = Site::new(place, &Stacks::default().tell(&[].into()), None);
        site.bytes = 100 << 12;
        // Returns the refaults if `faults` page faults for each page given back may have filled it.
        let refilled = |faults: f64, site: &Site| {
            let program = Program { unclaimed: faults / PAGE, ..Program::default() };
            program.refilled(site)
        };
        assert_eq!(refilled(0.0, &site), 0.0);
        assert_eq!(refilled(0.5, &site), 50.0);
        assert_eq!(refilled(2.0, &site), 100.0);
        site.refaults = 20;
        assert_eq!(refilled(0.5, &site), 70.0);
        site.refaults = 300;
        assert_eq!(refilled(0.5, &site), 300.0);
    }

    #[test]
    fn faults_beyond_memory_are_of_the_only_call_that_gave_enough_back() {
        let site = |call: &str, pages: u64, full: u64| {
            let summed = Flushes { flushes: full + 1, full, pages, ..Flushes::default() };
            let place = Place { program: "server".into(), call: call.into(), frames: [].into() };
            Site { place, summed: Some(summed), ..Site::default() }
        };
        let certain = |others: &[Site], processes: u64| {
            let mut from = Attribution::new();
            from.begins_known = true;
            from.item(
                Item::CpuTime(CpuTime {
                    comm: "server".into(),
                    faults: 10_000,
                    processes,
                    peak_pages: 1_000,
                    ..CpuTime::default()
                }),
                &mut (),
            );
            from.programs.push(crate::attribute::Program {
                name: "server".into(),
                faults: 100,
                ..Default::default()
            });
            let own = site("brk", 0, 50);
            from.sites = others.iter().chain([&own]).cloned().collect();
            let program = Program::of(&from, SampleScales::of(&from), "server");
            program.refilled_for_certain(&own)
        };
        // All but the first fault of each page. Other calls may explain as many as they gave back.
        assert_eq!(certain(&[], 1), 9_000.0);
        assert_eq!(certain(&[], 3), 7_000.0);
        assert_eq!(certain(&[site("madvise", 2_000, 0)], 1), 7_000.0);
        assert_eq!(certain(&[site("copy-on-write", 0, 499)], 1), 8_500.0);
        assert_eq!(certain(&[site("futex", 0, 7)], 1), 9_000.0);
        // Sites of one allocator share what only these can explain, by what they gave back.
        let systrim = Site {
            place: Place {
                frames: ["brk".into(), "systrim".into()].into(),
                ..site("brk", 0, 0).place
            },
            ..site("brk", 6_000, 0)
        };
        let trimmed = Site {
            place: Place {
                frames: ["brk".into(), "heap_trim".into()].into(),
                ..systrim.place.clone()
            },
            ..site("brk", 3_000, 0)
        };
        let both = [systrim, trimmed];
        let program = Program {
            again: 9_000.0,
            returned: both
                .iter()
                .map(|site| (keeper(site), site.place.clone(), returned(site, None)))
                .collect(),
            ..Program::default()
        };
        let each = both.each_ref().map(|site| program.refilled_for_certain(site));
        assert_eq!(each, [6_000.0, 3_000.0]);
        // Nobody knows how much these gave back.
        assert_eq!(certain(&[site("munmap", 0, 1)], 1), 0.0);
        assert_eq!(certain(&[site("mprotect", 0, 1)], 1), 0.0);
    }

    #[test]
    fn each_recorded_refault_is_saved_though_few_ranges_are_touched_again() {
        let mut site = Site::default();
        (site.refaults, site.refills[4], site.weight) = (1000, 1000, 4.0);
        // Each of 100 ranges has ten pages.
        site.refaults_squared = 100 * 10 * 10;
        (0..100).for_each(|_| site.reuse.touched(50_000_000, 0));
        (0..900).for_each(|_| site.reuse.left(50_000_000, 0));
        let seldom = Range { least: 0.05, most: 0.6 };
        let many = refilled_soon(&site, 4, seldom);
        assert!(many.least > 0.8 && many.most == 1.0, "{many:?}");
        // Refaults that came later than the chosen time don't count.
        assert_eq!(refilled_soon(&site, 3, seldom).least, 0.05);
        // Two ranges may be an exception.
        site.refaults_squared = 2 * 500 * 500;
        assert_eq!(refilled_soon(&site, 4, seldom).least, 0.05);
    }

    /// Returns the bounds for these ranges, each observed `times` times.
    fn said(ranges: &[(bool, usize, u64)], times: u64, chosen: usize) -> Range {
        let reuse = seen(ranges, times);
        share_touched(&reuse, 1.0, chosen)
    }

    #[test]
    fn that_all_of_a_few_were_touched_again_does_not_say_that_all_are() {
        let all = |times| said(&[(true, 2, 0)], times, 2);
        assert!((all(20).least - 0.85).abs() < 1e-9 && (all(3000).least - 0.999).abs() < 1e-9);
        assert_eq!((all(3).least, all(3).most), (0.0, 1.0));
        // Few observations don't prove that no memory is touched, even if most of it wasn't.
        let half = said(&[(true, 2, 0), (false, 7, 0)], 6, 2);
        assert!(half.least < 0.23 && half.most > 0.77, "{half:?}");
        // A range that interrupted 60 CPUs is one observation, even beside 100 that interrupted none.
        let mut ranges = vec![(false, 7, 0); 100];
        ranges.push((true, 2, 60));
        let one = said(&ranges, 1, 2);
        assert!(one.least < 0.15 && one.most > 0.7, "{one:?}");
    }
}
