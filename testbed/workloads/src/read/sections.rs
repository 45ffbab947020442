//! Reads a workload file's other sections: memory, figure, operation, refusals.

use super::names::{Context, Names};
use super::parameters::Draft;
use super::reader::{Expressions, keep, list};
use crate::expression::{Expression, Name};
use crate::files::Reader;
use crate::script::{Figure, MemoryNeed, MessagePart, Operation, Refusal};
use crate::team::word;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use toml::de::DeTable;

pub(super) fn memory(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
) -> Option<MemoryNeed> {
    let Some(item) = document.get("memory") else {
        reader.missing(
            "memory",
            "its memory: `touched`, or `node` and `slow` if memory is to be short",
        );
        return None;
    };
    let known = ["touched", "nodes", "node", "slow", "ahead", "idle_reclaims", "together"];
    let table = reader.table("memory", item, &known)?;
    let context = Context::Static;
    let nodes = reader.or("memory.nodes", table.get("nodes"), names, context, 1);
    match (table.get("touched"), table.get("node")) {
        (Some(bytes), None) => {
            for word in ["slow", "ahead", "idle_reclaims"] {
                if let Some(item) = table.get(word) {
                    let why = "needs `node` instead of `touched`";
                    reader.refuse(item.span().start, &format!("memory.{word}"), why);
                }
            }
            let bytes = reader.expression("memory.touched", bytes, names, context)?;
            Some(MemoryNeed::Touched { bytes, nodes })
        }
        (None, Some(node)) => {
            let node = reader.expression("memory.node", node, names, context)?;
            let mut or = |word: &str| {
                reader.or(&format!("memory.{word}"), table.get(word), names, context, 0)
            };
            let (slow, idle_reclaims) = (or("slow"), or("idle_reclaims"));
            let ahead = match table.get("ahead") {
                Some(item) => Some(reader.expression("memory.ahead", item, names, context)?),
                None => None,
            };
            Some(MemoryNeed::Exact { node, slow, nodes, ahead, idle_reclaims })
        }
        _ => {
            reader.refuse(
                item.span().start,
                "memory",
                "expected `touched` (bytes that are touched; there is room) or `node` (bytes that there are)",
            );
            None
        }
    }
}

/// Reads the number of pages that a call unmaps with one flush, if the file sets it.
pub(super) fn together(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
) -> Option<Expression> {
    let memory = document.get("memory")?.get_ref().as_table()?;
    let item = memory.get("together")?;
    reader.expression("memory.together", item, names, Context::Static)
}

pub(super) fn figure(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
) -> Option<Figure> {
    let Some(item) = document.get("figure") else {
        reader.missing("figure", "the measurement: `says` and `value`");
        return None;
    };
    let table = reader.table("figure", item, &["says", "value", "more_is_better"])?;
    let (Some(says), Some(value)) = (table.get("says"), table.get("value")) else {
        reader.refuse(
            item.span().start,
            "figure",
            "expected `says`, as in \"ns per iteration\", and `value`, as in \"nanoseconds / done\"",
        );
        return None;
    };
    let more_is_better = reader.truth("figure.more_is_better", table.get("more_is_better"));
    let says = reader.text("figure.says", says);
    let value = reader.expression("figure.value", value, names, Context::Figure);
    Some(Figure { metric: keep(says?), more_is_better, value: value? })
}

pub(super) fn operation(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
) -> Option<Operation> {
    let Some(item) = document.get("operation") else {
        reader.missing("operation", "one operation: `is`, and `count` if it is not `done`");
        return None;
    };
    let known = ["is", "count", "faults", "first_cpu_works"];
    let table = reader.table("operation", item, &known)?;
    let Some(name) = table.get("is") else {
        reader.refuse(item.span().start, "operation", "expected `is`, as in \"page touched\"");
        return None;
    };
    let name = reader.text("operation.is", name);
    let count = match table.get("count") {
        Some(count) => reader.expression("operation.count", count, names, Context::Count),
        None => Some(Expression::name(Name::Shared(word::DONE as u8))),
    };
    let faults = reader.truth("operation.faults", table.get("faults"));
    let first_cpu_works = reader.truth("operation.first_cpu_works", table.get("first_cpu_works"));
    Some(Operation { name: keep(name?), count: count?, faults, first_cpu_works })
}

pub(super) fn refusals(
    reader: &mut Reader<'_>,
    document: &DeTable<'_>,
    names: &Names,
    parameters: &[Draft],
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for item in list(reader, document, "refuse") {
        let Some(table) = reader.table("refuse", item, &["when", "why"]) else {
            continue;
        };
        let (Some(when), Some(why)) = (table.get("when"), table.get("why")) else {
            let expected = "expected `when`, an expression, and `why`, a text";
            reader.refuse(item.span().start, "refuse", expected);
            continue;
        };
        let when = reader.expression("refuse.when", when, names, Context::Static);
        let Some(text) = reader.text("refuse.why", why) else {
            continue;
        };
        match said(&text, names, parameters) {
            Ok(why) => refusals.extend(when.map(|when| Refusal { when, why })),
            Err(wrong) => reader.refuse(why.span().start, "refuse.why", wrong),
        }
    }
    refusals
}

/// Splits a message with expressions in braces.
fn said(text: &str, names: &Names, parameters: &[Draft]) -> Result<Vec<MessagePart>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        pieces.push(MessagePart::Text(before.into()));
        let Some((inner, after)) = behind.split_once('}') else {
            return Err("expected `}`".into());
        };
        let place = parameters.iter().position(|known| known.name == inner);
        pieces.push(match place {
            Some(index) => MessagePart::Parameter(index as u8),
            None => MessagePart::Value(Expression::parse(inner, &mut |name| {
                names.find(name, Context::Static)
            })?),
        });
        rest = after;
    }
    pieces.push(MessagePart::Text(rest.into()));
    Ok(pieces)
}
