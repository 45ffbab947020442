//! Summarizes a sweep: medians and spreads over seeds, as points and a plot, and every run as CSV.

use std::collections::BTreeMap;

use super::Record;
use super::columns::{self, Column, amount};
use crate::charts::{COLORS, Chart, Line, VerticalScale};
use crate::numbers::median;

/// One point of a grid, with the figures of all its seeds.
#[derive(Debug)]
pub struct Point {
    pub(crate) machine: String,
    pub(crate) policy: String,
    pub(crate) cpus: usize,
    /// The parameters that the grid names.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The figures, in ascending order.
    pub(crate) values: Vec<f64>,
    /// The number of seeds without a figure.
    pub(crate) failed: usize,
}

impl Point {
    /// Returns the median of the figures.
    pub fn median(&self) -> Option<f64> {
        median(&mut self.values.clone())
    }

    /// Returns the spread of the figures, in percent of the median.
    pub fn spread(&self) -> Option<f64> {
        let (first, last) = (self.values.first()?, self.values.last()?);
        Some((last - first) / self.median()?.abs() * 100.0)
    }
}

/// Returns the points of a grid, in the grid's order. All seeds of a point are adjacent there.
pub fn points(records: &[Record]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for record in records {
        let same = points.last().is_some_and(|point| {
            (&point.machine, &point.policy, point.cpus, &point.parameters)
                == (&record.machine, &record.policy, record.cpus, &record.parameters)
        });
        if !same {
            points.push(Point {
                machine: record.machine.clone(),
                policy: record.policy.clone(),
                cpus: record.cpus,
                parameters: record.parameters.clone(),
                values: Vec::new(),
                failed: 0,
            });
        }
        if let Some(point) = points.last_mut() {
            match record.value {
                Some(value) => point.values.push(value),
                None => point.failed += 1,
            }
        }
    }
    for point in &mut points {
        point.values.sort_by(f64::total_cmp);
    }
    points
}

/// Formats a cell of CSV, with quotes if necessary.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

/// Formats each run as a line of CSV. Omits event counts that are zero in every run.
pub fn csv(records: &[Record]) -> String {
    let columns = columns::of(records);
    let mut text = String::new();
    let mut line = |of: &dyn Fn(&Column) -> String| {
        let cells: Vec<_> = columns.iter().map(|column| quoted(&of(column))).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    };
    line(&|column| column.name.clone());
    for run in 0..records.len() {
        line(&|column| column.shown(run));
    }
    text
}

/// Plots the medians over the number of CPUs, or over another numeric parameter.
///
/// It chooses the one with the most values. Returns `None` if none has two.
pub fn plot(points: &[Point], metric: &str) -> Option<String> {
    let first = points.first()?;
    let different = |of: &dyn Fn(&Point) -> Option<f64>| {
        let mut all: Vec<_> = points.iter().filter_map(of).map(f64::to_bits).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    let cpus = |point: &Point| Some(point.cpus as f64);
    let of = |point: &Point, name: &str| {
        point.parameters.get(name).and_then(|text| Some(amount(text)? as f64))
    };
    let mut best = ("CPUs", different(&cpus));
    for name in first.parameters.keys() {
        let count = different(&|point| of(point, name));
        if count > best.1 {
            best = (name.as_str(), count);
        }
    }
    let (axis, count) = best;
    if count < 2 {
        return None;
    }
    let names = |point: &Point| {
        let mut names = vec![point.machine.clone(), point.policy.clone()];
        if axis != "CPUs" {
            names.push(format!("{} CPUs", point.cpus));
        }
        let others = point.parameters.iter().filter(|(name, _)| *name != axis);
        names.extend(others.map(|(name, value)| format!("{name}={value}")));
        names
    };
    // What all lines have in common is part of the title.
    let (shared, own): (Vec<_>, Vec<_>) = names(first)
        .into_iter()
        .partition(|name| points.iter().all(|point| names(point).contains(name)));
    let mut lines: Vec<Line> = Vec::new();
    for point in points {
        let place = match axis {
            "CPUs" => cpus(point),
            name => of(point, name),
        };
        let (Some(place), Some(median)) = (place, point.median()) else {
            continue;
        };
        if place <= 0.0 || median <= 0.0 {
            continue;
        }
        let mut name = names(point);
        if !own.is_empty() {
            name.retain(|name| !shared.contains(name));
        }
        let name = name.join(" ");
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((place, median)),
            None => lines.push(Line {
                name,
                color: COLORS[lines.len() % COLORS.len()],
                points: vec![(place, median)],
            }),
        }
    }
    if lines.is_empty() {
        return None;
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let chart = Chart {
        title: &format!("{metric}, medians of all seeds ({})", shared.join(", ")),
        lines: &lines,
        rings: &[],
        right: axis,
        power: |value| format!("{value}"),
        up: metric,
        upward: VerticalScale::Powers,
    };
    Some(chart.file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: usize, cpus: usize, seed: u64, value: Option<f64>) -> Record {
        Record {
            index,
            workload: "w".into(),
            machine: "m".into(),
            policy: "S0,inline=no".into(),
            cpus,
            seed,
            parameters: BTreeMap::from([("size".into(), "64K".into())]),
            value,
            window_ns: 1.5,
            machine_counts: BTreeMap::from([("calls".into(), 3)]),
            error: value.is_none().then(|| "it \"broke\"".into()),
            ..Record::default()
        }
    }

    fn records() -> Vec<Record> {
        vec![
            record(0, 1, 1, Some(3.0)),
            record(1, 1, 2, Some(1.0)),
            record(2, 1, 3, Some(2.0)),
            record(3, 2, 1, None),
            record(4, 2, 2, Some(4.0)),
        ]
    }

    #[test]
    fn a_point_is_the_median_of_its_seeds() {
        let points = points(&records());
        assert_eq!(points.len(), 2);
        assert_eq!((points[0].median(), points[0].spread()), (Some(2.0), Some(100.0)));
        assert_eq!((points[1].median(), points[1].failed), (Some(4.0), 1));
        let drawn = plot(&points, "it").unwrap();
        assert!(drawn.contains("it, medians of all seeds ("), "{drawn}");
        assert!(drawn.contains("<svg"));
        assert!(plot(&points[..1], "it").is_none());
    }

    #[test]
    fn csv_has_a_line_for_each_run_and_quotes_what_must_be() {
        let text = csv(&records());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(
            lines[0],
            "workload,machine,policy,cpus,seed,param.size,value,window_ns,violations,error,machine.calls"
        );
        assert_eq!(lines[1], "w,m,\"S0,inline=no\",1,1,64K,3,1.5,0,,3");
        assert_eq!(lines[4], "w,m,\"S0,inline=no\",2,1,64K,,1.5,0,\"it \"\"broke\"\"\",3");
    }
}
