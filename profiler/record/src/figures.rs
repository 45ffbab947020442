//! Formats figures for people: ranges, times, shares and counts.

use serde::{Deserialize, Serialize};

/// Bounds of a time in nanoseconds, or of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The lower bound.
    pub least: f64,
    /// The upper bound.
    pub most: f64,
}

impl Range {
    /// Adds another range to both bounds.
    #[must_use]
    pub fn plus(self, other: Range) -> Self {
        Range { least: self.least + other.least, most: self.most + other.most }
    }

    /// Divides both bounds by `all`. No share exceeds 1.
    #[must_use]
    pub fn of_all(self, all: f64) -> Self {
        Range { least: (self.least / all).min(1.0), most: (self.most / all).min(1.0) }
    }

    /// Widens the range by this relative error to both sides. An infinite error yields 0 for the lower bound.
    #[must_use]
    pub fn within(self, spread: f64) -> Self {
        match spread.is_finite() {
            true => Range {
                least: self.least * (1.0 - spread).max(0.0),
                most: self.most * (1.0 + spread),
            },
            false => Range { least: 0.0, most: self.most },
        }
    }

    /// Returns whether the bounds are too far apart to mean more than "some" or "perhaps".
    ///
    /// That's a factor of more than four, unless both are next to nothing. For example, 1 % to 10 % is vague.
    pub fn is_vague(self) -> bool {
        self.most >= 2.0 * NOTHING && self.most > 4.0 * self.least
    }

    /// Multiplies both bounds by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Range { least: self.least * factor, most: self.most * factor }
    }
}

/// The largest share that can't be distinguished from nothing.
const NOTHING: f64 = 0.005;

/// Formats nanoseconds with a suitable unit.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 10e9 => format!("{:.0} s", ns / 1e9),
        ns if ns >= 1e9 => format!("{:.1} s", ns / 1e9),
        ns if ns >= 10e6 => format!("{:.0} ms", ns / 1e6),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns if ns >= 10e3 => format!("{:.0} us", ns / 1e3),
        ns if ns >= 1e3 => format!("{:.1} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

/// Formats a range of times.
pub fn times(range: Range) -> String {
    let (least, most) = (time(range.least), time(range.most));
    if least == most { most } else { format!("{least} to {most}") }
}

/// Formats a range of times. Prints the unit only once if both bounds have the same.
pub fn span(range: Range) -> String {
    let (least, most) = (time(range.least), time(range.most));
    match (least.split_once(' '), most.split_once(' ')) {
        _ if least == most => most,
        (Some(("0", _)), _) => format!("0 to {most}"),
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {most}"),
        _ => format!("{least} to {most}"),
    }
}

/// Formats a share in percent.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.095 => format!("{p:.1} %"),
        p if p <= 0.0 => "0 %".into(),
        _ => "under 0.1 %".into(),
    }
}

/// Formats a range of shares. Uses words for a [vague](Range::is_vague) one.
pub fn percents(range: Range) -> String {
    let (least, most) = (percent(range.least), percent(range.most));
    if range.is_vague() {
        return match range.least < NOTHING {
            true => format!("up to {most}"),
            false => format!("{least} or more"),
        };
    }
    if least == most {
        return most;
    }
    format!("{} to {most}", least.trim_end_matches(" %"))
}

/// Formats a count with a space between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun, which is given in the singular.
pub fn counted(number: u64, one: &str) -> String {
    let ending = match number {
        1 => "",
        _ if one.ends_with('s') || one.ends_with("sh") => "es",
        _ => "s",
    };
    format!("{} {one}{ending}", count(number))
}

/// The outermost frames of every stack.
const ROOTS: &[&str] = &[
    "runtime.goexit",
    "runtime.gcenable",
    "start_thread",
    "clone",
    "__libc_start",
    "_start",
    "runtime.mstart",
    "runtime.systemstack",
    "runtime.rt0_go",
    "__clone",
];

