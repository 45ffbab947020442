//! Lists of numbers on the command line.

use std::str::FromStr;

/// Numbers of CPUs in ascending order. `1,2,24` means exactly these; a single number such as `24` means the powers of
/// two up to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = listed(text)?;
        if let [most] = cpus[..] {
            cpus = (0..=10).map(|power| 1 << power).filter(|&cpus| cpus <= most).collect();
        }
        Ok(Cpus(cpus))
    }
}

/// Numbers of CPUs in ascending order, exactly as listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuNumbers(pub Vec<usize>);

impl FromStr for CpuNumbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        listed(text).map(CpuNumbers)
    }
}

/// Reads a list of numbers of CPUs. For example, `4..64` is 4 and each doubling of it up to 64.
///
/// # Errors
/// A message with the expected form or range.
fn listed(text: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| {
        let number: usize =
            text.trim().parse().map_err(|_| "expected numbers like 1,2,24 or 1..64")?;
        match number {
            1..=1024 => Ok(number),
            _ => Err(format!("{number} is not from 1 to 1024")),
        }
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once("..") {
            None => (number(part)?, number(part)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        if first > last {
            return Err(format!("the first number of {part} is above the last"));
        }
        let doubled = std::iter::successors(Some(first), |cpus| Some(2 * cpus));
        cpus.extend(doubled.take_while(|&cpus| cpus <= last));
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
        assert_eq!(cpus("4..20,1"), Ok(vec![1, 4, 8, 16]));
        assert!(cpus("8..4").unwrap_err().contains("above the last"));
        assert!(cpus("1..").unwrap_err().contains("1..64"));
        assert!(cpus("0,1").unwrap_err().contains("1 to 1024"));
        assert!(cpus("5000").unwrap_err().contains("1024"));
        assert!(cpus("a").is_err() && cpus("1,,2").is_err() && cpus("").is_err());
    }
}
