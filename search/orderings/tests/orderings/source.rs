//! The orderings to weaken: those that the comments in the source say a race is lost without.

use crate::word::{Operation, weaker};
use quell_orderings::{Kind, Lost, Site, Strength};
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};

/// An ordering in the source, and one that is a step weaker.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where it is, with the name of the race in [`Site::lost`].
    pub site: Site,
    pub order: Ordering,
    pub to: Ordering,
}

impl Place {
    /// The race that is lost, as the comment says.
    pub fn race(&self) -> &str {
        match &self.site.lost {
            Lost::Race(name) | Lost::Mutant(name) => name,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (site, order, to) = (&self.site, self.order, self.to);
        let place = (&site.file, site.line, &site.function, &site.call);
        write!(
            f,
            "{}:{} `{}`, `{}`: {order:?} to {to:?}",
            place.0, place.1, place.2, place.3
        )
    }
}

/// Every step by which an ordering could be weakened that is a matter of atomics. Fences of the machine and what
/// only a walker would notice are mutants of the adversary instead.
pub fn places() -> Vec<Place> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sites = quell_orderings::read(&root).unwrap_or_else(|wrong| panic!("{wrong}"));
    let raced = sites
        .into_iter()
        .filter(|site| matches!(site.lost, Lost::Race(_)));
    let steps = |site: Site| {
        let order = match site.strength {
            Strength::Acquire => Acquire,
            Strength::Release => Release,
            Strength::AcqRel => AcqRel,
            Strength::SeqCst => SeqCst,
            Strength::Fence => panic!(
                "{}:{}: no race can lose a fence of the machine",
                site.file, site.line
            ),
        };
        let operation = match site.kind {
            Kind::Load | Kind::Failure => Operation::Load,
            Kind::Store => Operation::Store,
            Kind::Modification => Operation::Modification,
            Kind::Fence => Operation::Fence,
        };
        let weaker = weaker(order, operation).into_iter();
        weaker.map(move |to| Place {
            site: site.clone(),
            order,
            to,
        })
    };
    raced.flat_map(steps).collect()
}
