//! Finds a mutant's piece of source, and inserts a call of the [selector](crate::selector) there.
//!
//! Pieces are compared token by token, without spaces, line breaks and comments. If several mutants share a piece, the
//! selector is called for each; a piece inside another has its own call.

use crate::list::{Mutant, Place};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Stmt};

/// A token and its range in the text.
struct Token {
    text: String,
    at: Range<usize>,
}

/// Appends tokens in the order of the text, including brackets.
fn tokens(stream: TokenStream, into: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let bracket = |text: &str, span: proc_macro2::Span| Token {
                    text: text.to_string(),
                    at: span.byte_range(),
                };
                into.push(bracket(open, group.span_open()));
                tokens(group.stream(), into);
                // A last comma or semicolon before a bracket is a matter of layout.
                if into.last().is_some_and(|last| last.text == ",") {
                    into.pop();
                }
                into.push(bracket(close, group.span_close()));
            }
            other => into.push(Token { text: other.to_string(), at: other.span().byte_range() }),
        }
    }
}

/// Returns the tokens of a text.
fn tokens_of(text: &str) -> Result<Vec<Token>, String> {
    let stream: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut all = Vec::new();
    tokens(stream, &mut all);
    Ok(all)
}

/// The bodies of all functions with one name.
struct Functions<'n> {
    name: &'n str,
    bodies: Vec<Range<usize>>,
}

impl Functions<'_> {
    fn note(&mut self, signature: &syn::Signature, body: Option<&Block>) {
        if signature.ident == self.name {
            self.bodies.extend(body.map(|body| body.span().byte_range()));
        }
    }
}

impl<'a> Visit<'a> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.note(&item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.note(&item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.note(&item.sig, item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
    }
}

/// A parsed source file.
struct Source<'s> {
    text: &'s str,
    tokens: Vec<Token>,
    parsed: syn::File,
}

impl<'s> Source<'s> {
    fn read(text: &'s str) -> Result<Self, String> {
        Ok(Source {
            text,
            tokens: tokens_of(text)?,
            parsed: syn::parse_file(text).map_err(|error| format!("{error}"))?,
        })
    }

    /// Returns the range of a piece.
    fn find(&self, place: &Place) -> Result<Range<usize>, String> {
        let wanted = tokens_of(&place.stands)?;
        if wanted.is_empty() {
            return Err("`stands` is empty".into());
        }
        let bodies = match &place.function {
            None => std::iter::once(0..self.text.len()).collect(),
            Some(name) => {
                let mut functions = Functions { name, bodies: Vec::new() };
                functions.visit_file(&self.parsed);
                if functions.bodies.is_empty() {
                    return Err(format!("there is no function `{name}`"));
                }
                functions.bodies
            }
        };
        let is_wanted = |run: &&[Token]| {
            run.iter().zip(&wanted).all(|(a, b)| a.text == b.text)
                && bodies.iter().any(|body| body.contains(&run[0].at.start))
        };
        let runs = self.tokens.windows(wanted.len()).filter(is_wanted);
        let found: Vec<_> = runs.map(|run| run[0].at.start..run[run.len() - 1].at.end).collect();
        match &found[..] {
            [only] => Ok(only.clone()),
            [] => Err(format!("nothing there reads `{}`", place.stands)),
            several => {
                let line = |at: &Range<usize>| {
                    (self.text[..at.start].matches('\n').count() + 1).to_string()
                };
                let lines = several.iter().map(line).collect::<Vec<_>>().join(" and ");
                let stands = &place.stands;
                Err(format!("`{stands}` stands in lines {lines}: name more of it, or its function"))
            }
        }
    }
}

/// The form of a piece, which decides how we insert a choice.
enum Form {
    /// An expression.
    Value,
    /// Statements that bind these variables for the code after them.
    Statements(Vec<String>),
}

/// The variables that a pattern binds.
struct BoundNames(Vec<String>);

impl<'a> Visit<'a> for BoundNames {
    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        let mutable = if pattern.mutability.is_some() { "mut " } else { "" };
        self.0.push(format!("{mutable}{}", pattern.ident));
        visit::visit_pat_ident(self, pattern);
    }
}

fn form_of(stands: &str) -> Result<Form, String> {
    if let Ok(expr) = syn::parse_str::<Expr>(stands) {
        let block = matches!(
            expr,
            Expr::If(_)
                | Expr::Match(_)
                | Expr::ForLoop(_)
                | Expr::While(_)
                | Expr::Loop(_)
                | Expr::Block(_)
                | Expr::Unsafe(_)
        );
        return Ok(match block {
            true => Form::Statements(Vec::new()),
            false => Form::Value,
        });
    }
    let block: Block = syn::parse_str(&format!("{{ {stands} }}"))
        .map_err(|error| format!("neither an expression nor statements: {error}"))?;
    let mut names = BoundNames(Vec::new());
    for statement in &block.stmts {
        if let Stmt::Local(local) = statement {
            names.visit_pat(&local.pat);
        }
    }
    Ok(Form::Statements(names.0))
}

/// A piece of source that mutants replace.
struct Anchor<'m> {
    at: Range<usize>,
    form: Form,
    /// The name, number and replacement of each mutant.
    mutants: Vec<(&'m str, u32, &'m str)>,
}

