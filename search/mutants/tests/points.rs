//! The mutants that the finder creates for snippets.

use quell_mutants::points::{mutated, of_file};

/// Returns the mutants of a snippet, as "text: change", and the snippet with all of them.
fn found(source: &str) -> (Vec<String>, String) {
    let points = of_file(source).expect("Rust");
    let mut number = 1;
    let mut numbered = Vec::new();
    let mut names = Vec::new();
    for point in &points {
        numbered.push((point, number));
        number += point.changes.len() as u32;
        names.extend(point.changes.iter().map(|change| format!("{}: {change}", point.text)));
    }
    let (text, pieces) = mutated(source, &numbered);
    for piece in pieces {
        assert!(text.is_char_boundary(piece.at.start) && text.is_char_boundary(piece.at.end));
    }
    syn::parse_file(&text).expect("still Rust");
    assert_eq!(text.lines().count(), source.lines().count(), "lines stay where they are");
    (names, text)
}

#[test]
fn a_condition_and_its_parts_are_mutated_each_once() {
    let (names, text) = found("fn f(a: u64, b: bool) { if a < 3 && b { g(); } }");
    let expected = [
        "f: returns ()",
        "g();: left out",
        "a < 3 && b: true",
        "a < 3 && b: false",
        "a < 3: true",
        "b: true",
        "a < 3 && b: `||` for `&&`",
        "a < 3: `<=` for `<`",
        "3: one more",
        "3: one less",
    ];
    assert_eq!(names, expected);
    let mutated = "fn f(a: u64, b: bool) { if crate::operators::on(1) { return; } if crate::operators::or_forced(3, \
                   ({ let decided = (crate::operators::or_true(5, crate::operators::less(8, &(a ), &( \
                   crate::operators::near(9, 3)))) ); if decided ^ crate::operators::on(7) {  \
                   crate::operators::or_true(6, b) } else { decided } })) { if !crate::operators::on(2) { g(); } } }";
    assert_eq!(text, mutated);
}

/// Returns the mutants of a function body, except the one that skips the body.
fn of_body(body: &str) -> Vec<String> {
    let (names, _) = found(&format!("enum Kind {{ One, Two }} fn f() {{ {body} }}"));
    names.into_iter().filter(|name| name != "f: returns ()").collect()
}

/// Returns the mutants of a value that is used.
fn of_value(value: &str) -> Vec<String> {
    let names = of_body(&format!("let x = {value}; g(x);"));
    let is_used = |name: &String| name != "g(x);: left out";
    names.into_iter().filter(is_used).collect()
}

#[test]
fn statements_are_left_out() {
    assert_eq!(of_body("g(); h();"), ["g();: left out", "h();: left out"]);
    assert_eq!(of_body("x = y; g()"), ["x = y;: left out", "g(): left out"]);
    assert_eq!(
        of_body("x += y; g()"),
        ["x += y;: left out", "g(): left out", "x += y: `-=` for `+=`"]
    );
    assert_eq!(of_body("loop { break; }"), ["break;: left out"]);
    assert_eq!(
        of_body("for a in b { c(a); } g();"),
        ["for a in b { c(a); }: left out", "g();: left out", "c(a);: left out"]
    );
    // The block of `else` must leave the function.
    assert_eq!(of_body("let Some(a) = b else { return; }; c(a);"), ["c(a);: left out"]);
}

#[test]
fn operators_become_others() {
    assert_eq!(of_value("a + b"), ["a + b: `-` for `+`"]);
    assert_eq!(
        of_value("a & !b | c"),
        ["a & !b | c: `&` for `|`", "a & !b: `|` for `&`", "!b: without `!`"]
    );
    assert_eq!(of_value("a.min(b)"), ["a.min(b): `max` for `min`"]);
    assert_eq!(of_value("Kind::One"), ["Kind::One: Kind::Two"]);
    assert_eq!(of_value("true"), ["true: false"]);
    assert_eq!(of_value("a == b")[2..], ["a == b: `<=` for `==`", "a == b: `>=` for `==`"]);
    // No number here is less than 0.
    assert_eq!(of_value("a == 0"), ["a == 0: true", "a == 0: false", "0: 1"]);
}

#[test]
fn arms_are_left_out_where_another_takes_the_rest() {
    let names = of_body("match a { Some(1) => g(), Some(n) if n > m => h(), _ => i() }");
    let expected = [
        "g(): left out",
        "h(): left out",
        "i(): left out",
        "Some(1): arm left out",
        "n > m: true",
        "n > m: false",
        "n > m: `>=` for `>`",
    ];
    assert_eq!(names, expected);
}

#[test]
fn functions_return_something_else() {
    let results = |kind: &str| found(&format!("fn f() -> {kind} {{ g() }}")).0;
    assert_eq!(results("bool"), ["f: returns true", "f: returns false"]);
    assert_eq!(results("Option<u8>"), ["f: returns None"]);
    assert_eq!(results("u64"), ["f: returns 0", "f: returns 1"]);
    assert_eq!(results("&str"), [""; 0]);
}

#[test]
fn what_is_not_the_protocol_is_left_alone() {
    for source in [
        "const A: u64 = 1 + 2;",
        "const fn f() -> u64 { 1 + 2 }",
        "#[cfg(test)] mod tests { fn f() -> bool { true } }",
        "#[test] fn f() { g(); }",
        "impl fmt::Debug for A { fn fmt(&self) -> bool { g(); true } }",
        "fn word_name(a: usize) -> bool { a == 5 }",
    ] {
        assert_eq!(found(source).0, [""; 0], "{source}");
    }
    assert_eq!(of_body("debug_assert!(a == b);"), [""; 0]);
    assert_eq!(of_body("self.count(Counter::Sent, 1);"), [""; 0]);
    assert_eq!(of_body("machine.note(Event::Flushed);"), [""; 0]);
    assert_eq!(of_body("cpu.stats.add(Counter::Sent, 1);"), [""; 0]);
}
