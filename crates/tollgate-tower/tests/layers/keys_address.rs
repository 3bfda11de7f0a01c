//! Addresses: every spelling of one client is one key, and no other spelling is.

use http::Request;
use proptest::prelude::*;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tollgate_tower::{
    Info, Key, Peer,
    key::{ClientAddress, Found, KeyBytes, KeyError, Trust, read_address},
};

/// The spelling, and the part that is counted by default; empty if it is not an address.
const SPELLINGS: [(&str, &str); 67] = [
    // IPv4, plain and with port.
    ("192.0.2.1", "192.0.2.1"),
    (" 192.0.2.1\t", "192.0.2.1"),
    ("192.0.2.1:443", "192.0.2.1"),
    ("192.0.2.1:0", "192.0.2.1"),
    ("192.0.2.1:_hidden", "192.0.2.1"),
    ("0.0.0.0", "0.0.0.0"),
    ("255.255.255.255", "255.255.255.255"),
    // IPv4 in IPv6 form, in every notation.
    ("::ffff:192.0.2.1", "192.0.2.1"),
    ("::FFFF:192.0.2.1", "192.0.2.1"),
    ("::ffff:c000:201", "192.0.2.1"),
    ("::ffff:C000:0201", "192.0.2.1"),
    ("0:0:0:0:0:ffff:192.0.2.1", "192.0.2.1"),
    ("0000:0000:0000:0000:0000:ffff:c000:0201", "192.0.2.1"),
    ("[::ffff:192.0.2.1]", "192.0.2.1"),
    ("[::ffff:192.0.2.1]:80", "192.0.2.1"),
    ("[::ffff:c000:201%eth0]:80", "192.0.2.1"),
    ("::ffff:0.0.0.0", "0.0.0.0"),
    // NAT64.
    ("64:ff9b::192.0.2.1", "192.0.2.1"),
    ("64:ff9b::c000:201", "192.0.2.1"),
    ("[0064:FF9B::192.0.2.1]:443", "192.0.2.1"),
    // Not quite NAT64, mapped, or IPv4: the old compatible form, SIIT, and other prefixes.
    ("64:ff9b:1::192.0.2.1", "64:ff9b:1::"),
    ("64:ff9b:0:1::c000:201", "64:ff9b:0:1::"),
    ("64:ff9b::1:192.0.2.1", "64:ff9b::"),
    ("::192.0.2.1", "::"),
    ("::ffff:0:192.0.2.1", "::"),
    // IPv6 by its network of 64 bits.
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
    ("2001:DB8:1:2::9", "2001:db8:1:2::"),
    ("2001:0db8:0001:0002:ffff:ffff:ffff:ffff", "2001:db8:1:2::"),
    ("2001:db8:1:2::192.0.2.1", "2001:db8:1:2::"),
    ("[2001:db8:1:2::1]", "2001:db8:1:2::"),
    ("[2001:db8:1:2::1]:443", "2001:db8:1:2::"),
    ("[2001:db8:1:2::1]:_x", "2001:db8:1:2::"),
    ("2001:db8:1:3::1", "2001:db8:1:3::"),
    ("::1", "::"),
    ("::", "::"),
    // Without brackets there is no port: it is the last group.
    ("2001:db8:1:2::1:443", "2001:db8:1:2::"),
    // Zones.
    ("fe80::1%eth0", "fe80::"),
    ("fe80::1%25eth0", "fe80::"),
    ("[fe80::1%eth0]:80", "fe80::"),
    ("fe80::1%", ""),
    ("192.0.2.1%eth0", ""),
    // Tunnels are IPv6 unless they are unwrapped.
    ("2002:c000:0201::1", "2002:c000:201::"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:4136:e378::"),
    // Garbage.
    ("", ""),
    (" ", ""),
    ("unknown", ""),
    ("_hidden", ""),
    ("-", ""),
    ("localhost", ""),
    ("192.0.2", ""),
    ("192.0.2.1.5", ""),
    ("192.0.2.256", ""),
    ("192.0.2.01", ""),
    ("0xc0.0.2.1", ""),
    ("3221225985", ""),
    ("192.0.2.1:", ""),
    ("192.0.2.1:http", ""),
    ("192.0.2.1:123456", ""),
    ("192.0.2.1/32", ""),
    ("[192.0.2.1]", ""),
    ("[2001:db8::1", ""),
    ("2001:db8::1]", ""),
    ("[2001:db8::1]x", ""),
    ("[2001:db8::1]:", ""),
    ("2001:db8::1::2", ""),
    ("12001:db8::1", ""),
    ("192.0.2.1 192.0.2.2", ""),
];

fn counted(client: &ClientAddress, text: &str) -> Option<IpAddr> {
    read_address(text.as_bytes()).map(|address| client.counted(address))
}

/// Returns the key of a request that comes from a proxy which wrote `text`.
fn key(client: ClientAddress, text: &str) -> (Found, KeyBytes) {
    let request = Request::builder().header("x-forwarded-for", text);
    let (request, mut bytes) = (request.body(()).unwrap(), KeyBytes::new());
    (Key::client(client).find(&Info::of(&request), &mut bytes), bytes)
}

#[test]
fn spellings_of_one_client_are_one_key_and_others_are_not() {
    let client = || ClientAddress::x_forwarded_for(Trust::hops(1));
    let mut keys = HashMap::new();
    for (text, expected) in SPELLINGS {
        assert_eq!(counted(&client(), text), expected.parse().ok(), "{text:?}");
        let (found, bytes) = key(client(), text);
        if expected.is_empty() {
            // Without an address of the connection there is no client.
            assert_eq!((found, bytes.as_bytes()), (Found::Refuse, &[][..]), "{text:?}");
            continue;
        }
        assert_eq!((found, bytes.to_string().as_str()), (Found::Known, expected), "{text:?}");
        let same = keys.entry(expected).or_insert_with(|| bytes.clone());
        assert_eq!(*same, bytes, "{text:?}");
    }
    let mut all: Vec<_> = keys.values().map(|key| key.as_bytes().to_vec()).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), keys.len(), "two addresses have one key");
}

