//! Feeds any bytes to the reader of addresses and to the printer of keys: neither may panic, and an
//! address must be the same one when it is written in another way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use tollgate_tower::key::{ClientAddress, KeyText, read_address};

fuzz_target!(|bytes: &[u8]| {
    assert!(KeyText::of(bytes).to_string().is_ascii());
    let Some(address) = read_address(bytes) else { return };
    let others = match address {
        IpAddr::V4(v4) => [format!(" {v4} "), format!("{v4}:80"), format!("[::ffff:{v4}]:80")],
        IpAddr::V6(v6) => [format!("[{v6}]"), format!("[{v6}%eth0]:80"), format!("{v6}%1")],
    };
    for other in others {
        assert_eq!(read_address(other.as_bytes()), Some(address), "{other}");
    }
    // Two limits, a fine and a coarse one: who shares a fine key shares the coarse one.
    let fine = ClientAddress::peer().unwrap_6to4().unwrap_teredo();
    let coarse = fine.clone().ipv6_prefix(48).ipv4_prefix(24);
    let within = match fine.counted(address) {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & u32::MAX << 8).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & u128::MAX << 80).into()),
    };
    assert_eq!(coarse.counted(address), within, "{address}");
});
