//! Checks that each table of measurements in a document is the one that its file in `docs/tables` prints. The file has
//! the command, date, host and commit of the measurement. For a simulation, the host is the simulated machine. If rows
//! were measured at different times, a column `measured` has the date and commit of each.
//!
//! `QUELL_WRITE_TABLES=1 cargo test --package xtask --test tables` writes the tables into the documents.

use serde::Deserialize;
use std::fs;
use std::path::Path;

/// The beginnings of the line below a table.
const MEASURED: &str = "*Measured ";
const SIMULATED: &str = "*Simulated ";

/// A file of `docs/tables`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The path of the document, from the root of the workspace.
    document: String,
    /// Repeats the measurement. `None` if that needs programs from outside of this repository.
    command: Option<String>,
    #[serde(default)]
    measured: Vec<Measurement>,
    #[serde(default)]
    simulated: Vec<Measurement>,
    table: Option<Table>,
    versus: Option<Versus>,
    counted: Option<Counts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measurement {
    date: toml::value::Datetime,
    commit: String,
    host: String,
}

/// A table as it is printed. Columns of numbers have names that end with a colon.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A table of what `quell versus linux --json` printed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Versus {
    /// The path of the JSON file, from the root of the workspace.
    results: String,
    /// The key of the side that is compared with stock Linux.
    side: String,
    /// The name of that side's column.
    column: String,
}

/// A table that counts the mutants that survive, by the kind of their reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    /// The path of the list of these mutants, from the root of the workspace.
    entries: String,
    columns: Vec<String>,
    /// Each kind, and its meaning.
    kinds: Vec<[String; 2]>,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Formats a number of interrupts per operation.
fn count(number: f64) -> String {
    let digits = if number != 0.0 && number < 0.01 { 4 } else { 3 };
    format!("{number:.digits$}")
}

impl Versus {
    fn table(&self) -> Table {
        let results: serde_json::Value = serde_json::from_str(&read(&self.results)).expect("JSON");
        let cell = |side: &serde_json::Value| {
            let of = |value: &serde_json::Value| count(value.as_f64().expect("a number"));
            let [least, most] = [0, 1].map(|end| of(&side["spread"]["interrupts"][end]));
            let median = of(&side["interrupts"]);
            if least == most { median } else { format!("{median} ({least}..{most})") }
        };
        let rows = results["rows"].as_array().expect("rows").iter().map(|row| {
            let (linux, other) = (&row["linux"], &row[&self.side]);
            let ratio = |key: &str| {
                let [before, after] = [linux, other].map(|side| side[key].as_f64().expect(key));
                format!("{:.3}", after / before)
            };
            let variant = row["variant"].as_str().expect("a variant");
            let name = row["workload"].as_str().expect("a workload");
            let name = match variant {
                "as in its file" => name.to_owned(),
                variant => format!("{name}, {variant}"),
            };
            let (stock, changed) = (cell(linux), cell(other));
            vec![name, stock, changed, ratio("interrupts"), ratio("instructions")]
        });
        let columns = [
            "workload",
            "interrupts, stock:",
            &format!("{}:", self.column),
            "ratio:",
            "instructions, ratio:",
        ];
        Table { columns: columns.map(String::from).to_vec(), rows: rows.collect() }
    }
}

impl Counts {
    fn table(&self) -> Table {
        let list: toml::Table = toml::from_str(&read(&self.entries)).expect("TOML");
        let kept = list["kept"].as_array().expect("a list");
        let count = |kind: &str| {
            let of_kind = |entry: &&toml::Value| entry["kind"].as_str() == Some(kind);
            kept.iter().filter(of_kind).count()
        };
        let counts: Vec<_> = self.kinds.iter().map(|[kind, _]| count(kind)).collect();
        assert_eq!(counts.iter().sum::<usize>(), kept.len(), "a kind is missing");
        let rows = self.kinds.iter().zip(counts);
        Table {
            columns: self.columns.clone(),
            rows: rows
                .map(|([kind, meaning], count)| {
                    vec![kind.clone(), count.to_string(), meaning.clone()]
                })
                .collect(),
        }
    }
}

