//! The orderings in the tokens of a source file.
//!
//! Tokens, not syntax trees: the orderings inside of macros (the rules are in one) are found like all others.

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};
use std::fmt;

/// An ordering above `Relaxed`, or a fence of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strength {
    /// `Acquire`.
    Acquire,
    /// `Release`.
    Release,
    /// `AcqRel`.
    AcqRel,
    /// `SeqCst`.
    SeqCst,
    /// `Hardware::fence`, which orders what table walkers see, too.
    Fence,
}

impl Strength {
    pub(crate) const ALL: [Strength; 5] = [
        Strength::Acquire,
        Strength::Release,
        Strength::AcqRel,
        Strength::SeqCst,
        Strength::Fence,
    ];

    fn named(name: &str) -> Option<Strength> {
        let known =
            |strength: &Strength| strength.to_string() == name && *strength != Strength::Fence;
        Self::ALL.into_iter().find(known)
    }
}

/// As the source and the comments call it.
impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a call does with an ordering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It reads.
    Load,
    /// It writes.
    Store,
    /// It reads and writes at once.
    Modification,
    /// It is the load that a compare-and-exchange is when it fails.
    Failure,
    /// It is a fence.
    Fence,
}

impl Kind {
    fn of(call: &str, argument: usize) -> Kind {
        match call {
            "load" | "snapshot" | "is_within" | "is_within_seat" | "contains" => Kind::Load,
            "store" => Kind::Store,
            "fence" => Kind::Fence,
            "compare_exchange" if argument == 3 => Kind::Failure,
            _ => Kind::Modification,
        }
    }
}

/// An ordering in the source.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) owner: Option<String>,
    pub(crate) function: String,
    pub(crate) call: String,
    /// The line of the call.
    pub(crate) line: usize,
    pub(crate) strength: Strength,
    pub(crate) kind: Kind,
    pub(crate) nth: usize,
}

/// All orderings above `Relaxed` and fences of the machine in a file, in its order, but for imports and what
/// `#[cfg(test)]` leaves out.
pub(crate) fn orderings(text: &str) -> Result<Vec<Use>, LexError> {
    let mut found = Vec::new();
    let place = Place {
        owner: None,
        function: String::new(),
        call: None,
    };
    walk(text.parse()?, place, &mut found);
    Ok(found)
}

#[derive(Clone)]
struct Place {
    owner: Option<String>,
    function: String,
    /// The call whose arguments these tokens are, and its line.
    call: Option<(String, usize)>,
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, is: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == is)
}

