//! The comments above the orderings, and which belongs to which.

use crate::site::{Lost, Site};
use crate::tokens::{Kind, Strength, Use};

/// How many lines may stand between the end of a comment and the call that it is about.
const NEAR: usize = 6;

const FORM: &str = "`// ORDERING pairs with `FUNCTION`: REASON. Lost without it: RACE.`";
const PAIRS: &str = " pairs with ";
const FAILURE: &str = " on failure";
const LOST: &str = ". Lost without it: ";

/// A comment about an ordering.
struct Comment {
    /// Its last line.
    line: usize,
    strength: Strength,
    failure: bool,
    text: String,
}

/// What a line of a plain comment says, if it is one.
fn plain(line: &str) -> Option<&str> {
    let text = line.trim().strip_prefix("//")?;
    (!text.starts_with(['/', '!'])).then(|| text.trim())
}

/// The ordering that a line begins to speak about: that, whether on failure, and what follows.
fn opening(line: &str) -> Option<(Strength, bool, &str)> {
    Strength::ALL.into_iter().find_map(|strength| {
        let rest = line.strip_prefix(&strength.to_string())?;
        let failure = rest.strip_prefix(FAILURE);
        let text = failure.unwrap_or(rest).strip_prefix(PAIRS)?;
        Some((strength, failure.is_some(), text))
    })
}

/// The comments of a file.
fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut within = false;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(line) = plain(line) else {
            within = false;
            continue;
        };
        if let Some((strength, failure, text)) = opening(line) {
            found.push(Comment {
                line: number,
                strength,
                failure,
                text: text.to_string(),
            });
            within = true;
        } else if let (true, Some(comment)) = (within, found.last_mut()) {
            comment.text.push(' ');
            comment.text.push_str(line);
            comment.line = number;
        }
    }
    found
}

impl Comment {
    /// Its parts: the partners, the reason, and what is lost.
    fn parts(&self) -> Option<(String, String, Lost)> {
        let (partners, rest) = self.text.split_once(": ")?;
        let (reason, lost) = rest.rsplit_once(LOST)?;
        let lost = lost.strip_suffix('.')?;
        let mutant = lost
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'));
        let lost = match mutant {
            Some(name) => Lost::Mutant(name.to_string()),
            None => Lost::Race(lost.to_string()),
        };
        Some((partners.to_string(), reason.to_string(), lost))
    }
}

/// Gives each ordering of a file the comment above it; says in `wrong` where that fails.
pub(crate) fn attach(
    file: &str,
    uses: Vec<Use>,
    text: &str,
    sites: &mut Vec<Site>,
    wrong: &mut Vec<String>,
) {
    let mut comments = comments(text).into_iter().peekable();
    for used in uses {
        let (line, strength) = (used.line, used.strength);
        let mut say = |line: usize, what: String| wrong.push(format!("{file}:{line}: {what}"));
        let failure = used.kind == Kind::Failure;
        // A comment that an ordering before this one should have taken.
        while let Some(stray) = comments.next_if(|comment| comment.line + NEAR < line) {
            say(
                stray.line,
                format!(
                    "no {} follows this comment; move or remove it",
                    stray.strength
                ),
            );
        }
        let Some(comment) = comments.next_if(|comment| comment.line < line) else {
            say(
                line,
                format!("{strength} without a comment; write {FORM} above it"),
            );
            continue;
        };
        if (comment.strength, comment.failure) != (strength, failure) {
            let name =
                |strength, failure| format!("{strength}{}", if failure { FAILURE } else { "" });
            let (says, is) = (
                name(comment.strength, comment.failure),
                name(strength, failure),
            );
            say(
                comment.line,
                format!("the comment is about {says}, the ordering that follows is {is}"),
            );
            continue;
        }
        let Some((partners, reason, lost)) = comment.parts() else {
            say(
                comment.line,
                format!("the comment must have the form {FORM}"),
            );
            continue;
        };
        sites.push(Site {
            file: file.to_string(),
            line,
            owner: used.owner,
            function: used.function,
            call: used.call,
            strength,
            kind: used.kind,
            nth: used.nth,
            partners,
            reason,
            lost,
        });
    }
    for stray in comments {
        wrong.push(format!(
            "{file}:{}: no {} follows this comment; move or remove it",
            stray.line, stray.strength
        ));
    }
}
