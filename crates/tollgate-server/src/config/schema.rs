//! The JSON schema of a configuration file, for editors: made from the tables of
//! [`keys`](super::keys).

use super::keys::{Origin, SECTIONS, Section, Shape};
use serde_json::{Map, Value, json};

/// Returns the JSON schema of a configuration file.
///
/// `crates/tollgate-server/config.schema.json` is its text. Editors that speak YAML show the keys
/// with their meaning when a file starts with
/// `# yaml-language-server: $schema=config.schema.json`.
#[must_use]
pub fn schema() -> Value {
    let definitions: Map<String, Value> =
        SECTIONS.iter().map(|section| (id(section), of_section(section))).collect();
    let mut root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tollgate configuration",
        "description": "A superset of the files of envoyproxy/ratelimit.",
        "$ref": "#/$defs/file",
    });
    root["$defs"] = definitions.into();
    root
}

fn id(section: &Section) -> String {
    let name = section.name.trim_start_matches("a ").trim_start_matches("an ");
    name.replace(' ', "_")
}

fn of_section(section: &Section) -> Value {
    let properties: Map<String, Value> = section
        .keys
        .iter()
        .map(|key| {
            let mut value = of_shape(key.shape);
            let ours = match key.origin {
                Origin::Reference => "",
                Origin::Ours => " (Tollgate only)",
            };
            value["description"] = format!("{}{ours}", key.about).into();
            (key.name.to_owned(), value)
        })
        .collect();
    json!({"type": ["object", "null"], "properties": properties, "additionalProperties": false})
}

fn of_shape(shape: Shape) -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    let period = json!({"type": "string", "pattern": "^([0-9]+ *[a-zµ]+ *)+$|^0$"});
    let off = json!({"enum": ["off", false]});
    match shape {
        Shape::Text => json!({"type": ["string", "number", "boolean", "null"]}),
        Shape::Texts => {
            let text = json!({"type": ["string", "number", "boolean"]});
            json!({"anyOf": [text, {"type": "array", "items": text}, {"type": "null"}]})
        }
        Shape::Words(words) => {
            let word = json!({"enum": words});
            json!({"anyOf": [word, {"type": "array", "items": word, "minItems": 1}]})
        }
        Shape::Flag => json!({"type": ["boolean", "null"]}),
        Shape::Count => count,
        Shape::CountOrOff => json!({"anyOf": [count, off]}),
        Shape::Percent => json!({"anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 100},
            {"type": "string", "pattern": "^(100|[0-9]{1,2}) *%?$"},
        ]}),
        Shape::Percents => {
            let percent = json!({"anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 100},
                {"type": "string", "pattern": "^(100|[1-9][0-9]?) *%?$"},
            ]});
            let list = json!({"type": "array", "items": percent, "minItems": 1, "maxItems": 8});
            json!({"anyOf": [percent, list]})
        }
        Shape::Period => period,
        Shape::PeriodOrOff => json!({"anyOf": [period, {"const": 0}, off]}),
        Shape::Path => json!({"type": "string", "minLength": 1}),
        Shape::Endpoint => json!({"anyOf": [
            {"type": "string", "pattern": "^unix:.+$|^.+:[0-9]+$"},
            off,
        ]}),
        Shape::OneOf(words) if words.contains(&"minute") => {
            let any_case: Vec<String> = words.iter().map(|word| any_case(word)).collect();
            let pattern = format!("^({})$", any_case.join("|"));
            json!({"type": "string", "pattern": pattern, "examples": words})
        }
        Shape::OneOf(words) => json!({"enum": words}),
        Shape::WordOr(words, section) => {
            json!({"anyOf": [{"enum": words}, {"const": false}, reference(section)]})
        }
        Shape::Map(section) => reference(section),
        Shape::Named(section) => {
            let named = json!({"anyOf": [reference(section), {"type": "string"}]});
            json!({"type": "object", "additionalProperties": named})
        }
        Shape::List(section) => json!({"type": ["array", "null"], "items": reference(section)}),
        Shape::Lists(section) => {
            let entry = reference(section);
            let list = json!({"type": "array", "items": entry, "minItems": 1});
            json!({"type": "array", "minItems": 1, "items": {"anyOf": [list, entry]}})
        }
        Shape::Json => json!({}),
    }
}

fn reference(section: &Section) -> Value {
    json!({"$ref": format!("#/$defs/{}", id(section))})
}

/// Returns a pattern for a word in any case.
fn any_case(word: &str) -> String {
    word.chars().map(|c| format!("[{}{}]", c.to_ascii_uppercase(), c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To renew the file: `TOLLGATE_WRITE_GOLDEN=1 cargo test -p tollgate-server --lib schema`.
    #[test]
    fn the_file_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config.schema.json");
        if std::env::var_os("TOLLGATE_WRITE_GOLDEN").is_some() {
            std::fs::write(path, format!("{:#}\n", schema())).unwrap();
        }
        // Compared as values: the order of keys depends on features of other crates.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let current: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            current == schema(),
            "config.schema.json is not current; run TOLLGATE_WRITE_GOLDEN=1 cargo test \
             -p tollgate-server --lib schema"
        );
    }

    #[test]
    fn the_schema_has_every_key_of_the_readers() {
        let schema = schema();
        for section in SECTIONS {
            let properties = &schema["$defs"][id(section)]["properties"];
            for key in section.keys {
                assert!(!key.about.is_empty());
                let has_text = properties[key.name]["description"].is_string();
                assert!(has_text, "{} of {}", key.name, section.name);
            }
        }
    }

    #[test]
    fn every_section_is_reachable_and_listed() {
        let text = schema().to_string();
        for section in SECTIONS {
            assert!(text.contains(&format!("\"#/$defs/{}\"", id(section))), "{}", section.name);
        }
        let named = text.matches("\"$ref\"").count();
        assert!(named >= SECTIONS.len());
    }

    /// Somebody who runs the program looks here first.
    #[test]
    fn the_user_page_has_every_key_and_every_lint() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let page = std::fs::read_to_string(path).unwrap();
        for section in SECTIONS {
            for key in section.keys {
                let (name, ours) = (key.name, key.origin == Origin::Ours);
                let written =
                    page.contains(&format!("`{name}`")) || page.contains(&format!("{name}:"));
                assert!(written, "docs/config.md lacks {name} of {} (ours: {ours})", section.name);
            }
        }
        for lint in super::super::LINTS {
            assert!(page.contains(&format!("`{lint}`")), "docs/config.md lacks the lint {lint}");
        }
    }
}
