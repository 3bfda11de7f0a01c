//! Clients behind proxies: which proxies are believed, and which entries clients make up.

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::{collection::vec, prelude::*};
use std::net::IpAddr;
use tollgate_tower::{
    Info, Key, Peer,
    key::{ClientAddress, Hint, KeyBytes, KeyError, Trust},
};

type Lines<'a> = &'a [(&'static str, &'a str)];

/// Finds the client of a request; an empty peer means that it is unknown.
fn find(client: &ClientAddress, peer: &str, lines: Lines<'_>) -> Option<IpAddr> {
    let mut request = Request::new(());
    for (name, value) in lines {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    if let Ok(peer) = peer.parse::<IpAddr>() {
        request.extensions_mut().insert(Peer((peer, 4711).into()));
    }
    client.address(&Info::of(&request))
}

fn check(client: &ClientAddress, rows: &[(&str, Lines<'_>, &str)]) {
    assert_eq!(client.check(), Ok(()));
    for (row, (peer, lines, expected)) in rows.iter().enumerate() {
        let found = find(client, peer, lines);
        assert_eq!(found, expected.parse().ok(), "row {row}: {peer} {lines:?}");
    }
}

const XFF: &str = "x-forwarded-for";

#[test]
fn the_peer_alone_believes_no_header() {
    check(
        &ClientAddress::peer(),
        &[
            ("203.0.113.9", &[], "203.0.113.9"),
            ("203.0.113.9", &[(XFF, "6.6.6.6"), ("forwarded", "for=6.6.6.6")], "203.0.113.9"),
            ("::ffff:203.0.113.9", &[("x-real-ip", "6.6.6.6")], "203.0.113.9"),
            ("", &[(XFF, "6.6.6.6")], ""),
        ],
    );
}

#[test]
fn hops_are_counted_from_the_right() {
    check(
        &ClientAddress::x_forwarded_for(Trust::hops(1)),
        &[
            ("10.0.0.1", &[(XFF, "192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6, 192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "junk,,\"; ,192.0.2.1 , ")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6"), (XFF, "192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "192.0.2.1"), (XFF, "")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "192.0.2.1, unknown")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "")], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &[("forwarded", "for=6.6.6.6")], "10.0.0.1"),
            // A proxy on a Unix socket has no address, but is believed.
            ("", &[(XFF, "6.6.6.6, 192.0.2.1")], "192.0.2.1"),
            ("", &[], ""),
        ],
    );
    check(
        &ClientAddress::x_forwarded_for(Trust::hops(3)),
        &[
            ("10.0.0.1", &[(XFF, "6.6.6.6, 192.0.2.1, 10.0.0.3, 10.0.0.2")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "192.0.2.1"), (XFF, "10.0.0.3"), (XFF, "10.0.0.2")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "192.0.2.1, 10.0.0.3"), (XFF, "10.0.0.2")], "192.0.2.1"),
            // Fewer entries than proxies: the request did not pass all of them.
            ("198.51.100.7", &[(XFF, "6.6.6.6, 10.0.0.2")], "198.51.100.7"),
            ("10.0.0.1", &[(XFF, "192.0.2.1, unknown, 10.0.0.2")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "unknown, 10.0.0.3, 10.0.0.2")], "10.0.0.1"),
        ],
    );
    check(
        &ClientAddress::x_forwarded_for(Trust::hops(2)).require_client(),
        &[
            ("10.0.0.1", &[(XFF, "192.0.2.1, 10.0.0.2")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "10.0.0.2")], ""),
            ("10.0.0.1", &[(XFF, "unknown, 10.0.0.2")], ""),
            ("10.0.0.1", &[], ""),
        ],
    );
}