impl File {
    /// Returns the lines of the table, a blank line, and the line that says when and where it was measured.
    fn lines(&self) -> Vec<String> {
        let made = self.versus.as_ref().map(Versus::table);
        let made = made.or(self.counted.as_ref().map(Counts::table));
        let table = self.table.as_ref().or(made.as_ref()).expect("a table");
        let line = |cells: &[String]| format!("| {} |", cells.join(" | ")).replace("  ", " ");
        let (names, rules): (Vec<_>, Vec<_>) = table
            .columns
            .iter()
            .map(|name| match name.strip_suffix(':') {
                Some(name) => (name.to_owned(), "---:".to_owned()),
                None => (name.clone(), "---".to_owned()),
            })
            .unzip();
        let mut lines = vec![line(&names), line(&rules)];
        for row in &table.rows {
            assert_eq!(row.len(), names.len(), "{}: {row:?}", self.document);
            lines.push(line(row));
        }
        if names.iter().any(|name| name == "measured") {
            return lines;
        }
        let (verb, made) = match (&self.measured[..], &self.simulated[..]) {
            (made, []) => (MEASURED, made),
            ([], made) => (SIMULATED, made),
            _ => panic!("{}: a table that is measured and simulated", self.document),
        };
        assert!(!made.is_empty(), "{}: a table without a date", self.document);
        let made = made.iter().map(|made| {
            let Measurement { date, commit, host } = made;
            format!("{date} at commit {commit} ({host})")
        });
        let made: Vec<_> = made.collect();
        lines.push(String::new());
        let made = format!("{verb}{}.*", made.join(",\n"));
        lines.extend(made.lines().map(String::from));
        lines
    }
}

/// Returns the document with this table in place of the one with the same first line.
fn with_table(document: &str, table: &[String]) -> Option<String> {
    let lines: Vec<&str> = document.lines().collect();
    let begin = lines.iter().position(|&line| line == table[0])?;
    let rows = lines[begin..].iter().take_while(|line| line.starts_with('|'));
    let mut end = begin + rows.count();
    if lines
        .get(end + 1)
        .is_some_and(|line| line.starts_with(MEASURED) || line.starts_with(SIMULATED))
    {
        end += 2 + lines[end + 1..].iter().take_while(|line| !line.ends_with(".*")).count();
    }
    let table = table.iter().map(String::as_str);
    let new: Vec<&str> =
        lines[..begin].iter().copied().chain(table).chain(lines[end..].iter().copied()).collect();
    Some(new.join("\n") + "\n")
}

#[test]
fn documents_have_the_tables_of_their_files() {
    let folder = root().join("docs/tables");
    for entry in fs::read_dir(folder).expect("docs/tables") {
        let name = entry.expect("an entry").file_name();
        let path = format!("docs/tables/{}", name.display());
        let text = read(&path);
        let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let document = read(&file.document);
        if let Some(command) = &file.command {
            let words: Vec<&str> =
                document.split_whitespace().filter(|&word| word != "\\").collect();
            let command: Vec<&str> = command.split_whitespace().collect();
            assert!(
                words
                    .windows(command.len())
                    .any(|words| words.iter().zip(&command).all(|(word, own)| word
                        .trim_matches(['`', '(', ')', ',', ';', ':'])
                        == *own)),
                "{} lacks the command of {path}",
                file.document
            );
        }
        let new = with_table(&document, &file.lines());
        let new = new.unwrap_or_else(|| panic!("{} has no table of {path}", file.document));
        if std::env::var_os("QUELL_WRITE_TABLES").is_some() {
            fs::write(root().join(&file.document), new).expect("the document");
        } else {
            assert!(
                document == new,
                "{} has other figures than {path}: QUELL_WRITE_TABLES=1 writes them",
                file.document
            );
        }
    }
}