/// Returns the frame of a site that identifies it best. Frames are given innermost first.
///
/// It's the outermost known frame that isn't the root of every stack. For the program's own stacks this is its own
/// frame.
pub fn place<'a>(frames: impl DoubleEndedIterator<Item = &'a str> + Clone) -> &'a str {
    let known = || frames.clone().rev().filter(|frame| *frame != "[unknown]");
    let is_root = |frame: &str| ROOTS.iter().any(|root| frame.starts_with(root));
    let said = known().find(|frame| !is_root(frame)).or_else(|| known().next());
    let none = if frames.clone().next().is_none() { "(no stack)" } else { "(unknown)" };
    said.unwrap_or(none)
}

/// The width of a column of function names.
const ROOM: usize = 36;

/// Shortens a function's name for a table. Drops angle brackets, keeps the end of a long path, and cuts the rest.
pub fn short(function: &str) -> String {
    let ended = ended(function);
    match ended.chars().count() <= ROOM {
        true => ended,
        false => ended.chars().take(ROOM - 3).chain("...".chars()).collect(),
    }
}

/// Shortens a function's name without cutting it. Returns `None` if it's still too long.
pub fn uncut(function: &str) -> Option<String> {
    let ended = ended(function);
    (ended.chars().count() <= ROOM).then_some(ended)
}

/// Drops a function's arguments, result type and type parameters, and the start of a long path.
fn ended(function: &str) -> String {
    let function = match implemented(function) {
        Some((of, rest)) => format!("{of}{rest}"),
        None => function.to_owned(),
    };
    let function = function.split(".llvm.").next().unwrap_or_default();
    let plain = without_parameters(function);
    let plain = without_arguments(&plain).replace(' ', "_");
    if plain.chars().count() <= ROOM {
        return plain;
    }
    let plain = plain.trim_end_matches("::");
    let mut ends: Vec<usize> = outside(plain, "::").map(|at| at + 2).collect();
    ends.retain(|&end| !plain[end..].is_empty() && !plain[end..].starts_with("::"));
    let before_last = ends.len().checked_sub(2).map(|at| ends[at]);
    plain[before_last.unwrap_or(0)..].to_owned()
}

/// Splits Rust's `<Type as Trait>::call` or `<Type>::call` into the type and the rest.
fn implemented(function: &str) -> Option<(&str, &str)> {
    let inner = function.strip_prefix('<')?;
    let mut depth = 0usize;
    let mut of = inner.len();
    for (at, character) in inner.char_indices() {
        match character {
            '<' => depth += 1,
            // An arrow (`fn() -> T`) closes nothing.
            '>' if inner[..at].ends_with('-') => {}
            '>' if depth == 0 => return Some((&inner[..of.min(at)], &inner[at + 1..])),
            '>' => depth -= 1,
            ' ' if depth == 0 && inner[at..].starts_with(" as ") => of = at,
            _ => {}
        }
    }
    None
}

