//! The list of edits to Linux's sources, and carrying it out on the text of a file.
//!
//! An edit names one line of Linux and what goes before it, after it, or in its place. A line that is not there, or
//! there more than once, stops everything: the source is another one than the list was written for, and a kernel with
//! half of the edits would be worse than none. Nothing is guessed.

use serde::Deserialize;

/// One change of one file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, from the root of Linux's tree.
    pub file: String,
    /// What it is for.
    pub why: String,
    /// The line, without the blanks around it.
    pub at: String,
    /// A line before it, without the blanks around it: `at` is the first of its kind after this one.
    pub within: Option<String>,
    /// Lines that go before it.
    #[serde(default)]
    pub before: String,
    /// Lines that go after it.
    #[serde(default)]
    pub after: String,
    /// Lines that take its place.
    pub instead: Option<String>,
}

/// Why an edit cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The line that it is bound to does not occur where it should.
    #[error("{file}: no line \"{line}\"{}: the source is not the one that integrations/linux/edits.toml was written for ({why})", after(.within))]
    Missing {
        /// The file.
        file: String,
        /// The line.
        line: String,
        /// Where it was looked for.
        within: Option<String>,
        /// What the edit is for.
        why: String,
    },
    /// It occurs more than once, so that it names no place.
    #[error("{file}: {count} lines \"{line}\"{}: say with `within` in integrations/linux/edits.toml which is meant ({why})", after(.within))]
    Ambiguous {
        /// The file.
        file: String,
        /// The line.
        line: String,
        /// Where it was looked for.
        within: Option<String>,
        /// How often it occurs.
        count: usize,
        /// What the edit is for.
        why: String,
    },
}

fn after(within: &Option<String>) -> String {
    match within {
        Some(line) => format!(" after \"{line}\""),
        None => String::new(),
    }
}

/// The list of edits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    edit: Vec<Edit>,
}

/// Reads a list of edits.
///
/// # Errors
/// If it is none.
pub fn read(text: &str) -> Result<Vec<Edit>, toml::de::Error> {
    toml::from_str::<List>(text).map(|list| list.edit)
}

impl Edit {
    /// The text with this edit made.
    ///
    /// # Errors
    /// If the line does not occur, or not exactly once without `within`.
    pub fn apply(&self, text: &str) -> Result<String, Misfit> {
        let lines: Vec<&str> = text.lines().collect();
        let from = match &self.within {
            None => 0,
            Some(within) => 1 + self.only(&lines, 0, within, None)?,
        };
        let at = match &self.within {
            None => self.only(&lines, 0, &self.at, None)?,
            Some(_) => self.first(&lines, from, &self.at)?,
        };
        let mut result = String::with_capacity(text.len() + self.before.len() + self.after.len());
        for (index, line) in lines.iter().enumerate() {
            if index != at {
                result.push_str(line);
                result.push('\n');
                continue;
            }
            result.push_str(&self.before);
            match &self.instead {
                Some(instead) => result.push_str(instead),
                None => {
                    result.push_str(line);
                    result.push('\n');
                }
            }
            result.push_str(&self.after);
        }
        Ok(result)
    }

    /// The first line of this content, from a line on.
    fn first(&self, lines: &[&str], from: usize, wanted: &str) -> Result<usize, Misfit> {
        let found = lines[from..].iter().position(|line| line.trim() == wanted);
        found
            .map(|index| from + index)
            .ok_or_else(|| self.missing(wanted))
    }

    /// The only line of this content.
    fn only(
        &self,
        lines: &[&str],
        from: usize,
        wanted: &str,
        within: Option<&String>,
    ) -> Result<usize, Misfit> {
        let count = lines[from..]
            .iter()
            .filter(|line| line.trim() == wanted)
            .count();
        if count > 1 {
            return Err(Misfit::Ambiguous {
                file: self.file.clone(),
                line: wanted.to_string(),
                within: within.cloned(),
                count,
                why: self.why.clone(),
            });
        }
        self.first(lines, from, wanted)
    }

    fn missing(&self, line: &str) -> Misfit {
        Misfit::Missing {
            file: self.file.clone(),
            line: line.to_string(),
            within: self.within.clone().filter(|within| within != line),
            why: self.why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"
[[edit]]
file = "mm/some.c"
why = "a test"
within = "int some(void)"
at = "return 0;"
before = "\tprepare();\n"
"#;

    const TEXT: &str = "int other(void)\n{\n\treturn 0;\n}\n\nint some(void)\n{\n\treturn 0;\n}\n";

    fn edit() -> Edit {
        read(LIST).unwrap().remove(0)
    }

    #[test]
    fn a_line_is_found_where_it_is_meant() {
        let edited = edit().apply(TEXT).unwrap();
        let expected = TEXT.replace("int some(void)\n{\n", "int some(void)\n{\n\tprepare();\n");
        assert_eq!(edited, expected);
    }

    #[test]
    fn a_line_can_be_replaced_and_followed() {
        let edit = Edit {
            instead: Some("\treturn 1;\n".into()),
            before: String::new(),
            after: "\t/* not reached */\n".into(),
            ..edit()
        };
        let expected = "int some(void)\n{\n\treturn 1;\n\t/* not reached */\n}\n";
        assert!(edit.apply(TEXT).unwrap().ends_with(expected));
    }

    #[test]
    fn a_missing_line_names_file_and_place() {
        let error = edit().apply("int some(void)\n{\n}\n").unwrap_err();
        let text = error.to_string();
        for part in ["mm/some.c", "\"return 0;\"", "int some(void)", "a test"] {
            assert!(text.contains(part), "{text}");
        }
        let error = edit().apply("\treturn 0;\n").unwrap_err();
        assert!(
            error.to_string().contains("no line \"int some(void)\":"),
            "{error}"
        );
    }

    #[test]
    fn a_line_that_names_no_place_is_refused() {
        let edit = Edit {
            within: None,
            ..edit()
        };
        let error = edit.apply(TEXT).unwrap_err();
        assert!(
            matches!(error, Misfit::Ambiguous { count: 2, .. }),
            "{error}"
        );
    }

    /// Each edit of the real list can be read, and does something.
    #[test]
    fn the_list_of_the_integration_is_one() {
        let list = read(include_str!("../../../integrations/linux/edits.toml")).unwrap();
        assert!(list.len() > 20);
        for edit in list {
            let does = !edit.before.is_empty() || !edit.after.is_empty() || edit.instead.is_some();
            assert!(
                does && !edit.why.is_empty() && !edit.at.is_empty(),
                "{edit:?}"
            );
            assert_eq!(edit.at, edit.at.trim(), "{}", edit.file);
            for inserted in [&edit.before, &edit.after].into_iter().chain(&edit.instead) {
                assert!(inserted.is_empty() || inserted.ends_with('\n'), "{edit:?}");
            }
        }
    }
}
