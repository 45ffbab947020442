//! The meaning of names in a workload file, and where each is valid.

use crate::expression::{Name, Symbol};
use crate::script::LOCALS;
use crate::team::word;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The context of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Context {
    /// Only parameters.
    Parameters,
    /// Parameters and the number of CPUs.
    Static,
    /// These, and the number of this CPU.
    Place,
    /// A program: all names except those for figures.
    Program,
    /// The value of a store to a range.
    Stored,
    /// The figure: parameters, `nanoseconds`, `done`.
    Figure,
    /// The number of operations: parameters and `done`.
    Count,
}

/// The most control words of a file: the kernel's limit without the team's own.
const SHARED: usize = 60 - word::FREE;

/// Names that always exist.
const FIXED: [(&str, Name, &[Context]); 9] = {
    use Context::*;
    [
        ("cpu", Name::Cpu, &[Place, Program, Stored]),
        ("cpus", Name::Cpus, &[Static, Place, Program, Stored, Figure]),
        ("now", Name::Now, &[Program, Stored]),
        ("stopped", Name::Stopped, &[Program, Stored]),
        ("offset", Name::Offset, &[Stored]),
        ("nanoseconds", Name::Nanoseconds, &[Figure]),
        ("done", Name::Shared(word::DONE as u8), &[Program, Stored, Figure, Count]),
        ("began", Name::Shared(word::BEGIN as u8), &[Program, Stored]),
        ("ended", Name::Shared(word::END as u8), &[Program, Stored]),
    ]
};

/// The names of a file.
#[derive(Default)]
pub(crate) struct Names {
    parameters: Vec<String>,
    /// Shared words: the name, the first word, and their number.
    shared: Vec<(String, u8, u8)>,
    /// Variables of this CPU. Those without a name are empty.
    locals: Vec<String>,
}

/// Returns the message for a name that is not valid in this context.
fn without_value(name: &str, context: Context) -> String {
    let known = FIXED.iter().filter(|known| known.2.contains(&context));
    let known: String = known.map(|known| format!("`{}`, ", known.0)).collect();
    format!("`{name}` has no value here; these have one: {known}parameters")
}

/// Returns whether a word can be a name.
pub(crate) fn is_name(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(|c| c.is_ascii_lowercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

impl Names {
    /// Returns an error if a new object can't have this name.
    fn free(&self, name: &str) -> Result<(), String> {
        if !is_name(name) {
            return Err(format!(
                "`{name}`: expected a name of small letters, digits and underscores"
            ));
        }
        let taken = FIXED.iter().any(|(known, ..)| *known == name)
            || self.parameters.iter().any(|known| known == name)
            || self.shared.iter().any(|(known, ..)| known == name);
        if taken {
            return Err(format!("`{name}` means something else already"));
        }
        Ok(())
    }

    pub fn add_parameter(&mut self, name: &str) -> Result<(), String> {
        self.free(name)?;
        self.parameters.push(name.to_string());
        Ok(())
    }

    pub fn add_shared(&mut self, name: &str, count: u8) -> Result<(), String> {
        self.free(name)?;
        let used: usize = self.shared.iter().map(|(.., count)| usize::from(*count)).sum();
        if used + usize::from(count) > SHARED {
            return Err(format!("more than {SHARED} shared words in all"));
        }
        let base = (word::FREE + used) as u8;
        self.shared.push((name.to_string(), base, count));
        Ok(())
    }

    /// Starts another thread with its own variables.
    pub fn forget_locals(&mut self) {
        self.locals.clear();
    }

    /// Returns the meaning of a name of `[shared]`.
    fn shared(&self, name: &str) -> Option<Symbol> {
        let &(_, base, count) = self.shared.iter().find(|(known, ..)| known == name)?;
        Some(match count {
            1 => Symbol::One(Name::Shared(base)),
            _ => Symbol::Many { base, count },
        })
    }

    fn find_local(&self, name: &str) -> Option<Symbol> {
        let is_it = |known: &String| !known.is_empty() && known == name;
        let index = self.locals.iter().position(is_it)?;
        Some(Symbol::One(Name::Local(index as u8)))
    }

    /// Returns the variable that a statement sets, created if necessary.
    pub fn place(&mut self, name: &str) -> Result<Symbol, String> {
        if name == "done" {
            return Ok(Symbol::One(Name::Shared(word::DONE as u8)));
        }
        if let Some(found) = self.shared(name).or_else(|| self.find_local(name)) {
            return Ok(found);
        }
        self.free(name)?;
        Ok(Symbol::One(Name::Local(self.local(name)?)))
    }

    /// Creates a variable without a name.
    pub fn hidden(&mut self) -> Result<u8, String> {
        self.local("")
    }

    fn local(&mut self, name: &str) -> Result<u8, String> {
        if self.locals.len() == LOCALS {
            return Err(format!("more than {LOCALS} variables, those of loops included"));
        }
        self.locals.push(name.to_string());
        Ok((self.locals.len() - 1) as u8)
    }

    /// Returns the meaning of a name in an expression.
    pub fn find(&self, name: &str, context: Context) -> Result<Symbol, String> {
        if let Some((_, fixed, contexts)) = FIXED.iter().find(|(known, ..)| *known == name) {
            if contexts.contains(&context) {
                return Ok(Symbol::One(*fixed));
            }
            return Err(without_value(name, context));
        }
        if let Some(index) = self.parameters.iter().position(|known| known == name) {
            return Ok(Symbol::One(Name::Parameter(index as u8)));
        }
        let program = matches!(context, Context::Program | Context::Stored);
        match self.shared(name) {
            Some(found) if program => return Ok(found),
            Some(_) => return Err(without_value(name, context)),
            None => {}
        }
        if program && let Some(found) = self.find_local(name) {
            return Ok(found);
        }
        Err(format!("no `{name}` here; there are {}", self.known(context)))
    }

    /// Returns the shared word with this name, for statements that change it in place.
    pub fn shared_word(&self, name: &str) -> Result<u8, String> {
        match self.shared(name) {
            Some(Symbol::One(Name::Shared(word))) => Ok(word),
            _ => Err(format!("`{name}` is not a single word of [shared]")),
        }
    }

    fn known(&self, context: Context) -> String {
        let mut known: Vec<&str> = self.parameters.iter().map(String::as_str).collect();
        if matches!(context, Context::Program | Context::Stored) {
            known.extend(self.shared.iter().map(|(name, ..)| name.as_str()));
            let named = self.locals.iter().map(String::as_str);
            known.extend(named.filter(|name| !name.is_empty()));
        }
        let fixed = FIXED.iter().filter(|(.., contexts)| contexts.contains(&context));
        known.extend(fixed.map(|(name, ..)| *name));
        if known.is_empty() {
            return "none".into();
        }
        known.join(", ")
    }
}