/// Drops angle brackets and their content, but not those of C++ operators.
fn without_parameters(function: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0usize;
    let mut symbol = false;
    for character in function.chars() {
        let is_operator = matches!(character, '<' | '>' | '=' | '-');
        symbol = depth == 0 && is_operator && (symbol || plain.ends_with("operator"));
        match character {
            _ if symbol => plain.push(character),
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain
}

/// Drops the arguments of a C++ function, a `const` behind them, and the type of the result before its name.
fn without_arguments(function: &str) -> &str {
    let mut depth = 0usize;
    let mut begin = None;
    for (at, character) in function.char_indices() {
        match character {
            '(' | '{' => {
                if depth == 0 && character == '(' {
                    begin = Some(at);
                }
                depth += 1;
            }
            ')' | '}' => {
                depth = depth.saturating_sub(1);
                // Names may contain brackets: `(anonymous namespace)::f`, `operator()`, Go's `(*T).run`.
                let rest = &function[at + 1..];
                let is_last = rest.is_empty()
                    || rest.starts_with([' ', '&', '[', '.']) && !rest.starts_with(" ->");
                let is_method = rest.starts_with('.') && function[..at].contains("(*");
                if let Some(begin) = begin.filter(|&begin| begin > 0 && depth == 0)
                    && character == ')'
                    && is_last
                    && !is_method
                {
                    let named = function[..begin].trim_end();
                    let mut spaces = outside(named, " ").collect::<Vec<_>>().into_iter().rev();
                    // `operator new` and `operator bool` are names.
                    let space = spaces.find(|&space| !named[..space].ends_with("operator"));
                    return &named[space.map_or(0, |space| space + 1)..];
                }
            }
            _ => {}
        }
    }
    function
}

/// Returns where `what` stands outside of round brackets and braces.
fn outside<'a>(text: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    let mut depth = 0usize;
    text.char_indices().filter_map(move |(at, character)| {
        match character {
            '(' | '{' => depth += 1,
            ')' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0 && text[at..].starts_with(what)).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(12), "12");
        assert_eq!(time(9_940.0), "9.9 us");
        assert_eq!(times(Range { least: 1e6, most: 2.5e6 }), "1.0 ms to 2.5 ms");
        let spanned = |least, most| span(Range { least, most });
        assert_eq!(spanned(1e6, 2.5e6), "1.0 to 2.5 ms");
        assert_eq!(spanned(9e5, 2.5e6), "900 us to 2.5 ms");
        assert_eq!(spanned(0.0, 2.5e6), "0 to 2.5 ms");
        assert_eq!(spanned(2e3, 2e3), "2.0 us");
        assert_eq!(percents(Range { least: 0.031, most: 0.124 }), "3.1 to 12 %");
        assert_eq!(percent(0.0003), "under 0.1 %");
        let said = |least, most| percents(Range { least, most });
        assert_eq!(said(0.0001, 0.2), "up to 20 %");
        assert_eq!(said(0.02, 0.2), "2.0 % or more");
        assert_eq!(said(0.0, 0.004), "0 to 0.4 %");
    }

    #[test]
    fn names_of_functions_fit_a_table() {
        assert_eq!(short("handle_request"), "handle_request");
        assert_eq!(short("runtime.(*scavengerState).run"), "runtime.(*scavengerState).run");
        let long = "rustc_query_impl::execution::try_execute_query::<rustc_middle::query::caches::DefIdCache<[u8; 32]>, false>";
        assert_eq!(short(long), "execution::try_execute_query");
        assert_eq!(
            short("<std::sys::thread::unix::Thread>::new::thread_start"),
            "new::thread_start"
        );
        for (name, expected) in [
            ("void f<int>(std::vector<int> const&)", "f"),
            (
                "rocksdb::(anonymous namespace)::PosixEnv::Schedule(void (*)(void*), rocksdb::Env::Priority)",
                "PosixEnv::Schedule",
            ),
            (
                "ClickHouse::Allocator::freeNoTrack(DB::Memory::Chunk)",
                "ClickHouse::Allocator::freeNoTrack",
            ),
            (
                "std::pair<int, std::map<long, char>> a::b<std::less<int>>::get[abi:cxx11](int) const",
                "a::b::get[abi:cxx11]",
            ),
            ("operator new(unsigned long)", "operator_new"),
            ("bool operator< <int>(A<int> const&, A<int> const&)", "operator<"),
            ("std::ostream& operator<<(std::ostream&, X)", "operator<<"),
            ("X::operator->() const", "X::operator->"),
            ("X::operator()(int) const [clone .cold]", "X::operator()"),
            ("run()::{lambda(int)#1}::operator()(int) const", "run()::{lambda(int)#1}::operator()"),
            ("main.(*Cache).Put", "main.(*Cache).Put"),
            ("<alloc::vec::Vec<T> as core::ops::Drop>::drop", "alloc::vec::Vec::drop"),
            ("<fn() -> A<B> as Run>::run", "fn()_->_A::run"),
            ("pac_decay_to_limit.llvm.19309765512", "pac_decay_to_limit"),
            ("LazyCompile:*run /app/x.js:10:3", "LazyCompile:*run_/app/x.js:10:3"),
            ("()", "()"),
            ("a)b(c", "a)b(c"),
        ] {
            assert_eq!(short(name), expected);
        }
        assert_eq!(short(&"x".repeat(400)).chars().count(), 36);
        assert_eq!(short("a<b<c"), "a");
        assert_eq!(short(""), "");
    }
}
