//! Finds the places where a source file can be mutated, and builds the text with all of its mutants.
//!
//! A file is parsed as Rust. Each place that can be mutated becomes a [`Point`] with one or more mutants, and text to
//! insert around it: calls of the [selector](crate::operators) with the number of the point's first mutant. No
//! expression is duplicated, so the file grows with the number of points, however they are nested. No line is added,
//! so line numbers stay the same.
//!
//! Skipped: tests, constants and `const fn`, macros (including assertions), and code that only formats or counts.

use proc_macro2::Span;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Block, Expr, ImplItem, Item, Lit, Pat, ReturnType, Signature, Stmt,
    TraitItem, Type, UnOp,
};

/// A place of a file that can be mutated.
#[derive(Clone, Debug)]
pub struct Point {
    /// The function, after its type.
    pub function: String,
    /// The mutated text in the source, on one line.
    pub text: String,
    /// The line, from 1.
    pub line: usize,
    /// Each mutant's change.
    pub changes: Vec<String>,
    /// Insertions; the number of the first mutant replaces `{n}`, that of the second `{m}`.
    edits: Vec<Edit>,
}

impl Point {
    /// Returns whether it keeps control from leaving. The code after it may then use values that were moved or
    /// borrowed.
    pub fn stays(&self) -> bool {
        let leaves = ["return", "break", "continue"].iter().any(|word| self.text.starts_with(word));
        leaves && self.changes == ["left out"]
    }
}

#[derive(Clone, Debug)]
struct Edit {
    /// The replaced range; empty for an insertion.
    at: Range<usize>,
    text: String,
    /// Whether it belongs to the text that ends here instead of the text that begins here.
    closes: bool,
    /// The range of the point, which distinguishes outer from inner ones.
    whole: Range<usize>,
    /// The order of points that are the same expression. The outer one comes first.
    order: usize,
}

/// A piece of mutated text, and the point that it came from.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The range in the mutated text.
    pub at: Range<usize>,
    /// The index of the point.
    pub point: usize,
    /// Whether the piece is inserted text instead of the whole point.
    pub inserted: bool,
}

/// Returns the points of a file.
///
/// # Errors
/// If the file isn't Rust.
pub fn of_file(source: &str) -> Result<Vec<Point>, syn::Error> {
    let file = syn::parse_file(source)?;
    let mut enums = Enums::default();
    enums.visit_file(&file);
    Ok(of_parsed(source, &file, &enums.0))
}

/// Enumerations whose variants have no fields, with the variants.
pub type Variants = BTreeMap<String, Vec<String>>;

/// Finds enumerations of at most four variants without fields.
#[derive(Default)]
pub struct Enums(pub Variants);

impl<'a> Visit<'a> for Enums {
    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        if item.variants.iter().all(|variant| variant.fields.is_empty()) && item.variants.len() <= 4
        {
            let names = item.variants.iter().map(|variant| variant.ident.to_string());
            self.0.insert(item.ident.to_string(), names.collect());
        }
    }
}

/// Returns the points of a parsed file. `enums` are the enumerations that it uses.
pub fn of_parsed(source: &str, file: &syn::File, enums: &Variants) -> Vec<Point> {
    let mut finder = Finder {
        source,
        enums,
        function: None,
        decided: HashSet::new(),
        walked: HashSet::new(),
        points: Vec::new(),
        order: 0,
    };
    finder.visit_file(file);
    finder.points
}

