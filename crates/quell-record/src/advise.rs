//! What would remove interrupts, and how many.
//!
//! Each piece of advice is arithmetic on the recorded stream, not a guess from a list: how many interrupts came so soon
//! after another of the same thread from the same place that one flush would have served both; how many
//! belonged to memory that was touched again so soon that keeping it would have cost little. Both have a range:
//! a change that is felt in between (the memory was touched before the batch would have been flushed) counts in one
//! end and not in the other. What an interrupt costs is what it cost here. Advice that promises less than
//! [`NOISE`] of a program's time is not given.
//!
//! The recording does not tell whether the program's author can make the change, and what else it changes. The next
//! bottleneck that the recording shows is named beside it.

use serde::Serialize;

use crate::attribute::site::{BINS, Site, bin};
use crate::attribute::{Attribution, within};
use crate::figures::{self, Range, count, percents, time};

/// The share of a program's CPU time below which nothing is advised.
pub const NOISE: f64 = 0.005;
/// The share of all interrupts below which nothing is advised where CPU time is not known.
const FEW: f64 = 0.05;
/// Fewer interrupts than this are no pattern.
const LEAST: u64 = 50;
/// The largest batch that is supposed: what allocators pass to one vectored call.
const BATCH: u64 = 64;

/// A change, and what it would bring.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// In one sentence, with figures.
    pub text: String,
    /// The program.
    pub program: String,
    /// The call.
    pub call: String,
    /// The place.
    pub place: String,
    /// The kind of change: `merge`, `keep`, `cache`, `reclaim`, `numa`, `ksm`, `compaction`, `fork`, `protect`, `kernel`.
    pub kind: &'static str,
    /// How many interrupts the site has now.
    pub interrupts: u64,
    /// How many are left, at least and at most.
    pub left: (u64, u64),
    /// What is won of the program's CPU time, if that is known.
    pub share: Option<Range>,
    /// What limits next.
    pub next: Option<String>,
}

/// What a change leaves of a site's interrupts: at least, at most.
struct Left {
    least: u64,
    most: u64,
}

/// Advice for these sites, that which promises most first.
pub fn advise(
    from: &Attribution,
    sites: &[&Site],
    scale: f64,
    cpu_ns: &dyn Fn(&str) -> Option<f64>,
) -> Vec<Advice> {
    let all: u64 = from.sites.iter().map(|site| site.interrupts).sum();
    let mut advice: Vec<Advice> = Vec::new();
    for site in &subjects(sites) {
        if site.interrupts < LEAST {
            continue;
        }
        let cpu = cpu_ns(&site.place.program);
        for (kind, said, left) in changes(site) {
            let gone = Range {
                least: site.interrupts.saturating_sub(left.most) as f64,
                most: site.interrupts.saturating_sub(left.least) as f64,
            };
            let share = cpu.map(|cpu| won(site, gone, kind, scale, cpu));
            let matters = match share {
                Some(share) => share.most >= NOISE && gone.most >= LEAST as f64 / 2.0,
                None => gone.most >= FEW * all as f64,
            };
            if !matters {
                continue;
            }
            let scaled = |count: u64| (count as f64 * scale).round() as u64;
            let (now, least, most) = (
                scaled(site.interrupts),
                scaled(left.least),
                scaled(left.most),
            );
            let counts = if least == most {
                count(most)
            } else {
                format!("{} to {}", count(least), count(most))
            };
            let gain = match share {
                Some(share) => format!(
                    ", {} of the CPU time of {}",
                    percents(share),
                    site.place.program
                ),
                None => String::new(),
            };
            advice.push(Advice {
                text: format!("{said}: {} interrupts become {counts}{gain}.", count(now)),
                program: site.place.program.to_string(),
                call: site.place.call.to_string(),
                place: place(site),
                kind,
                interrupts: now,
                left: (least, most),
                share,
                next: next(site, scale),
            });
        }
    }
    let worth = |advice: &Advice| advice.share.map_or(0.0, |share| share.least + share.most);
    advice.sort_by(|a, b| {
        let fewer = |advice: &Advice| advice.interrupts - advice.left.0.min(advice.interrupts);
        worth(b).total_cmp(&worth(a)).then(fewer(b).cmp(&fewer(a)))
    });
    advice
}

/// What is advised on: each site; but what the kernel does for one reason to one program is one, because one change removes it
/// wherever in the program it happens.
fn subjects(sites: &[&Site]) -> Vec<Site> {
    let mut subjects: Vec<Site> = Vec::new();
    for &site in sites {
        let alike = |known: &&mut Site| {
            known.kernel
                && known.place.program == site.place.program
                && known.place.call == site.place.call
        };
        match subjects.iter_mut().find(alike).filter(|_| site.kernel) {
            Some(known) => known.add(site),
            None => subjects.push(site.clone()),
        }
    }
    subjects
}

fn place(site: &Site) -> String {
    figures::place(site.place.frames.iter().map(|frame| &**frame)).to_owned()
}

/// The time that these interrupts cost, as a share of the program's.
fn won(site: &Site, gone: Range, kind: &str, scale: f64, cpu: f64) -> Range {
    let each = 1.0 / site.interrupts.max(1) as f64;
    let cost = Range {
        least: (site.waited.least + site.stolen.least) as f64 * each,
        most: (site.waited.most + site.stolen.most) as f64 * each,
    };
    let mut won = Range {
        least: gone.least * cost.least,
        most: gone.most * cost.most,
    };
    // Memory that is kept is not filled again, and not given back.
    if kind == "keep" || kind == "cache" {
        let share = gone.times(each);
        let refaults = site.refill_ns().unwrap_or(0.0);
        let calls = (site.call_ns.saturating_sub(site.waited.most)) as f64;
        won = won.plus(Range {
            least: share.least * refaults,
            most: share.most * (refaults + calls),
        });
    }
    won.times(scale).of_all(cpu)
}

