//! Lists of numbers on the command line.

use std::str::FromStr;

/// Numbers of CPUs, in ascending order: `1,2,24` are these, `24` alone stands for the powers of two up to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = listed(text)?;
        if let [most] = cpus[..] {
            cpus = (0..=10)
                .map(|power| 1 << power)
                .filter(|&cpus| cpus <= most)
                .collect();
        }
        Ok(Cpus(cpus))
    }
}

/// Numbers of CPUs, in ascending order: those that are named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed(pub Vec<usize>);

impl FromStr for Listed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        listed(text).map(Listed)
    }
}

/// Reads a list of numbers of CPUs.
///
/// # Errors
/// What was expected.
fn listed(text: &str) -> Result<Vec<usize>, String> {
    let parsed: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let mut cpus = parsed.map_err(|_| "expected numbers like 1,2,24")?;
    if let Some(wrong) = cpus.iter().find(|cpus| !(1..=1024).contains(*cpus)) {
        return Err(format!("{wrong} is not in 1..=1024"));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_a_limit_and_several_are_themselves() {
        let cpus = |text: &str| text.parse::<Cpus>().map(|Cpus(cpus)| cpus);
        assert_eq!(cpus("24"), Ok(vec![1, 2, 4, 8, 16]));
        assert_eq!(cpus("24,1,24"), Ok(vec![1, 24]));
        assert!(cpus("0,1").unwrap_err().contains("1..=1024"));
        assert!(cpus("5000").unwrap_err().contains("1024"));
        assert!(cpus("a").is_err() && cpus("1,,2").is_err() && cpus("").is_err());
    }
}