/// Returns the file's text with the mutants of these points. Each point has the number of its first mutant.
pub fn mutated(source: &str, points: &[(&Point, u32)]) -> (String, Vec<Piece>) {
    let mut edits: Vec<(usize, &Edit, u32)> = Vec::new();
    for (index, (point, number)) in points.iter().enumerate() {
        edits.extend(point.edits.iter().map(|edit| (index, edit, *number)));
    }
    // At one place, ends come first, inner before outer; then beginnings, outer before inner.
    edits.sort_by_key(|(_, edit, _)| {
        let (start, end, order) =
            (edit.whole.start as isize, edit.whole.end as isize, edit.order as isize);
        let inside = match edit.closes {
            true => [-start, end, -order],
            false => [-end, start, order],
        };
        (edit.at.start, !edit.closes, inside)
    });
    let mut text = String::new();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut whole: Vec<Option<Range<usize>>> = vec![None; points.len()];
    let mut done = 0;
    for (point, edit, number) in edits {
        text.push_str(&source[done..edit.at.start]);
        let from = text.len();
        let numbered = edit.text.replace("{n}", &number.to_string());
        text.push_str(&numbered.replace("{m}", &(number + 1).to_string()));
        done = edit.at.end;
        pieces.push(Piece { at: from..text.len(), point, inserted: true });
        let whole = &mut whole[point];
        whole.get_or_insert(from..from).end = text.len();
    }
    text.push_str(&source[done..]);
    let wholes = whole.into_iter().enumerate();
    pieces.extend(wholes.filter_map(|(point, at)| Some(Piece { at: at?, point, inserted: false })));
    (text, pieces)
}

/// The path of the selector's functions.
const SELECTOR: &str = "crate::operators::";

struct Finder<'a> {
    source: &'a str,
    enums: &'a Variants,
    /// The visited function; `None` outside functions, where nothing is mutated.
    function: Option<String>,
    /// Expressions, by range, whose truth value a point around them mutates.
    decided: HashSet<(usize, usize)>,
    /// Blocks, by their beginning, whose statements were visited.
    walked: HashSet<usize>,
    points: Vec<Point>,
    order: usize,
}

