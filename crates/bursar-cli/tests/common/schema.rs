//! Schemas in the documents, and what is wrong with a value that should match one.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Returns the schema of a name in a document.
pub(crate) fn block(document: &str, name: &str) -> Value {
    let start = format!("```json {name}\n");
    let (_, rest) = document.split_once(&start).unwrap_or_else(|| panic!("the document says nothing of {name}"));
    let (text, _) = rest.split_once("\n```").expect("a block that ends");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("the document on {name}: {error}"))
}

/// Returns what is wrong with `value`, which should match `schema`.
pub(crate) fn wrong(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    let unlike = |kind: &str| vec![format!("{at} is {value}, and should be {kind}")];
    match (schema, value) {
        (Value::String(kind), Value::Null) if kind.ends_with('?') => Vec::new(),
        (Value::String(kind), value) => {
            let is_so = match kind.trim_end_matches('?') {
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "number" => value.is_number(),
                "integer" | "bytes" => value.is_u64() || value.is_i64(),
                other => panic!("the document: {other:?} is no type"),
            };
            if is_so { Vec::new() } else { unlike(kind) }
        }
        (Value::Array(kinds), Value::Array(elements)) => {
            let best = |element: &Value| {
                let ways = kinds.iter().map(|kind| wrong(element, kind, &format!("{at}[]")));
                ways.min_by_key(Vec::len).unwrap_or_default()
            };
            elements.iter().flat_map(best).collect()
        }
        (Value::Object(fields), Value::Object(values)) => wrong_fields(values, fields, at),
        (Value::Array(_), _) => unlike("a list"),
        _ => unlike("an object"),
    }
}

fn wrong_fields(values: &Map<String, Value>, fields: &Map<String, Value>, at: &str) -> Vec<String> {
    let plain = |name: &str| name.trim_end_matches('?').to_owned();
    let known: BTreeSet<String> = fields.keys().map(|name| plain(name)).collect();
    let unknown =
        values.keys().filter(|name| !known.contains(*name)).map(|name| format!("{at}.{name} is not documented"));
    let of_field = |(name, schema): (&String, &Value)| match values.get(&plain(name)) {
        None => vec![format!("{at}.{} is documented and missing", plain(name))],
        Some(Value::Null) if name.ends_with('?') => Vec::new(),
        Some(value) => wrong(value, schema, &format!("{at}.{}", plain(name))),
    };
    unknown.chain(fields.iter().flat_map(of_field)).collect()
}
