//! Finds Linux's complaints on its console: its own checks of memory management, locks and accesses.

/// Shows warnings (level 4) in spite of `quiet`.
pub const SHOWN: &str = "loglevel=5";

/// The most lines to keep of a splat.
const LINES: usize = 60;

/// Texts in the first lines of Linux's complaints.
const SPLATS: [&str; 16] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops: ",
    "INFO: possible ",
    "INFO: task ",
    "rcu: INFO: ",
    "INFO: rcu",
    "Kernel panic",
    "general protection fault",
    "page allocation stalls",
    "UBSAN: ",
    "list_add corruption",
    "list_del corruption",
    "nobody cared",
    "refcount_t: ",
];

/// The complaints among the lines of a console.
#[derive(Default)]
pub struct Splats {
    found: Vec<Vec<String>>,
    /// Whether the next lines belong to the last complaint.
    open: bool,
}

impl Splats {
    /// Handles the next line.
    pub fn line(&mut self, line: &str) {
        let line = plain(line);
        if SPLATS.iter().any(|mark| line.contains(mark)) {
            // A complaint within a complaint's own lines is part of it.
            if !self.open {
                self.found.push(Vec::new());
            }
            self.open = true;
        }
        if self.open
            && let Some(splat) = self.found.last_mut()
        {
            splat.push(line.to_string());
            if splat.len() == LINES || line.contains("---[ end ") || line == " </TASK>" {
                self.open = false;
            }
        }
    }

    /// Returns the splats found since the last call, each with its lines.
    pub fn take(&mut self) -> Vec<Vec<String>> {
        self.open = false;
        std::mem::take(&mut self.found)
    }
}

/// Returns a line of the kernel's log without its time.
fn plain(line: &str) -> &str {
    line.split_once("] ")
        .filter(|(time, _)| {
            time.strip_prefix('[')
                .is_some_and(|time| time.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        })
        .map_or(line, |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(lines: &[&str]) -> Splats {
        let mut splats = Splats::default();
        for line in lines {
            splats.line(line);
        }
        splats
    }

    #[test]
    fn a_splat_is_seen_with_its_lines_and_no_others() {
        let found = followed(&[
            "[    1.000000] all is well",
            "[    1.500000] WARNING: CPU: 1 PID: 7 at mm/rmap.c:12 f+0x1/0x2",
            "[    1.500001] Call Trace:",
            "[    1.500002] ---[ end trace 0000000000000000 ]---",
            "[    2.000000] Out of memory: Killed process 9",
            "[    3.000000] ======================================================",
            "[    3.000000] WARNING: possible circular locking dependency detected",
        ])
        .take();
        assert_eq!(found.len(), 2, "{:?}", found);
        assert_eq!(found[0].len(), 3);
        assert!(found[0][0].starts_with("WARNING: CPU: 1"));
    }
}