impl Finder<'_> {
    fn add(
        &mut self,
        span: Range<usize>,
        line: usize,
        changes: &[&str],
        edits: Vec<(Range<usize>, String, bool)>,
    ) {
        let Some(function) = &self.function else {
            return;
        };
        self.order += 1;
        let words: Vec<&str> = self.source[span.clone()].split_whitespace().collect();
        let edits = edits.into_iter().map(|(at, text, closes)| Edit {
            at,
            text,
            closes,
            whole: span.clone(),
            order: self.order,
        });
        self.points.push(Point {
            function: function.clone(),
            text: words.join(" "),
            line,
            changes: changes.iter().map(|change| (*change).to_string()).collect(),
            edits: edits.collect(),
        });
    }

    /// Adds a point for an expression, with text before and after it.
    fn around(&mut self, span: Span, changes: &[&str], before: &str, behind: &str) {
        let at = span.byte_range();
        let edits = vec![
            (at.start..at.start, before.to_string(), false),
            (at.end..at.end, behind.to_string(), true),
        ];
        self.add(at, span.start().line, changes, edits);
    }

    /// A call of the selector around an expression.
    fn call(&mut self, span: Span, changes: &[&str], name: &str) {
        self.around(span, changes, &format!("{SELECTOR}{name}({{n}}, "), ")");
    }

    /// Mutates the truth value of a condition.
    fn condition(&mut self, expr: &Expr, truth: bool, falsity: bool) {
        match expr {
            Expr::Let(_) => return,
            Expr::Paren(inner) => return self.condition(&inner.expr, truth, falsity),
            _ => {}
        }
        let place = expr.span().byte_range();
        self.decided.insert((place.start, place.end));
        if chains_let(expr) || matches!(expr, Expr::Lit(_)) {
            return self.operands(expr);
        }
        match (truth, falsity) {
            (true, true) => self.call(expr.span(), &["true", "false"], "or_forced"),
            (true, false) => self.call(expr.span(), &["true"], "or_true"),
            (false, true) => self.call(expr.span(), &["false"], "or_false"),
            (false, false) => {}
        }
        self.operands(expr);
    }

    /// Adds points that leave out each operand of `&&` and `||`.
    fn operands(&mut self, expr: &Expr) {
        let Expr::Binary(binary) = expr else { return };
        let and = match binary.op {
            BinOp::And(_) => true,
            BinOp::Or(_) => false,
            _ => return,
        };
        for operand in [&*binary.left, &*binary.right] {
            self.condition(operand, and, !and);
        }
    }

    /// Mutates the statements of a block; `unit` means that its value is `()`.
    fn statements(&mut self, block: &Block, unit: bool) {
        if !self.walked.insert(block.brace_token.span.open().byte_range().start) {
            return;
        }
        for (index, statement) in block.stmts.iter().enumerate() {
            let last = index + 1 == block.stmts.len();
            let Stmt::Expr(expr, semicolon) = statement else {
                continue;
            };
            if is_statistics(expr) {
                continue;
            }
            let ends = semicolon.is_some() || !last || unit;
            match expr {
                Expr::Call(_) | Expr::MethodCall(_) if ends => self.left_out(statement, expr),
                Expr::Assign(_) | Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => {
                    self.left_out(statement, expr)
                }
                Expr::Binary(binary) if is_assigning(&binary.op) => self.left_out(statement, expr),
                Expr::ForLoop(_) if ends => self.left_out(statement, expr),
                Expr::If(_) | Expr::Match(_) | Expr::Block(_) | Expr::Unsafe(_) if ends => {
                    self.unit_value(expr)
                }
                _ => {}
            }
        }
    }

    /// Visits an expression that must not end, so the code that leaves it can't be left out.
    fn diverges(&mut self, expr: &Expr) {
        let block = match expr {
            Expr::Block(block) => &block.block,
            Expr::If(branch) => {
                if let Some((_, other)) = &branch.else_branch {
                    self.diverges(other);
                }
                &branch.then_branch
            }
            _ => return,
        };
        self.walked.insert(block.brace_token.span.open().byte_range().start);
        if let Some(Stmt::Expr(last, _)) = block.stmts.last() {
            self.diverges(last);
        }
    }

    /// Adds a point that leaves a statement out. Text after its semicolon stays in place.
    fn left_out(&mut self, statement: &Stmt, expr: &Expr) {
        let attributed = matches!(expr, Expr::Call(call) if !call.attrs.is_empty())
            || matches!(expr, Expr::MethodCall(call) if !call.attrs.is_empty());
        if attributed {
            return;
        }
        let before = format!("if !{SELECTOR}on({{n}}) {{ ");
        let semicolon = matches!(statement, Stmt::Expr(_, Some(_)));
        self.around(statement.span(), &["left out"], &before, if semicolon { " }" } else { "; }" });
    }

    /// Visits an expression whose value is `()`: its branches are blocks of statements.
    fn unit_value(&mut self, expr: &Expr) {
        match expr {
            Expr::If(branch) => {
                self.statements(&branch.then_branch, true);
                if let Some((_, other)) = &branch.else_branch {
                    self.unit_value(other);
                }
            }
            Expr::Match(choice) => {
                for arm in &choice.arms {
                    match &*arm.body {
                        body @ (Expr::Call(_) | Expr::MethodCall(_)) if !is_statistics(body) => {
                            let before = format!("if !{SELECTOR}on({{n}}) {{ ");
                            self.around(body.span(), &["left out"], &before, "; }");
                        }
                        body => self.unit_value(body),
                    }
                }
            }
            Expr::Block(block) => self.statements(&block.block, true),
            Expr::Unsafe(block) => self.statements(&block.block, true),
            _ => {}
        }
    }

    /// Visits a function of this type, or of none.
    fn function(&mut self, owner: &str, attrs: &[Attribute], sig: &Signature, block: &Block) {
        let idle = block.stmts.iter().all(|statement| matches!(statement, Stmt::Local(_)));
        let names = NAMES.iter().any(|name| sig.ident == name);
        if is_test(attrs) || sig.constness.is_some() || self.function.is_some() || idle || names {
            return;
        }
        self.function = Some(match owner {
            "" => sig.ident.to_string(),
            owner => format!("{owner}::{}", sig.ident),
        });
        let open = block.brace_token.span.open().byte_range().end;
        let line = sig.ident.span().start().line;
        let name = sig.ident.span().byte_range();
        for result in results_of(&sig.output) {
            let text = match *result {
                "()" => format!(" if {SELECTOR}on({{n}}) {{ return; }}"),
                value => format!(" if {SELECTOR}on({{n}}) {{ return {value}; }}"),
            };
            let change = format!("returns {result}");
            self.add(name.clone(), line, &[&change], vec![(open..open, text, true)]);
        }
        let unit = matches!(sig.output, ReturnType::Default);
        let single = unit
            && block.stmts.len() == 1
            && matches!(
                block.stmts[0],
                Stmt::Expr(Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_), _)
            );
        if single {
            self.walked.insert(block.brace_token.span.open().byte_range().start);
        }
        self.statements(block, unit);
        visit::visit_block(self, block);
        self.function = None;
    }

    /// Exchanges `&&` and `||`.
    fn logical(&mut self, binary: &syn::ExprBinary, change: &str, choice: &str) {
        if chains_let(&binary.left) || chains_let(&binary.right) {
            return;
        }
        let (at, operator) = (binary.span().byte_range(), binary.op.span().byte_range());
        let edits = vec![
            (at.start..at.start, "({ let decided = (".to_string(), false),
            (operator, format!("); if decided {choice} {SELECTOR}on({{n}}) {{ "), true),
            (at.end..at.end, " } else { decided } })".to_string(), true),
        ];
        self.add(at, binary.span().start().line, &[change], edits);
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        use BinOp::*;
        let (by_value, by_reference, into) = (["", ""], ["&", "&"], ["&mut ", ""]);
        let has = |is: fn(&Expr) -> bool| is(&binary.left) || is(&binary.right);
        let (changes, name, sigils): (&[&str], _, _) = match binary.op {
            And(_) => return self.logical(binary, "`||` for `&&`", "^"),
            Or(_) => return self.logical(binary, "`&&` for `||`", "=="),
            // Variants of an enumeration have no order, and no number here is less than 0.
            Eq(_) | Ne(_) if has(is_variant) || has(is_zero) => return,
            Lt(_) => (&["`<=` for `<`"], "less", by_reference),
            Le(_) => (&["`<` for `<=`"], "less_or_same", by_reference),
            Gt(_) => (&["`>=` for `>`"], "more", by_reference),
            Ge(_) => (&["`>` for `>=`"], "more_or_same", by_reference),
            Eq(_) => (&["`<=` for `==`", "`>=` for `==`"], "same", by_reference),
            Ne(_) => (&["`>` for `!=`", "`<` for `!=`"], "other", by_reference),
            Add(_) => (&["`-` for `+`"], "add", by_value),
            Sub(_) => (&["`+` for `-`"], "sub", by_value),
            BitAnd(_) => (&["`|` for `&`"], "bit_and", by_value),
            BitOr(_) => (&["`&` for `|`"], "bit_or", by_value),
            Shl(_) => (&["`>>` for `<<`"], "shl", by_value),
            Shr(_) => (&["`<<` for `>>`"], "shr", by_value),
            AddAssign(_) => (&["`-=` for `+=`"], "add_to", into),
            SubAssign(_) => (&["`+=` for `-=`"], "sub_from", into),
            BitAndAssign(_) => (&["`|=` for `&=`"], "and_into", into),
            BitOrAssign(_) => (&["`&=` for `|=`"], "or_into", into),
            _ => return,
        };
        let (at, operator) = (binary.span().byte_range(), binary.op.span().byte_range());
        let edits = vec![
            (at.start..at.start, format!("{SELECTOR}{name}({{n}}, {}(", sigils[0]), false),
            (operator, format!("), {}(", sigils[1]), true),
            (at.end..at.end, "))".to_string(), true),
        ];
        self.add(at, binary.span().start().line, changes, edits);
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let name = call.method.to_string();
        let change = match (&*name, call.args.len()) {
            ("min", 1) => "`max` for `min`",
            ("max", 1) => "`min` for `max`",
            ("any", 1) => "`all` for `any`",
            ("all", 1) => "`any` for `all`",
            _ => return,
        };
        let whole = call.span().byte_range();
        let dot = call.dot_token.span().byte_range().start;
        let open = call.paren_token.span.open().byte_range().end;
        let edits = vec![
            (whole.start..whole.start, format!("{SELECTOR}{name}({{n}}, ("), false),
            (dot..open, "), ".to_string(), true),
        ];
        let line = call.method.span().start().line;
        self.add(whole, line, &[change], edits);
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Fn(item) => self.function("", &item.attrs, &item.sig, &item.block),
            Item::Impl(block) if !is_test(&block.attrs) && !only_formats(block) => {
                let owner = name_of(&block.self_ty);
                for item in &block.items {
                    if let ImplItem::Fn(item) = item {
                        self.function(&owner, &item.attrs, &item.sig, &item.block);
                    }
                }
            }
            Item::Trait(of) => {
                for item in &of.items {
                    if let TraitItem::Fn(item) = item
                        && let Some(block) = &item.default
                    {
                        self.function(&of.ident.to_string(), &item.attrs, &item.sig, block);
                    }
                }
            }
            Item::Mod(item) if !is_test(&item.attrs) => visit::visit_item_mod(self, item),
            _ => {}
        }
    }

    fn visit_pat(&mut self, _: &'a Pat) {}

    fn visit_type(&mut self, _: &'a Type) {}

    fn visit_local(&mut self, local: &'a syn::Local) {
        if let Some(syn::LocalInit { diverge: Some((_, expr)), .. }) = &local.init {
            self.diverges(expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}

    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_path(&mut self, _: &'a syn::Path) {}

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, true, true);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_match(&mut self, choice: &'a syn::ExprMatch) {
        // If the last arm takes the rest, each other arm can be left out.
        let rest = choice
            .arms
            .last()
            .is_some_and(|arm| arm.guard.is_none() && matches!(arm.pat, Pat::Wild(_)));
        if rest {
            // An arm with a guard is left out if the guard is made false.
            for arm in choice.arms.iter().rev().skip(1).filter(|arm| arm.guard.is_none()) {
                let (at, line) = (arm.pat.span().byte_range(), arm.pat.span().start().line);
                let text = format!(" if !{SELECTOR}on({{n}})");
                self.add(at.clone(), line, &["arm left out"], vec![(at.end..at.end, text, true)]);
            }
        }
        visit::visit_expr_match(self, choice);
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.statements(block, false);
        visit::visit_block(self, block);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if is_statistics(expr) {
            return;
        }
        let place = expr.span().byte_range();
        let decided = self.decided.contains(&(place.start, place.end));
        match expr {
            Expr::Binary(binary) => {
                if !decided && is_condition(&binary.op) && !chains_let(expr) {
                    self.condition(expr, true, true);
                }
                self.binary(binary);
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) && !decided => {
                let (whole, sign) = (unary.span(), unary.op.span().byte_range());
                let at = whole.byte_range();
                let edits = vec![
                    (sign, format!("{SELECTOR}not({{n}}, "), false),
                    (at.end..at.end, ")".to_string(), true),
                ];
                self.add(at, whole.start().line, &["without `!`"], edits);
            }
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) if number.base10_digits() == "0" => {
                    self.call(expr.span(), &["1"], "up")
                }
                Lit::Int(_) => self.call(expr.span(), &["one more", "one less"], "near"),
                Lit::Bool(value) if value.value => self.call(expr.span(), &["false"], "or_false"),
                Lit::Bool(_) => self.call(expr.span(), &["true"], "or_true"),
                _ => {}
            },
            Expr::Path(path) if path.qself.is_none() && path.path.segments.len() == 2 => {
                let [kind, variant] =
                    [0, 1].map(|index| path.path.segments[index].ident.to_string());
                let variants = self.enums.get(&kind).filter(|variants| variants.contains(&variant));
                for other in variants.into_iter().flatten().filter(|other| **other != variant) {
                    let before = format!("(if {SELECTOR}on({{n}}) {{ {kind}::{other} }} else {{ ");
                    self.around(expr.span(), &[&format!("{kind}::{other}")], &before, " })");
                }
            }
            Expr::If(branch) => {
                self.condition(&branch.cond, true, true);
                // An `if` without `else` has the value `()`.
                if branch.else_branch.is_none() {
                    self.statements(&branch.then_branch, true);
                }
            }
            // If its condition were always true, the loop would never end.
            Expr::While(turn) => {
                self.condition(&turn.cond, false, true);
                self.statements(&turn.body, true);
            }
            Expr::ForLoop(turn) => self.statements(&turn.body, true),
            Expr::Loop(turn) => self.statements(&turn.body, true),
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                if matches!(&*name, "then" | "then_some") {
                    self.condition(&call.receiver, true, true);
                }
                for argument in &call.args {
                    if let Expr::Closure(closure) = argument
                        && TESTS.contains(&&*name)
                        && !matches!(&*closure.body, Expr::Block(_))
                    {
                        self.condition(&closure.body, true, true);
                    }
                }
                self.method(call);
            }
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_stmt(&mut self, statement: &'a Stmt) {
        if !matches!(statement, Stmt::Expr(expr, _) if is_statistics(expr)) {
            visit::visit_stmt(self, statement);
        }
    }
}

/// Functions that only name words in timelines, charge modelled costs, or judge the manager's lists.
const NAMES: [&str; 4] = ["word_name", "has_word", "charge", "check"];

/// Methods whose closure makes a decision.
const TESTS: [&str; 12] = [
    "any",
    "all",
    "filter",
    "find",
    "position",
    "take_while",
    "skip_while",
    "is_some_and",
    "is_none_or",
    "retain",
    "is_ok_and",
    "rposition",
];

fn is_condition(operator: &BinOp) -> bool {
    use BinOp::*;
    matches!(operator, And(_) | Or(_) | Lt(_) | Le(_) | Gt(_) | Ge(_) | Eq(_) | Ne(_))
}

fn is_assigning(operator: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        operator,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | BitXorAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

fn is_zero(expr: &Expr) -> bool {
    matches!(expr, Expr::Lit(literal) if matches!(&literal.lit, Lit::Int(number) if number.base10_digits() == "0"))
}

/// Returns whether an expression names a variant, for example `Kind::Variant`.
fn is_variant(expr: &Expr) -> bool {
    let Expr::Path(path) = expr else { return false };
    let name = path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
    path.path.segments.len() > 1 && name.contains(char::is_lowercase)
}

/// Returns whether an expression matches patterns with `let`. Such a condition isn't a value.
fn chains_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) if is_condition(&binary.op) => {
            chains_let(&binary.left) || chains_let(&binary.right)
        }
        _ => false,
    }
}

