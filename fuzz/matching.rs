//! Descriptor matching against the slow oracle of `tollgate-server`'s tests.
#![no_main]

#[path = "../crates/tollgate-server/tests/configuration/matching/oracle.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracle::check(oracle::Dice(bytes)));