fn walk(stream: TokenStream, outer: Place, found: &mut Vec<Use>) {
    let mut place = outer.clone();
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let (mut argument, mut nth) = (0, 0);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let before = at.checked_sub(1).and_then(|index| tokens.get(index));
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => argument += 1,
            TokenTree::Punct(punct) if punct.as_char() == '#' && is_test(tokens.get(at + 1)) => {
                at = end_of_item(&tokens, at);
            }
            TokenTree::Ident(word) if word == "use" => at = end_of_item(&tokens, at),
            TokenTree::Ident(word) if word == "fn" => {
                place.function = ident(tokens.get(at + 1)).unwrap_or_default();
            }
            TokenTree::Ident(word) if word == "impl" && begins_item(before) => {
                place.owner = implemented(&tokens[at + 1..]);
            }
            TokenTree::Ident(word) => {
                let (call, line) = place.call.clone().unwrap_or_default();
                if let Some(strength) = Strength::named(&word.to_string()) {
                    found.push(Use {
                        owner: place.owner.clone(),
                        function: place.function.clone(),
                        kind: Kind::of(&call, argument),
                        call,
                        line: if line == 0 {
                            word.span().start().line
                        } else {
                            line
                        },
                        strength,
                        nth,
                    });
                    nth += 1;
                }
            }
            TokenTree::Group(group) => {
                let callee = (group.delimiter() == Delimiter::Parenthesis)
                    .then(|| before.and_then(|name| Some((ident(Some(name))?, name))))
                    .flatten();
                let call = callee.map(|(name, token)| (name, token.span().start().line));
                if let Some((name, line)) = &call
                    && name == "fence"
                    && group.stream().is_empty()
                    && is_punct(at.checked_sub(2).and_then(|index| tokens.get(index)), '.')
                {
                    found.push(Use {
                        owner: place.owner.clone(),
                        function: place.function.clone(),
                        call: name.clone(),
                        line: *line,
                        strength: Strength::Fence,
                        kind: Kind::Fence,
                        nth: 0,
                    });
                }
                let inner = Place {
                    call,
                    ..place.clone()
                };
                walk(group.stream(), inner, found);
                if group.delimiter() == Delimiter::Brace {
                    // The body that ends the function or the `impl`.
                    place = outer.clone();
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether these are the brackets of `#[cfg(test)]`.
fn is_test(brackets: Option<&TokenTree>) -> bool {
    brackets.is_some_and(|token| token.to_string().replace(' ', "") == "[cfg(test)]")
}

/// The last token of the item that begins there: its braces or its semicolon.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    // An import has braces of its own before its semicolon.
    let import = ident(tokens.get(from)).is_some();
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !import,
        token => is_punct(Some(token), ';'),
    };
    tokens[from..]
        .iter()
        .position(ends)
        .map_or(tokens.len(), |length| from + length)
}

/// Whether an `impl` behind this token opens an item and is no type.
fn begins_item(before: Option<&TokenTree>) -> bool {
    match before {
        None | Some(TokenTree::Group(_)) => true,
        Some(TokenTree::Ident(word)) => word == "unsafe",
        token => is_punct(token, ';'),
    }
}

/// The type of an `impl`, whose tokens after that word these are.
fn implemented(tokens: &[TokenTree]) -> Option<String> {
    let (mut depth, mut name) = (0, None);
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            TokenTree::Ident(word) if word == "where" => break,
            TokenTree::Ident(word) if depth == 0 => name = Some(word.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
            TokenTree::Punct(punct) if punct.as_char() == '>' => {
                let arrow = index.checked_sub(1).and_then(|before| tokens.get(before));
                depth -= i32::from(!is_punct(arrow, '-'));
            }
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, String, Strength, Kind, usize, usize)> {
        let uses = orderings(text).unwrap();
        let row = |found: Use| {
            let owner = found.owner.map(|owner| owner + "::").unwrap_or_default();
            let function = owner + &found.function;
            (
                function,
                found.call,
                found.strength,
                found.kind,
                found.line,
                found.nth,
            )
        };
        uses.into_iter().map(row).collect()
    }

    #[test]
    fn orderings_are_found_with_their_calls() {
        let text = "use core::Ordering::{Acquire, Release};\n\
            impl<W: Word> Drop for Guard<'_, W> { fn drop(&mut self) {\n\
            self.word\n.compare_exchange(a, b,\n SeqCst,\n Ordering::Acquire).is_ok(); } }\n\
            fn free(x: &impl Fn() -> u8) { word.load(Relaxed); hw.fence(); W::fence(Release); fence() }\n\
            rules! { fn order() -> Ordering { Ordering::AcqRel } }\n\
            #[cfg(test)] mod tests { fn f() { a.load(SeqCst) } }";
        let row = |function: &str, call: &str, strength, kind, line, nth| {
            (
                function.to_string(),
                call.to_string(),
                strength,
                kind,
                line,
                nth,
            )
        };
        use {Kind::*, Strength as S};
        assert_eq!(
            found(text),
            [
                row(
                    "Guard::drop",
                    "compare_exchange",
                    S::SeqCst,
                    Modification,
                    4,
                    0
                ),
                row("Guard::drop", "compare_exchange", S::Acquire, Failure, 4, 1),
                row("free", "fence", S::Fence, Kind::Fence, 7, 0),
                row("free", "fence", S::Release, Kind::Fence, 7, 0),
                row("order", "", S::AcqRel, Modification, 8, 0),
            ]
        );
    }
}