/// The changes that could be made at a site.
fn changes(site: &Site) -> Vec<(&'static str, String, Left)> {
    let mut found = Vec::new();
    let (call, at) = (&*site.place.call, place(site));
    match call {
        "madvise" | "process_madvise" | "munmap" => {
            found.extend(merged(site, call, &at));
            found.extend(kept(site, call, &at));
        }
        "mprotect" | "pkey_mprotect" => {
            let left = site.interrupts - site.followed.min(site.interrupts) / 2;
            let what = "give pages that change between writable and not a second, writable mapping, or memory protection keys, instead of mprotect";
            found.push((
                "protect",
                format!("At {at}, {what}"),
                Left {
                    least: 0,
                    most: left,
                },
            ));
        }
        "copy-on-write" | "fork" => {
            let what = "write less between fork and the child's exit, or fork from a small process";
            found.push((
                "fork",
                format!("{call} of {}: {what}", site.place.program),
                Left {
                    least: 0,
                    most: site.interrupts / 2,
                },
            ));
        }
        "NUMA balancing" => found.push((
            "numa",
            format!(
                "Bind {} to a node, or set kernel.numa_balancing=0",
                site.place.program
            ),
            Left { least: 0, most: 0 },
        )),
        "KSM" => found.push((
            "ksm",
            "Stop KSM (echo 2 > /sys/kernel/mm/ksm/run), or exempt the process".into(),
            Left { least: 0, most: 0 },
        )),
        "compaction" | "migration" | "huge pages (khugepaged)" => {
            found.push(("compaction", format!("Against {call}: set transparent_hugepage/defrag to defer or madvise, and vm.compaction_proactiveness=0"), Left { least: 0, most: site.interrupts / 2 }));
        }
        call if call.starts_with("reclaim") => {
            // One flush for each batch of clean pages is what kernels do at best today.
            let batched = site.requests.div_ceil(32).min(site.interrupts);
            found.push(("reclaim", format!("Against {call}: raise the memory limit, or read files with pread into a cache of your own instead of mapping them"), Left { least: 0, most: batched }));
            found.push(("kernel", format!("A kernel that puts flushes of {call} off until reuse (S3), or batches them (S0)"), Left { least: 0, most: batched }));
        }
        _ => {}
    }
    found
}

/// One call for several that follow each other.
fn merged(site: &Site, call: &str, at: &str) -> Option<(&'static str, String, Left)> {
    // The shortest wait that takes most of what there is to take.
    let last = bin(999_999);
    let total = within(&site.gaps, last);
    if total * 4 < site.interrupts {
        return None;
    }
    let chosen = (0..=last).find(|&bin| within(&site.gaps, bin) * 10 >= total * 9)?;
    let merged = within(&site.gaps, chosen);
    let hasty = within(&site.hasty, chosen).min(merged);
    let left = |merged: u64| site.interrupts - merged + merged.div_ceil(BATCH);
    let how = match call {
        _ if site.followed > 0 && site.adjacent * 2 >= site.followed => {
            "one call over the whole span"
        }
        "munmap" => {
            "one call over a span that is kept together, or leave unmapping to a thread that collects"
        }
        _ => {
            "one process_madvise with a list of ranges (which flushes once for all of them since Linux 6.16)"
        }
    };
    let text = format!(
        "At {at}, merge {call} calls that follow each other within {} into {how}",
        time(BINS[chosen] as f64)
    );
    Some((
        "merge",
        text,
        Left {
            least: left(merged),
            most: left(merged - hasty),
        },
    ))
}

/// Memory that is not given back because it is needed again soon.
fn kept(site: &Site, call: &str, at: &str) -> Option<(&'static str, String, Left)> {
    let again: u64 = site.refaulted_interrupts.iter().sum();
    if again * 5 < site.interrupts || again == 0 {
        return None;
    }
    // Nearly all is touched again within this; kept ten times as long, it is there even if what is kept is given
    // back little by little, as allocators do.
    let last = BINS.len() - 2;
    let chosen =
        (0..=last).find(|&bin| within(&site.refaulted_interrupts, bin) * 10 >= again * 9)?;
    let soon = within(&site.refaulted_interrupts, chosen).min(site.interrupts);
    let keeps = time(BINS[chosen + 1] as f64);
    let (kind, what) = match call {
        "munmap" => (
            "cache",
            format!(
                "keep unmapped memory for reuse for {keeps} (a cache of mappings, a larger mmap threshold)"
            ),
        ),
        _ => (
            "keep",
            format!("keep memory for {keeps} before giving it back (a larger decay)"),
        ),
    };
    let left = Left {
        least: site.interrupts - again.min(site.interrupts),
        most: site.interrupts - soon,
    };
    Some((kind, format!("At {at}, {what}"), left))
}

/// What else a site's calls wait for.
fn next(site: &Site, scale: f64) -> Option<String> {
    let refaults = site.refill_ns();
    let lock = site.locked_ns as f64;
    let shootdown = (site.waited.least + site.stolen.least) as f64;
    let (name, ns) = match refaults {
        Some(refaults) if refaults > lock => ("filling memory again", refaults),
        _ if lock > 0.0 => ("mmap_lock", lock),
        _ => return None,
    };
    (ns > shootdown * 0.1).then(|| format!("{name} ({})", time(ns * scale)))
}
