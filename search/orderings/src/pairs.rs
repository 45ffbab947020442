//! Both sides of each race name each other.

use crate::site::Site;
use crate::tokens::{Kind, Strength};

/// What stands for the table walkers of all CPUs, which are no functions, among the partners of a site.
const WALKERS: &str = "walkers";

impl Site {
    /// Whether what other CPUs did before their half is seen after this.
    fn acquires(&self) -> bool {
        match self.kind {
            Kind::Store => false,
            _ => self.strength != Strength::Release,
        }
    }

    /// Whether what was done before this is seen by CPUs after their half.
    fn releases(&self) -> bool {
        match self.kind {
            Kind::Load | Kind::Failure => false,
            _ => self.strength != Strength::Acquire,
        }
    }

    /// The module that it is in.
    fn module(&self) -> &str {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        name.strip_suffix(".rs").unwrap_or(name)
    }

    /// The crate that it is in.
    fn library(&self) -> &str {
        self.file.split('/').next().unwrap_or_default()
    }

    /// Whether `name`, used at `from`, is the function that holds this: alone or behind its type within a
    /// file, behind its module within a crate.
    fn is_called(&self, name: &str, from: &Site) -> bool {
        let here = self.file == from.file;
        match name.split_once("::") {
            None => here && self.function == name,
            Some((prefix, function)) => {
                let typed = here && self.owner.as_deref() == Some(prefix);
                let placed = self.library() == from.library() && self.module() == prefix;
                self.function == function && (typed || placed)
            }
        }
    }

    /// The functions that its comment names.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.partners.split('`').skip(1).step_by(2)
    }

    /// Whether its comment names the function that holds `other`.
    fn is_answered_by(&self, other: &Site) -> bool {
        other.names().any(|name| self.is_called(name, other))
    }
}

/// Checks that each partner exists, is the other half, and names this side in turn.
pub(crate) fn check(sites: &[Site], wrong: &mut Vec<String>) {
    for site in sites {
        let mut say = |what: String| wrong.push(format!("{}:{}: {what}", site.file, site.line));
        if site.names().next().is_none() && !site.partners.contains(WALKERS) {
            say("the comment names no partner; name its function in backticks".to_string());
        }
        for name in site.names() {
            let there: Vec<&Site> = sites
                .iter()
                .filter(|other| other.is_called(name, site))
                .collect();
            let owners = |other: &&Site| (other.file.clone(), other.owner.clone());
            if there.is_empty() {
                say(format!(
                    "`{name}` holds no ordering above Relaxed; name a function of this file, or module::function"
                ));
            } else if there.iter().any(|other| owners(other) != owners(&there[0])) {
                say(format!(
                    "`{name}` is more than one function; put its type in front"
                ));
            } else if !there.iter().any(|other| site.is_answered_by(other)) {
                say(format!(
                    "pairs with `{name}`, where no comment names `{}` in turn",
                    site.function
                ));
            } else if !there.iter().any(|other| {
                let halves =
                    site.acquires() && other.releases() || site.releases() && other.acquires();
                halves && site.is_answered_by(other)
            }) {
                say(format!(
                    "`{name}` has nothing that could be the other half of {}",
                    site.strength
                ));
            }
        }
    }
}