#[test]
fn networks_are_walked_until_somebody_is_not_believed() {
    let trust = Trust::networks(["10.0.0.0/8", "2001:db8:ffff::/48", "198.51.100.7"]);
    let rows: [(&str, Lines<'_>, &str); 16] = [
        // Not a proxy: its entries do not count.
        ("203.0.113.9", &[(XFF, "6.6.6.6")], "203.0.113.9"),
        ("198.51.100.8", &[(XFF, "6.6.6.6")], "198.51.100.8"),
        ("10.0.0.1", &[(XFF, "192.0.2.1")], "192.0.2.1"),
        ("198.51.100.7", &[(XFF, "192.0.2.1")], "192.0.2.1"),
        ("10.0.0.1", &[(XFF, "6.6.6.6, 192.0.2.1, 10.0.0.3, 10.0.0.2")], "192.0.2.1"),
        ("10.0.0.1", &[(XFF, "10.6.6.6, 192.0.2.1, 10.0.0.2")], "192.0.2.1"),
        ("10.0.0.1", &[(XFF, "junk, 192.0.2.1"), (XFF, "10.0.0.2")], "192.0.2.1"),
        // Proxies in any spelling.
        ("::ffff:10.0.0.1", &[(XFF, "192.0.2.1, ::ffff:a00:2, [::ffff:10.0.0.3]:80")], "192.0.2.1"),
        ("2001:db8:ffff::1", &[(XFF, "192.0.2.1, [2001:DB8:FFFF::2]:443")], "192.0.2.1"),
        // An address behind a translator is not inside.
        ("10.0.0.1", &[(XFF, "6.6.6.6, 64:ff9b::10.0.0.2")], "64:ff9b::a00:2"),
        ("64:ff9b::10.0.0.1", &[(XFF, "6.6.6.6")], "64:ff9b::a00:1"),
        ("2002:a00:1::", &[(XFF, "6.6.6.6")], "2002:a00:1::"),
        // If all are believed, the leftmost one counts; an entry that cannot be read ends the walk.
        ("10.0.0.1", &[(XFF, "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ("10.0.0.1", &[(XFF, "192.0.2.1, unknown, 10.0.0.2")], "10.0.0.2"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("", &[(XFF, "192.0.2.1")], ""),
    ];
    check(&ClientAddress::x_forwarded_for(trust.clone()), &rows);
    check(
        &ClientAddress::x_forwarded_for(trust).require_client(),
        &[
            ("203.0.113.9", &[(XFF, "6.6.6.6")], "203.0.113.9"),
            ("10.0.0.1", &[(XFF, "192.0.2.1, 10.0.0.2")], "192.0.2.1"),
            ("10.0.0.1", &[(XFF, "10.0.0.3, 10.0.0.2")], ""),
            ("10.0.0.1", &[(XFF, "unknown")], ""),
            ("10.0.0.1", &[], ""),
        ],
    );
    check(
        &ClientAddress::x_forwarded_for(Trust::networks(["::ffff:10.0.0.0/104"])),
        &[("10.0.0.1", &[(XFF, "192.0.2.1")], "192.0.2.1")],
    );
    check(
        &ClientAddress::x_forwarded_for(Trust::private_networks()),
        &[
            ("127.0.0.1", &[(XFF, "192.0.2.1, 172.31.0.1")], "192.0.2.1"),
            ("::1", &[(XFF, "192.0.2.1, fd00::1, fe80::1%eth0")], "192.0.2.1"),
            ("172.32.0.1", &[(XFF, "6.6.6.6")], "172.32.0.1"),
        ],
    );
}

#[test]
fn forwarded_is_walked_in_the_same_way() {
    const F: &str = "forwarded";
    check(
        &ClientAddress::forwarded(Trust::hops(2)),
        &[
            ("10.0.0.1", &[(F, "for=192.0.2.1, for=10.0.0.2")], "192.0.2.1"),
            (
                "10.0.0.1",
                &[(F, "for=6.6.6.6, For=\"192.0.2.1:80\";proto=https, for=_x")],
                "10.0.0.1",
            ),
            (
                "10.0.0.1",
                &[(F, "for=6.6.6.6"), (F, "for=192.0.2.1"), (F, "for=10.0.0.2")],
                "192.0.2.1",
            ),
            (
                "10.0.0.1",
                &[(F, "for=\"[2001:db8::1]:_p\";by=x, for=10.0.0.2;host=\"a,b\"")],
                "2001:db8::1",
            ),
            ("10.0.0.1", &[(F, "for=\", for=192.0.2.1, for=10.0.0.2")], "192.0.2.1"),
            ("10.0.0.1", &[(F, "for=\"\\, for=192.0.2.1, for=\"10.0.0.2\"")], "192.0.2.1"),
            ("10.0.0.1", &[(F, "for=unknown, for=10.0.0.2")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "6.6.6.6, 6.6.6.7")], "10.0.0.1"),
        ],
    );
    check(
        &ClientAddress::forwarded(Trust::networks(["10.0.0.0/8"])),
        &[
            ("10.0.0.1", &[(F, "for=6.6.6.6, for=192.0.2.1, for=\"10.0.0.2\"")], "192.0.2.1"),
            ("10.0.0.1", &[(F, "for=192.0.2.1, for=_hidden, for=10.0.0.2")], "10.0.0.2"),
            ("10.0.0.1", &[(F, "for=192.0.2.1, proto=https, for=10.0.0.2")], "10.0.0.2"),
            ("203.0.113.9", &[(F, "for=6.6.6.6")], "203.0.113.9"),
        ],
    );
}

#[test]
fn one_named_header_is_taken_from_a_proxy_only() {
    let name = "cf-connecting-ip";
    check(
        &ClientAddress::header("CF-Connecting-IP", Trust::networks(["10.0.0.0/8"])),
        &[
            ("10.0.0.1", &[(name, "192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(name, "192.0.2.1"), (name, "192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(name, "192.0.2.1"), (name, "6.6.6.6")], "10.0.0.1"),
            ("10.0.0.1", &[(name, "6.6.6.6, 192.0.2.1")], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("203.0.113.9", &[(name, "6.6.6.6")], "203.0.113.9"),
            ("", &[(name, "6.6.6.6")], ""),
        ],
    );
    check(
        &ClientAddress::header(name, Trust::hops(1)).require_client(),
        &[
            ("10.0.0.1", &[(name, "192.0.2.1")], "192.0.2.1"),
            ("", &[(name, "192.0.2.1")], "192.0.2.1"),
            ("10.0.0.1", &[(name, "junk")], ""),
        ],
    );
}

#[test]
fn trust_that_cannot_be_meant_is_refused() {
    let list = ClientAddress::x_forwarded_for;
    let networks = |list: &[&str]| Trust::networks(list);
    for (row, (client, code, words)) in [
        (list(networks(&["0.0.0.0/0"])), "TG-K01", "0.0.0.0/0"),
        (list(networks(&["10.0.0.0/8", "::/0"])), "TG-K01", "::/0"),
        (list(networks(&["0.0.0.0/1", "128.0.0.0/1"])), "TG-K01", "0.0.0.0/0"),
        (list(networks(&["::ffff:0:0/96"])), "TG-K01", "0.0.0.0/0"),
        (list(networks(&["2000::/3"])), "TG-K01", "2000::/3"),
        (list(Trust::hops(0)), "TG-K02", "x-forwarded-for"),
        (ClientAddress::forwarded(Trust::hops(0)), "TG-K02", "forwarded"),
        (ClientAddress::header("x-real-ip", Trust::hops(0)), "TG-K02", "x-real-ip"),
        (ClientAddress::header("x real ip", Trust::hops(1)), "TG-K03", "\"x real ip\""),
        (ClientAddress::header("", Trust::hops(1)), "TG-K03", "\"\""),
        (list(networks(&["10.0.0.0/8", "10.0.0.0/33"])), "TG-K06", "\"10.0.0.0/33\""),
        (list(networks(&["proxy.internal"])), "TG-K06", "\"proxy.internal\""),
        (list(networks(&["10.0.0.1/8"])), "TG-K06", "\"10.0.0.0/8\""),
        (list(networks(&[])), "TG-K07", "empty"),
        (ClientAddress::header("x-real-ip", Trust::hops(2)), "TG-K08", "2 trusted hops"),
        (ClientAddress::header("X-Forwarded-For", Trust::hops(1)), "TG-K09", "x-forwarded-for"),
        (ClientAddress::header("forwarded", Trust::hops(1)), "TG-K09", "forwarded"),
    ]
    .into_iter()
    .enumerate()
    {
        let error: KeyError = Key::client(client.clone()).check().unwrap_err();
        assert_eq!(error.code(), code, "row {row}: {error}");
        assert!(error.to_string().contains(words), "row {row}: {error}");
        assert!(error.docs().ends_with(&code.to_lowercase()), "row {row}: {error}");
        // If it is used all the same, the result is an address or none, and no panic.
        find(&client, "10.0.0.1", &[(XFF, "6.6.6.6")]);
    }
}

#[test]
fn what_looks_wrong_is_told() {
    let hops = || Trust::hops(1);
    let networks = || Trust::networks(["10.0.0.0/8"]);
    let proxied = |header| Some(Hint::Proxied { header });
    let other = |read, found| Some(Hint::OtherHeader { read, found });
    let listed = |trust| Key::client(ClientAddress::x_forwarded_for(trust));
    let rows: [(Key, &str, Lines<'_>, Option<Hint>); 19] = [
        (Key::peer(), "10.0.0.1", &[], None),
        (Key::peer(), "10.0.0.1", &[(XFF, "192.0.2.1")], proxied(XFF)),
        (Key::peer(), "10.0.0.1", &[("forwarded", "for=a")], proxied("forwarded")),
        (Key::peer(), "10.0.0.1", &[("x-real-ip", "a")], proxied("x-real-ip")),
        (Key::all([Key::route(), Key::peer()]), "10.0.0.1", &[(XFF, "a")], proxied(XFF)),
        (Key::any([Key::bearer(), Key::peer()]), "10.0.0.1", &[(XFF, "a")], proxied(XFF)),
        (Key::peer(), "", &[], Some(Hint::NoPeer)),
        (listed(networks()), "", &[], Some(Hint::NoPeer)),
        (listed(hops()), "", &[], None),
        (listed(hops()), "10.0.0.1", &[(XFF, "192.0.2.1")], None),
        (listed(hops()), "10.0.0.1", &[(XFF, "a")], Some(Hint::NotBelieved)),
        // A client on the machine of the proxy.
        (listed(networks()), "10.0.0.1", &[(XFF, "10.0.0.1")], None),
        (listed(networks()), "192.0.2.1", &[(XFF, "192.0.2.7")], Some(Hint::NotBelieved)),
        (
            Key::client(ClientAddress::header("x-real-ip", networks())),
            "10.0.0.1",
            &[("x-real-ip", "192.0.2.1"), (XFF, "192.0.2.1")],
            None,
        ),
        (
            Key::client(ClientAddress::header("x-own", hops())),
            "10.0.0.1",
            &[(XFF, "192.0.2.1")],
            other("the header you have named", XFF),
        ),
        (listed(hops()), "10.0.0.1", &[("forwarded", "for=a")], other(XFF, "forwarded")),
        (
            Key::client(ClientAddress::forwarded(networks())),
            "10.0.0.1",
            &[(XFF, "a")],
            other("forwarded", XFF),
        ),
        (Key::bearer(), "", &[(XFF, "a")], None),
        (Key::global(), "", &[(XFF, "a")], None),
    ];
    for (row, (key, peer, lines, expected)) in rows.into_iter().enumerate() {
        let mut request = Request::new(());
        for (name, value) in lines {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        if let Ok(peer) = peer.parse::<IpAddr>() {
            request.extensions_mut().insert(Peer((peer, 1).into()));
        }
        let hint = key.hint(&Info::of(&request));
        assert_eq!(hint, expected, "row {row}");
        if let Some(hint) = hint {
            assert!(hint.to_string().contains(hint.code()), "row {row}: {hint}");
            assert!(hint.docs().ends_with(&hint.code().to_lowercase()), "row {row}: {hint}");
        }
    }
}

/// Bytes that may be in a header: mostly those with a meaning in these lists.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let meant = proptest::sample::select(&b",,;;\"\"\\\\==[]:.%_ \tforFOR0123456789abf"[..]);
    let good = (b' '..=b'~').prop_union(0x80..=0xff).boxed();
    let piece = prop_oneof![
        4 => meant.prop_map(|byte| vec![byte]),
        1 => good.prop_map(|byte| vec![byte]),
        1 => Just(b"10.0.0.2".to_vec()),
        1 => Just(b"for=\"10.0.0.3\", ".to_vec()),
    ];
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// The entries that proxies append, each to the same line or in a line of its own.
fn appended(lists: (&'static str, &[&str]), left: &[Vec<u8>], joined: &[bool]) -> HeaderMap {
    let mut lines = left.to_vec();
    for (entry, joined) in lists.1.iter().zip(joined) {
        match lines.last_mut().filter(|_| *joined) {
            Some(line) => line.extend_from_slice(format!(", {entry}").as_bytes()),
            None => lines.push(entry.as_bytes().to_vec()),
        }
    }
    let name = HeaderName::from_static(lists.0);
    let values = lines.iter().map(|line| HeaderValue::from_bytes(line).unwrap());
    values.map(|value| (name.clone(), value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_the_client_makes_up_on_the_left_never_changes_its_key(
        left in vec(garbage(), 0..4),
        joined in proptest::array::uniform3(any::<bool>()),
    ) {
        let plain = (XFF, &["192.0.2.1", "10.0.0.3", "10.0.0.2:80"][..]);
        let standard = (
            "forwarded",
            &["for=192.0.2.1;host=\"a,\\\"b\"", "For=\"10.0.0.3:_p\";by=\"_x\"", "for=10.0.0.2"][..],
        );
        for trust in [Trust::hops(3), Trust::networks(["10.0.0.0/8"])] {
            for (client, lists) in [
                (ClientAddress::x_forwarded_for(trust.clone()), plain),
                (ClientAddress::forwarded(trust.clone()), standard),
            ] {
                let mut request = Request::new(());
                *request.headers_mut() = appended(lists, &left, &joined);
                request.extensions_mut().insert(Peer(([10, 0, 0, 1], 1).into()));
                let info = Info::of(&request);
                prop_assert_eq!(client.address(&info), Some([192, 0, 2, 1].into()));
                let mut bytes = KeyBytes::new();
                Key::client(client).find(&info, &mut bytes);
                prop_assert_eq!(bytes.to_string(), "192.0.2.1");
            }
        }
    }

    #[test]
    fn any_bytes_in_these_headers_are_survived(lines in vec(garbage(), 0..4), hops in 0_u8..5) {
        for name in [XFF, "forwarded", "x-real-ip"] {
            let mut request = Request::new(());
            *request.headers_mut() = appended((name, &[]), &lines, &[]);
            request.extensions_mut().insert(Peer(([10, 0, 0, 1], 1).into()));
            let info = Info::of(&request);
            for trust in [Trust::hops(hops), Trust::private_networks()] {
                for client in [
                    ClientAddress::x_forwarded_for(trust.clone()),
                    ClientAddress::forwarded(trust.clone()),
                    ClientAddress::header("x-real-ip", trust.clone()),
                ] {
                    prop_assert!(client.address(&info).is_some());
                }
            }
        }
    }
}
