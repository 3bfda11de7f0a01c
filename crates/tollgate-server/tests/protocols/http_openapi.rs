//! `/openapi.json` matches the server: every path and field exists, and its examples work.

use crate::http_support::{CONFIG, Client, start};
use serde_json::Value;
use tollgate_server::server::Settings;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// Fields that the reader knows and that some paths reject.
const EXTRA: [&str; 5] = ["life_ms", "id", "limits", "cost", "hits"];

async fn document(client: &mut Client) -> Value {
    client.ask("GET", "/openapi.json", "").await.json()
}

/// Follows a reference.
pub(crate) fn resolved<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(path) => document.pointer(path.trim_start_matches('#')).expect(path),
        None => value,
    }
}

/// Checks a value against a schema, as far as this document uses schemas.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolved(document, schema);
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match &schema["type"] {
        Value::String(wanted) => assert_eq!(wanted, name, "{at}"),
        Value::Array(wanted) => {
            assert!(wanted.iter().any(|wanted| wanted == name), "{at}: {value}")
        }
        _ => {}
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value}");
    }
    if let Some(object) = value.as_object() {
        for field in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(field.as_str().unwrap()), "{at} has no {field}: {value}");
        }
        if schema["additionalProperties"] == false {
            for (field, value) in object {
                let inner = &schema["properties"][field];
                assert!(!inner.is_null(), "{at}.{field} is not in the document");
                check(document, inner, value, &format!("{at}.{field}"));
            }
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], item, &format!("{at}[]"));
    }
}

#[tokio::test]
async fn every_path_is_there_with_just_its_methods() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let document = document(&mut client).await;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let got = client.ask(&method.to_uppercase(), path, "").await;
            let is_there = !matches!(got.status, 404 | 405);
            assert_eq!(is_there, item.get(method).is_some(), "{method} {path}: {got:?}");
            if let Some(allow) = got.header("allow") {
                for method in METHODS {
                    let is_said = allow.split(", ").any(|said| said.eq_ignore_ascii_case(method));
                    assert_eq!(is_said, item.get(method).is_some(), "{path}: {allow}");
                }
            }
        }
    }
}

#[tokio::test]
async fn its_examples_work_and_answers_are_as_it_says() {
    let (address, _, hand) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let document = document(&mut client).await;
    let mut examples = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(operation) = item.get("post").filter(|_| path.starts_with("/v1/")) else {
            continue;
        };
        let content = &operation["requestBody"]["content"]["application/json"];
        for (name, example) in content["examples"].as_object().unwrap() {
            hand.advance(std::time::Duration::from_secs(24 * 3600));
            let reserve = r#"{"policy":"big","key":"x","cost":9}"#;
            let id =
                client.post("/v1/reserve", reserve).await.json()["id"].as_str().unwrap().to_owned();
            check(&document, &content["schema"], &example["value"], &format!("{path} {name}"));
            let enter = r#"{"policy":"exports","key":"alice"}"#;
            let id = match &**path {
                "/v1/renew" | "/v1/leave" => {
                    client.post("/v1/enter", enter).await.json()["id"].as_str().unwrap().to_owned()
                }
                _ => id,
            };
            let body = example["value"].to_string().replace("{id}", &id);
            let got = client.post(path, &body).await;
            assert_eq!(got.status, 200, "{path} {name}: {got:?}");
            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            check(&document, schema, &got.json(), path);
            for header in operation["responses"]["200"]["headers"].as_object().into_iter().flatten()
            {
                // Only a decision without its store is degraded, and a store in memory never fails.
                let is_sent = header.0 != "Tollgate-Degraded";
                assert_eq!(got.header(header.0).is_some(), is_sent, "{path}: {}", header.0);
            }
            examples += 1;
        }
    }
    assert_eq!(examples, 3 + 3 + 1 + 2 + 1 + 3 + 3 + 2 + 1 + 1 + 2);
    for (target, status) in
        [("/v1/check?policy=api&key=q", "200"), ("/v1/check?policy=shut&key=q", "429")]
    {
        let got = client.ask("GET", target, "").await;
        let responses = &document["paths"]["/v1/check"]["get"]["responses"];
        check(
            &document,
            &responses[status]["content"]["application/json"]["schema"],
            &got.json(),
            target,
        );
    }
    let got = client.ask("GET", "/v1/policies", "").await.json();
    let policy = &document["components"]["schemas"]["Policy"];
    got["policies"]
        .as_array()
        .unwrap()
        .iter()
        .for_each(|got| check(&document, policy, got, "policy"));
    let got = client.post("/v1/check", "{").await.json();
    check(&document, &document["components"]["schemas"]["Problem"], &got, "problem");
}

#[tokio::test]
async fn every_field_of_the_document_is_taken() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let document = document(&mut client).await;
    for (path, schema) in [
        ("/v1/check", "Question"),
        ("/v1/reserve", "ReserveQuestion"),
        ("/v1/settle", "Settlement"),
        ("/v1/renew", "Lease"),
        ("/v1/report", "Report"),
    ] {
        let fields = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        for field in fields.keys() {
            // An object is the wrong type for each of them; the error must not be that the field is
            // unknown.
            let got = client.post(path, &format!(r#"{{"{field}":{{}}}}"#)).await;
            let detail = got.json()["detail"].to_string();
            assert!(!detail.contains("there is no field"), "{path} {field}: {detail}");
            assert!(detail.contains(field), "{path} {field}: {detail}");
        }
        let got = client.post(path, r#"{"zzzzzz":1}"#).await;
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        for known in detail.split("use ").nth(1).unwrap().split(", ") {
            assert!(
                fields.contains_key(known) || EXTRA.contains(&known),
                "{known} is not in {schema}"
            );
        }
    }
}

#[cfg(feature = "test-servers")]
mod servers {
    #[test]
    fn an_independent_program_finds_the_document_valid() {
        let program = crate::http_support::venv("openapi-spec-validator", "openapi-spec-validator");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/openapi.json");
        let out = std::process::Command::new(program).arg(file).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}