/// Returns the file's text with a selector call at each place of these mutants. `selector` is the path of its module
/// there.
///
/// # Errors
/// A line for each mutant whose piece is missing, not unique, or overlaps another one's.
pub fn instrument<'m>(
    file: &str,
    text: &str,
    mutants: impl IntoIterator<Item = &'m Mutant>,
    selector: &str,
) -> Result<String, Vec<String>> {
    let source = Source::read(text).map_err(|error| vec![format!("{file}: {error}")])?;
    let mut wrong = Vec::new();
    let mut anchors: BTreeMap<(usize, Reverse<usize>), Anchor<'m>> = BTreeMap::new();
    for mutant in mutants {
        for place in mutant.places.iter().filter(|place| place.file == file) {
            let found = source.find(place).and_then(|at| Ok((at, form_of(&place.stands)?)));
            match found {
                Ok((at, form)) => {
                    let key = (at.start, Reverse(at.end));
                    let anchor = anchors.entry(key);
                    let anchor = anchor.or_insert(Anchor { at, form, mutants: Vec::new() });
                    anchor.mutants.push((&mutant.name, mutant.number, &place.instead));
                }
                Err(why) => {
                    let function = place.function.as_deref();
                    let function = function.map_or(String::new(), |name| format!(", fn {name}"));
                    wrong.push(format!("{}: {file}{function}: {why}", mutant.name));
                }
            }
        }
    }
    let anchors: Vec<Anchor<'_>> = anchors.into_values().collect();
    for (index, outer) in anchors.iter().enumerate() {
        for inner in &anchors[index + 1..] {
            if inner.at.start < outer.at.end && inner.at.end > outer.at.end {
                wrong.push(format!(
                    "{file}: the pieces of {} and {} overlap",
                    outer.mutants[0].0, inner.mutants[0].0
                ));
            }
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut anchors = &anchors[..];
    Ok(write(text, 0..text.len(), &mut anchors, selector))
}

/// Returns a part of the text with the choices of its anchors, which it takes from the front of the list.
fn write(text: &str, at: Range<usize>, anchors: &mut &[Anchor<'_>], selector: &str) -> String {
    let mut out = String::new();
    let mut done = at.start;
    while let [anchor, rest @ ..] = anchors
        && anchor.at.start < at.end
    {
        *anchors = rest;
        out += &text[done..anchor.at.start];
        done = anchor.at.end;
        let right = write(text, anchor.at.clone(), anchors, selector);
        let (open, value, close) = match &anchor.form {
            Form::Value => ("(".to_string(), String::new(), ")"),
            Form::Statements(names) if names.is_empty() => (String::new(), String::new(), ""),
            Form::Statements(names) => {
                let names = tuple(names);
                (format!("let {names} = "), names.replace("mut ", ""), ";")
            }
        };
        out += &open;
        for (_, number, instead) in &anchor.mutants {
            let instead = instead.trim();
            out += &format!("if {selector}::on({number}) {{ {instead} {value} }} else ");
        }
        out += &format!("{{ {right} {value} }}{close}");
    }
    out + &text[done..at.end]
}

/// Returns `a` or `(a, b)`.
fn tuple(names: &[String]) -> String {
    match names {
        [only] => only.clone(),
        names => format!("({})", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(number: u32, stands: &str, instead: &str) -> Mutant {
        Mutant {
            number,
            name: format!("M{number}"),
            clause: "C1".into(),
            mistake: String::new(),
            places: vec![Place {
                file: "a.rs".into(),
                function: Some("f".into()),
                stands: stands.into(),
                instead: instead.into(),
            }],
        }
    }

    fn of(text: &str, mutants: &[Mutant]) -> Result<String, Vec<String>> {
        instrument("a.rs", text, mutants, "s").inspect(|text| {
            syn::parse_file(text).expect("Rust");
        })
    }

    #[test]
    fn values_and_statements_are_chosen() {
        let text = "fn f() { let a = x(); // why\n y(a ==  b); } fn g() { y(a == b) }";
        let mutants = [mutant(1, "a==b", "true"), mutant(2, "a == b", "false")];
        let value = "(if s::on(1) { true  } else if s::on(2) { false  } else { a ==  b  })";
        assert_eq!(
            of(text, &mutants),
            Ok(text.replacen("a ==  b", value, 1)),
            "a value, in one function"
        );
        let both =
            [mutant(3, "let a = x(); y(a == b);", "y(c); let a = x();"), mutant(4, "x()", "z()")];
        let written = of(text, &both).expect("they stand there");
        assert!(
            written.starts_with("fn f() { let a = if s::on(3) { y(c); let a = x(); a } else { let a = (if s::on(4) { z()  } else { x()  }); // why"),
            "{written}"
        );
    }

    #[test]
    fn what_does_not_stand_once_is_named() {
        let text = "fn f() { a(); b(); c(); b(); }";
        for (mutants, said) in [
            (vec![mutant(1, "d()", "")], "M1: a.rs, fn f: nothing there reads `d()`"),
            (vec![mutant(1, "b()", "")], "stands in lines 1 and 1"),
            (vec![mutant(1, "a(); b();", ""), mutant(2, "b(); c();", "")], "M1 and M2 overlap"),
        ] {
            let wrong = of(text, &mutants).expect_err("it does not stand there once");
            assert!(wrong[0].contains(said), "{wrong:?}");
        }
    }
}
