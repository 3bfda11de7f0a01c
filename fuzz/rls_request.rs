//! Feeds any bytes to the reader of Envoy's requests: it must not panic, must read the same twice, and
//! its memory must stay bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::rls::request::{Decoder, MAX_ALL_ENTRIES};

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new();
    let mut seen = Vec::new();
    for _ in 0..2 {
        match decoder.decode(bytes) {
            Err(error) => seen.push(error.to_string()),
            Ok(request) => {
                let entries: usize = request.descriptors().map(|(_, entries)| entries.len()).sum();
                assert!(entries <= MAX_ALL_ENTRIES);
                seen.push(format!("{request:?}"));
                match decoder.asks(&request) {
                    Ok(asks) => {
                        assert_eq!(asks.len(), request.descriptors().count());
                        decoder.put_asks_back(asks);
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
                decoder.put_back(request);
            }
        }
    }
    assert_eq!(seen[0], seen[1]);
});
