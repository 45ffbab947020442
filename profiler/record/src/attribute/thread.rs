//! Follows threads: calls, waits for `mmap_lock`, and accesses to memory that was given back.
//!
//! If a thread continues, its wait is over, so we end its open request. We add the request up once its targets are
//! done, too.

use crate::perf::Sample;

use super::reuse::{BINS, bin};
use super::slice::{Slice, Stretch};
use super::{Attribution, Fault};
use crate::event::{MADV_DONTNEED, MADV_FREE};
use crate::figures::Range;

/// The largest number of mappings to remember.
const MAPPED: usize = 1 << 16;

impl Attribution {
    pub(super) fn of_call(&mut self, tid: u32, site: usize) {
        let call = self.threads.get_mut(&tid).and_then(|thread| thread.call.as_mut());
        if let Some(call) = call {
            call.site.get_or_insert(site);
        }
    }

    /// Ends the thread's open request, because the thread continues.
    pub(super) fn close(&mut self, tid: u32, now: u64) {
        let open = self.threads.get_mut(&tid).and_then(|thread| thread.open.take());
        if let Some(id) = open {
            if let Some(request) = self.requests.get_mut(id) {
                request.end = Some(now);
            }
            self.add_up(id);
        }
    }

    /// Adds up a request once its initiator and all its targets are done.
    pub(super) fn add_up(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let Some(end) = request.end else {
            return;
        };
        if request.left > 0 {
            return;
        }
        let Some(sent) = request.sent.filter(|_| !request.added_up) else {
            return;
        };
        request.added_up = true;
        let most = end.saturating_sub(sent);
        let least = request.done.map_or(0, |done| done.saturating_sub(sent).min(most));
        let site = &mut self.sites[request.site];
        site.waited = site.waited.plus(Range { least: least as f64, most: most as f64 });
        if least > 0 {
            self.ended.push(Slice {
                kind: Stretch::Wait,
                cpu: request.cpu,
                tid: request.tid,
                program: self.programs[request.program].name.clone(),
                start_ns: sent,
                end_ns: sent + least,
                what: site.place.call.clone(),
                site: Some(request.site),
                origin: None,
            });
        }
    }

    pub(super) fn returned(&mut self, sample: &Sample, program: usize, result: Option<u64>) {
        let now = sample.time_ns;
        self.close(sample.tid, now);
        let call = self.threads.get_mut(&sample.tid).and_then(|thread| thread.call.take());
        let Some(call) = call else {
            return;
        };
        let unmaps = &*call.name == "munmap";
        let was_file = unmaps.then(|| self.mapped.remove(&(sample.pid, call.arguments.start)));
        if let (Some(file), Some(start)) = (call.arguments.file, result)
            && self.mapped.len() < MAPPED
        {
            self.mapped.insert((sample.pid, start), file);
        }
        self.ended.push(Slice {
            kind: Stretch::Call,
            cpu: call.cpu,
            tid: sample.tid,
            program: self.programs[program].name.clone(),
            start_ns: call.start_ns,
            end_ns: now,
            what: call.name.clone(),
            site: call.site,
            origin: None,
        });
        let owner = self.owner(sample, program);
        let given = self.gave_back(sample.pid, owner, &call, result, call.site);
        if &*call.name == "membarrier" {
            self.barriers.0 += 1;
            self.barriers.1 += now.saturating_sub(call.start_ns);
        }
        let Some(site) = call.site else {
            return;
        };
        let of = &mut self.sites[site];
        of.calls += 1;
        of.call_ns += now.saturating_sub(call.start_ns);
        of.call_events.add(call.events);
        of.locked_ns += call.locked_ns;
        of.bytes += given.bytes;
        of.unplaced += u64::from(given.bytes > 0 && given.ranges.is_empty());
        match was_file.flatten() {
            Some(true) => of.files += 1,
            Some(false) => of.memory += 1,
            None => {}
        }
        let is_madvise = |how| &*call.name == "madvise" && call.arguments.how == how;
        of.dontneed += u64::from(is_madvise(MADV_DONTNEED));
        let sent = (call.interrupts, call.gap.unwrap_or(BINS.len()));
        for (start, bytes) in given.ranges {
            let before = self.discards.add(owner, start, bytes, site, now, sent);
            if let Some(before) = before {
                let followed = now.saturating_sub(before.time_ns);
                let of = &mut self.sites[before.site];
                of.reuse.left(followed, before.interrupts);
                // A page that was freed, but not taken yet, is touched without a fault. If it's freed again, it was.
                if is_madvise(MADV_FREE) && bin(followed) <= before.gap && before.interrupts > 0 {
                    of.hasty[before.gap] += before.interrupts;
                }
            }
        }
    }

    pub(super) fn lock(&mut self, tid: u32, now: u64, got: bool) {
        self.seen.locks = true;
        let thread = self.threads.entry(tid).or_default();
        if !got {
            thread.lock_since = Some(now);
            return;
        }
        if let (Some(since), Some(call)) = (thread.lock_since.take(), &mut thread.call) {
            call.locked_ns += now.saturating_sub(since);
        }
    }

    pub(super) fn fault(&mut self, sample: &Sample, program: usize, address: u64) {
        let now = sample.time_ns;
        self.programs[program].faults += 1;
        if let Some(faults) = self.forked.get_mut(&sample.pid) {
            *faults += 1;
        }
        let mut of = None;
        let owner = self.owner(sample, program);
        if let Some(discard) = self.discards.find(owner, address) {
            let site = &mut self.sites[discard.site];
            of = Some(discard.site);
            let after = now.saturating_sub(discard.time_ns);
            let soon = bin(after);
            site.refaults += 1;
            site.refills[soon] += u64::from(!discard.is_old);
            // The next square number.
            site.refaults_squared += 2 * discard.refaults + 1;
            discard.refaults += 1;
            if !std::mem::replace(&mut discard.followed, true) {
                site.reuse.touched(after, discard.interrupts);
                if discard.interrupts > 0 && soon <= discard.gap {
                    site.hasty[discard.gap] += discard.interrupts;
                }
            }
        }
        self.close(sample.tid, now);
        self.threads.entry(sample.tid).or_default().fault = Some(Fault { since: now, site: of });
    }
}
