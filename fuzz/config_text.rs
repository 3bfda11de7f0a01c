//! Feeds any text to the reader of configurations: it must not panic or take long, what it accepts
//! can be linted, and what it refuses has a place and a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::config::{Config, lint};

fuzz_target!(|text: &str| match Config::from_text("fuzz.yaml", text) {
    Ok(config) => lint(&config).iter().for_each(|lint| assert!(!lint.to_string().is_empty())),
    Err(errors) => {
        assert!((1..=50).contains(&errors.errors().len()));
        assert!(errors.to_string().starts_with("fuzz.yaml"));
    }
});
