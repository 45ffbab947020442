//! Reports the cost of page faults, which fill memory again that was given back.

use super::Answer;
use super::judged::MATTERS;
use crate::advise::filled_again;
use crate::figures::{Range, count, percent, percents, time};
use crate::line::Line;
use crate::scales::{RAN_NS, SampleScales};
use crate::understand::WHOLE;

pub(super) struct FaultCost<'r> {
    /// The program; `None` for all of them.
    name: Option<&'r str>,
    faults: u64,
    /// The kernel's share of the CPU time.
    kernel: f64,
    /// The page faults' share of the CPU time, if we know the host's price.
    pub(super) share: Option<Range>,
}

impl<'r> FaultCost<'r> {
    /// Computes the shares from page faults, CPU time and the kernel's part of that. Page faults can't take more time
    /// than the kernel did.
    fn of(
        name: Option<&'r str>,
        faults: u64,
        (all_ns, kernel_ns): (f64, f64),
        each: Option<Range>,
    ) -> Option<Self> {
        let kernel = (kernel_ns / all_ns).min(1.0);
        let share = each.map(|Range { least, most }| {
            let share = |ns: f64| (faults as f64 * ns / all_ns).min(kernel);
            Range { least: share(least), most: share(most) }
        });
        (all_ns >= RAN_NS).then_some(FaultCost { name, faults, kernel, share })
    }

    /// Returns a verdict that names the program and the share, if page faults may matter.
    pub(super) fn verdict(&self) -> Option<Line> {
        let share = self.share.filter(|share| share.most >= MATTERS)?;
        let sure = share.least >= MATTERS;
        let line = Line::new("Verdict").text(match sure {
            true => "It is page faults, not your TLB: ",
            false => "It is not your TLB, but maybe page faults: ",
        });
        let line = line.name(self.name.unwrap_or("all programs"));
        let spent = if sure { percents(share) } else { format!("up to {}", percent(share.most)) };
        let whole = match self.name {
            Some(_) => " of its CPU time",
            None => " of CPU time",
        };
        Some(line.text(format!(" {spent}")).remark(whole))
    }

    /// Returns the share of this program, if it certainly exceeds that of shootdowns.
    pub(super) fn exceeds(&self, program: &str, lost: Range) -> Option<Range> {
        let share = self.share.filter(|_| self.name == Some(program));
        share.filter(|share| share.least > lost.most)
    }
}

impl Answer<'_> {
    /// Returns the cost of page faults in the own program that has the most.
    pub(super) fn filling(&self) -> Option<FaultCost<'_>> {
        let from = self.from;
        let each = from.prices.map(|prices| prices.fault_ns);
        if from.ran.is_empty() {
            let (before, after) = (from.before.as_ref()?, from.after.as_ref()?);
            let faults = after.vm("pgfault")?.checked_sub(before.vm("pgfault")?)?;
            let busy = after.busy_ns().checked_sub(before.busy_ns())? as f64;
            let kernel = after.used_ns("system")?.checked_sub(before.used_ns("system")?)? as f64;
            return FaultCost::of(None, faults, (busy, kernel), each);
        }
        let own = from.ran.iter().filter(|ran| match self.only {
            Some(only) => only == ran.comm,
            None => from.is_about(&ran.comm),
        });
        let most = own.max_by_key(|ran| (ran.faults, ran.kernel_ns))?;
        let times = (most.ns() as f64, most.kernel_ns as f64);
        FaultCost::of(Some(&most.comm), most.faults, times, each)
    }

    /// Returns the page faults that refilled memory: at least those that a command had beyond the memory that it held.
    fn refaults(&self, filling: Option<&FaultCost<'_>>) -> u64 {
        let seen: u64 = self.sites.iter().map(|site| site.refaults).sum();
        let again = |name| filled_again(self.from, SampleScales::of(self.from), name) as u64;
        seen.max(filling.and_then(|of| of.name).map_or(0, again))
    }

    /// Reports other costs: system time, page faults, refaults, and `mmap_lock`.
    pub(super) fn besides(&self) -> Option<Line> {
        let locked: f64 = self.sites.iter().map(|site| site.locked_ns).sum();
        let filling = self.filling();
        let refaults = self.refaults(filling.as_ref());
        if locked <= 0.0 && refaults == 0 && filling.is_none() {
            return None;
        }
        let mut line = Line::new("Besides");
        if let Some(filling) = &filling {
            line = line
                .text(format!("{} system time", percent(filling.kernel)))
                .text(format!("; {}", count(filling.faults)))
                .remark(" page")
                .text(" faults")
                .remark(match filling.share {
                    Some(share) => format!(" ({})", percents(share)),
                    None => String::new(),
                });
            if refaults > 0 {
                line = line.text(", ");
            }
        }
        if refaults > 0 {
            // A window doesn't show memory that was given back before it.
            let least = if self.from.scale_of_time() > WHOLE { " or more" } else { "" };
            line = line
                .text(format!("{}{least}", count(refaults)))
                .remark(match filling {
                    Some(_) => "",
                    None => " page faults",
                })
                .text(" refilled")
                .remark(" memory given back");
        }
        let locks = self.from.seen.locks && (refaults > 0 || locked > 0.0);
        let lead = if filling.is_some() || refaults > 0 { "; " } else { "" };
        Some(if locks { line.text(format!("{lead}mmap_lock {}", time(locked))) } else { line })
    }
}
