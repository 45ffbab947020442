//! How figures are written, and what stands for several of them.

/// The median of figures in ascending order; `None` of none.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The least, the median and the greatest of the finite figures among these; `None` if there are none.
pub fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    Some([*finite.first()?, median(&finite)?, *finite.last()?])
}

/// A figure with four digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_of_the_figures_that_there_are() {
        assert_eq!(spread(&[3.0, 1.0, f64::NAN, 2.0]), Some([1.0, 2.0, 3.0]));
        assert_eq!(spread(&[f64::NAN]), None);
    }
}
