//! Summarizes repeated measurements.

use alloc::vec::Vec;

/// Returns the median and sorts the values; `None` without any.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// Returns the least, the median and the greatest of the finite values; `None` without any.
pub fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let median = median(&mut finite)?;
    Some([finite[0], median, finite[finite.len() - 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_of_values_has_the_mean_of_the_middle_ones() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[4.0, f64::NAN, 1.0, 2.0]), Some([1.0, 2.0, 4.0]));
        assert_eq!(spread(&[f64::INFINITY]), None);
    }
}