/// Returns whether it only affects statistics, modelled costs or reports to the judge: `self.count(Counter::Sent, 1)`,
/// `machine.charge(Work::Area)`.
fn is_statistics(expr: &Expr) -> bool {
    let Expr::MethodCall(call) = expr else {
        return false;
    };
    let of_stats = matches!(&*call.receiver, Expr::Field(field) if matches!(&field.member, syn::Member::Named(name) if name == "stats"));
    // An iterator's `count` takes no arguments. The judge alone reads what `note` reports.
    let counts = call.method == "count" && !call.args.is_empty();
    counts || call.method == "charge" || call.method == "note" || of_stats
}

/// Returns whether an item is compiled only for tests.
fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::NameValue(_) => false,
    })
}

/// Returns whether a block only defines how a value is printed.
fn only_formats(block: &syn::ItemImpl) -> bool {
    let of = block.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
    of.is_some_and(|of| ["Debug", "Display", "Error"].iter().any(|name| of.ident == name))
}

/// Returns the name of a type.
fn name_of(kind: &Type) -> String {
    match kind {
        Type::Path(path) => {
            path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default()
        }
        Type::Reference(reference) => name_of(&reference.elem),
        _ => String::new(),
    }
}

/// Returns the results that a function can be mutated to return.
fn results_of(output: &ReturnType) -> &'static [&'static str] {
    let ReturnType::Type(_, kind) = output else {
        return &["()"];
    };
    let path = match &**kind {
        Type::Path(path) => &path.path,
        Type::Tuple(_) => return &["Default::default()"],
        _ => return &[],
    };
    match path.segments.last().map(|last| last.ident.to_string()).as_deref() {
        Some("bool") => &["true", "false"],
        Some("Option") => &["None"],
        Some("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64") => &["0", "1"],
        Some("Result") => &["Ok(())"],
        Some("Self") | None => &[],
        Some(_) => &["Default::default()"],
    }
}
