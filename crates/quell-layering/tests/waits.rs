//! Every call of the engine says whether it may wait: a caller that holds a lock for which another CPU spins with
//! interrupts off has to know before the call.

use std::path::Path;
use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta, Type, Visibility};

/// What an embedder calls on a CPU.
const TYPES: [&str; 4] = ["Engine", "Batch", "InFlight", "Residue"];

fn documentation(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        Meta::List(list) if list.path.is_ident("doc") => Some(list.tokens.to_string()),
        _ => None,
    };
    let lines: Vec<String> = attributes.iter().filter_map(line).collect();
    lines.join("\n")
}

#[test]
fn every_call_of_the_engine_says_whether_it_may_wait() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quell/src");
    let (mut calls, mut silent) = (0, Vec::new());
    for file in std::fs::read_dir(source).expect("the engine") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a text");
        let blocks = syn::parse_file(&text).expect("Rust").items.into_iter();
        let blocks = blocks.filter_map(|item| match item {
            Item::Impl(block) if block.trait_.is_none() => Some(block),
            _ => None,
        });
        for block in blocks {
            let of = match &*block.self_ty {
                Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
                _ => None,
            };
            let Some(of) = of.filter(|of| TYPES.contains(&&**of)) else {
                continue;
            };
            for item in block.items {
                let ImplItem::Fn(call) = item else { continue };
                let says = documentation(&call.attrs);
                let public = matches!(call.vis, Visibility::Public(_));
                if !public || says.lines().any(|line| line == "hidden") {
                    continue;
                }
                calls += 1;
                if !says.to_lowercase().contains("wait") {
                    silent.push(format!("{of}::{}", call.sig.ident));
                }
            }
        }
    }
    assert!(calls > 50, "{calls} calls were found");
    assert!(
        silent.is_empty(),
        "whether it may wait is not said of {}",
        silent.join(", ")
    );
}
