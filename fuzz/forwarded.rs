//! Feeds any header lines to the readers of forwarding headers: they must not panic, and what is on
//! the left of what trusted proxies wrote must not change who the client is.
#![no_main]

use http::{HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use tollgate_tower::{
    Info, Key, Peer,
    key::{ClientAddress, KeyBytes, Trust},
};

const NAMES: [&str; 3] = ["x-forwarded-for", "forwarded", "cookie"];

/// Returns a request with these lines of a header, from a proxy.
fn request(name: &'static str, lines: &[&[u8]]) -> Option<Request<()>> {
    let mut request = Request::new(());
    for line in lines {
        request.headers_mut().append(name, HeaderValue::from_bytes(line).ok()?);
    }
    request.extensions_mut().insert(Peer(([10, 0, 0, 1], 1).into()));
    Some(request)
}

fuzz_target!(|bytes: &[u8]| {
    let lines: Vec<_> = bytes.split(|byte| *byte == b'\n').collect();
    for name in NAMES {
        let Some(request) = request(name, &lines) else { return };
        for trust in [Trust::hops(2), Trust::networks(["10.0.0.0/8", "fd00::/8"])] {
            for client in
                [ClientAddress::x_forwarded_for(trust.clone()), ClientAddress::forwarded(trust)]
            {
                assert!(client.address(&Info::of(&request)).is_some());
            }
        }
        let _ = Key::cookie("sid").find(&Info::of(&request), &mut KeyBytes::new());
    }
    // Two proxies append to the last line, and the second one also with a line of its own.
    for (name, entries) in [
        ("x-forwarded-for", ["192.0.2.1", "10.0.0.2:80"]),
        ("forwarded", ["for=\"192.0.2.1:_x\";host=\"a,\\\"b\"", "For=10.0.0.2;by=_y"]),
    ] {
        let (last, before) = lines.split_last().unwrap_or((&bytes, &[]));
        let one = [*last, b", ", entries[0].as_bytes()].concat();
        let both = [&one[..], b",", entries[1].as_bytes()].concat();
        for ends in [&[&both[..]][..], &[&one[..], entries[1].as_bytes()]] {
            let Some(request) = request(name, &[before, ends].concat()) else { return };
            for trust in [Trust::hops(2), Trust::networks(["10.0.0.0/8"])] {
                let client = match name {
                    "forwarded" => ClientAddress::forwarded(trust),
                    _ => ClientAddress::x_forwarded_for(trust),
                };
                let found = client.address(&Info::of(&request));
                assert_eq!(found, Some([192, 0, 2, 1].into()), "{name}: {request:?}");
            }
        }
    }
});
