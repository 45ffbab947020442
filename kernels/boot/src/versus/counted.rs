//! Compares the engine's counts in a Linux with Linux's own.

use super::protocol::Event;
use std::fmt;

/// The counts of the engine and of Linux in a completed boot.
#[derive(Clone, Debug)]
pub struct BootCounters {
    /// Interrupts in Linux's row `TLB`, read before and after the engine's counts.
    pub interrupts: [u64; 2],
    /// The engine's counters, in its order.
    pub engine: Vec<(String, u64)>,
}

impl BootCounters {
    /// Returns the engine's counter `name`; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        let found = self.engine.iter().find(|(counter, _)| counter == name);
        found.map_or(0, |(_, count)| *count)
    }

    /// Checks that both counts agree.
    ///
    /// Linux counts an interrupt when it arrives, the engine when it's sent. Two interrupts to a CPU may arrive as one
    /// if the first request was served before its interrupt arrived. Otherwise the second request merges into the first
    /// and sends none. So Linux's count isn't above the engine's, and is less by at most the number of requests that
    /// were served early.
    ///
    /// # Errors
    /// The difference.
    pub fn agree(&self) -> Result<(), String> {
        let ([before, after], sent) = (self.interrupts, self.get("sent"));
        let early = self.get("served_early");
        if before > sent {
            return Err(format!("Linux counted {before} interrupts, but the engine sent {sent}"));
        }
        if sent > after + early {
            return Err(format!(
                "the engine sent {sent} interrupts, but Linux counted {after}; {early} requests were served without one"
            ));
        }
        Ok(())
    }

    pub(super) fn of(event: &Event) -> Option<BootCounters> {
        let Event::Counted { before, engine, after } = event else {
            return None;
        };
        // A row contains its name, a number for each CPU, and its description.
        let sum =
            |row: &str| -> u64 { row.split(' ').filter_map(|word| word.parse::<u64>().ok()).sum() };
        let counter = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_string(), count.parse().ok()?))
        };
        Some(BootCounters {
            interrupts: [sum(before), sum(after)],
            engine: engine.lines().filter_map(counter).collect(),
        })
    }
}

impl fmt::Display for BootCounters {
    /// Prints Linux's interrupts, and each of the engine's counters that isn't 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLB interrupts {}; engine:", self.interrupts[1])?;
        let moved = self.engine.iter().filter(|(_, count)| *count > 0);
        for (number, (name, count)) in moved.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma} {name} {count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_read() {
        let counted = BootCounters::of(&Event::Counted {
            before: " TLB:          1          2   TLB shootdowns".into(),
            engine: "requested 7\nsent 3\n".into(),
            after: " TLB:          1          3   TLB shootdowns".into(),
        })
        .unwrap();
        assert_eq!(counted.interrupts, [3, 4]);
        let text = "TLB interrupts 4; engine: requested 7, sent 3";
        assert_eq!(counted.to_string(), text);
        assert_eq!((counted.get("sent"), counted.get("none")), (3, 0));
    }

    #[test]
    fn counts_that_differ_are_named() {
        let counted = |interrupts, sent: u64, served: u64| BootCounters {
            interrupts,
            engine: vec![("sent".into(), sent), ("served_early".into(), served)],
        };
        assert!(counted([3, 3], 3, 0).agree().is_ok());
        assert!(counted([3, 3], 4, 1).agree().is_ok());
        assert!(counted([3, 4], 3, 0).agree().is_ok());
        assert!(counted([3, 3], 4, 0).agree().is_err());
        assert!(counted([3, 3], 2, 0).agree().is_err());
    }
}