#[test]
fn what_is_not_ascii_is_no_address() {
    for bytes in [&b"192.0.2.1\xff"[..], "\u{663}.0.2.1".as_bytes(), b"\0", b"192.0.2.1\0"] {
        assert_eq!(read_address(bytes), None, "{bytes:?}");
    }
}

#[test]
fn prefixes_and_tunnels_are_counted_as_asked_for() {
    let client = ClientAddress::peer;
    for (row, (client, text, expected)) in [
        (client().ipv4_prefix(24), "192.0.2.200", "192.0.2.0"),
        (client().ipv4_prefix(25), "192.0.2.200", "192.0.2.128"),
        (client().ipv4_prefix(24), "::ffff:192.0.2.200", "192.0.2.0"),
        (client().ipv4_prefix(24), "64:ff9b::192.0.2.200", "192.0.2.0"),
        (client().ipv4_prefix(8), "192.0.2.200", "192.0.0.0"),
        (client().ipv6_prefix(128), "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        (client().ipv6_prefix(56), "2001:db8:1:2ff::1", "2001:db8:1:200::"),
        (client().ipv6_prefix(48), "2001:db8:1:2ff::1", "2001:db8:1::"),
        (client().ipv6_prefix(57), "2001:db8:1:2ff::1", "2001:db8:1:280::"),
        (client().ipv6_prefix(32), "2001:db8:1:2ff::1", "2001:db8::"),
        (client().unwrap_6to4(), "2002:c000:201::1", "192.0.2.1"),
        (client().unwrap_6to4(), "2002:c000:201:ffff::", "192.0.2.1"),
        (client().unwrap_6to4(), "2003:c000:201::1", "2003:c000:201::"),
        (client().unwrap_teredo(), "2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45"),
        (client().unwrap_teredo(), "2001:db8::3fff:fdd2", "2001:db8::"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(client.check(), Ok(()), "row {row}");
        assert_eq!(counted(&client, text), Some(expected.parse().unwrap()), "row {row}: {text}");
    }
}

#[test]
fn prefixes_outside_the_range_are_refused_and_do_not_panic() {
    let request = Request::builder().extension(Peer(([192, 0, 2, 1], 1).into())).body(()).unwrap();
    for bits in 0..=u8::MAX {
        let v4 = ClientAddress::peer().ipv4_prefix(bits);
        let v6 = ClientAddress::peer().ipv6_prefix(bits);
        assert_eq!(v4.check().is_ok(), (8..=32).contains(&bits), "IPv4 /{bits}");
        assert_eq!(v6.check().is_ok(), (32..=128).contains(&bits), "IPv6 /{bits}");
        for client in [v4, v6] {
            let _ = client.counted(Ipv6Addr::LOCALHOST.into());
            Key::client(client).find(&Info::of(&request), &mut KeyBytes::new());
        }
    }
    let error = Key::client(ClientAddress::peer().ipv6_prefix(16)).check().unwrap_err();
    let expected = KeyError::Prefix { family: "IPv6", bits: 16, shortest: 32, longest: 128 };
    assert_eq!((error.code(), &error), ("TG-K04", &expected));
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = read_address(&bytes);
    }

    #[test]
    fn what_the_standard_library_writes_is_read(bits in any::<u128>(), port in any::<u16>()) {
        let (v4, v6) = (Ipv4Addr::from_bits(bits as u32), Ipv6Addr::from_bits(bits));
        for (address, texts) in [
            (IpAddr::V4(v4), [v4.to_string(), format!("{v4}:{port}"), format!("::ffff:{v4}")]),
            (IpAddr::V6(v6), [v6.to_string(), format!("[{v6}]:{port}"), format!("{v6}%eth0")]),
        ] {
            for text in texts {
                prop_assert_eq!(read_address(text.as_bytes()), Some(address.to_canonical()));
            }
        }
    }

    #[test]
    fn clients_of_one_network_are_one_and_of_two_are_two(
        one in any::<u128>(), other in any::<u128>(), bits in 32_u8..=128, near in any::<bool>(),
    ) {
        let rest = u128::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
        // 2001:db8::/32 has neither mapped addresses nor translators.
        let place = |bits: u128| 0x2001_0db8 << 96 | bits >> 32;
        let one = place(one);
        let other = if near { one & !rest | place(other) & rest } else { place(other) };
        let client = ClientAddress::peer().ipv6_prefix(bits);
        let keys = [one, other].map(|address| {
            let peer = Peer((Ipv6Addr::from_bits(address), 1).into());
            let request = Request::builder().extension(peer).body(()).unwrap();
            let mut bytes = KeyBytes::new();
            Key::client(client.clone()).find(&Info::of(&request), &mut bytes);
            bytes
        });
        prop_assert_eq!(keys[0] == keys[1], one & !rest == other & !rest);
    }
}
