//! Chooses the mutant for the next program.
//!
//! Programs over the engine run for some hundred moments, those with large pages for twenty thousand. So we give all
//! mutants the same work, not the same number of programs. Otherwise mutants that short programs can kill would wait
//! for those that need long ones.

use crate::mistake::Mistake;
use crate::schedule::Rng;

/// The assumed work of an unknown program, in moments.
const UNKNOWN: u64 = 100_000;

/// The work of the programs that were drawn for a mutant.
#[derive(Clone, Copy, Debug)]
struct Effort {
    mutant: Mistake,
    programs: u64,
    moments: u64,
}

/// The work for each mutant.
#[derive(Clone, Default, Debug)]
pub(super) struct Efforts(Vec<Effort>);

impl Efforts {
    fn of(&mut self, mutant: Mistake) -> &mut Effort {
        let known = self.0.iter().position(|effort| effort.mutant == mutant);
        let at = known.unwrap_or_else(|| {
            self.0.push(Effort { mutant, programs: 0, moments: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Adds the moments of a program drawn for this mutant.
    pub(super) fn count(&mut self, mutant: Mistake, moments: u64) {
        let effort = self.of(mutant);
        effort.programs += 1;
        effort.moments += moments;
    }

    /// Adds the efforts of another lane.
    pub(super) fn add(&mut self, other: &Efforts) {
        for theirs in &other.0 {
            let effort = self.of(theirs.mutant);
            effort.programs += theirs.programs;
            effort.moments += theirs.moments;
        }
    }

    /// Draws a surviving mutant. Mutants whose programs need less work are drawn more often.
    pub(super) fn next(&self, rng: &mut Rng, alive: &[Mistake]) -> Option<Mistake> {
        let weight = |mutant: &Mistake| {
            let known = self.0.iter().find(|effort| effort.mutant == *mutant);
            let (programs, moments) = known.map_or((0, 0), |known| (known.programs, known.moments));
            1 + (UNKNOWN << 10) * (programs + 1) / (moments + UNKNOWN)
        };
        let weighed: Vec<(u64, Mistake)> = alive.iter().map(|one| (weight(one), *one)).collect();
        (!weighed.is_empty()).then(|| rng.weigh(&weighed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_get_the_same_work_however_long_their_programs_are() {
        let sought: Vec<Mistake> = Mistake::all().take(3).collect();
        let took = |mutant: Mistake| {
            [400_000, 20_000, 90_000][sought.iter().position(|one| *one == mutant).unwrap()]
        };
        let (mut rng, mut efforts) = (Rng::new(1), Efforts::default());
        for _ in 0..6000 {
            let mutant = efforts.next(&mut rng, &sought).unwrap();
            efforts.count(mutant, took(mutant));
        }
        let least = efforts.0.iter().map(|effort| effort.moments).min().unwrap();
        let most = efforts.0.iter().map(|effort| effort.moments).max().unwrap();
        assert!(efforts.0.len() == 3 && most < 2 * least, "{efforts:?}");
        assert_eq!(efforts.next(&mut rng, &[]).map(|mutant| mutant.name()), None);
    }
}
