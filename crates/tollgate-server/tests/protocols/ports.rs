//! Ports for programs that cannot choose one themselves.

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

/// Returns a free address, with a port below those that the system assigns by itself: so no program
/// that connects or asks for any port can take it meanwhile.
pub(crate) fn free_port() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97).wrapping_add(CALLS.fetch_add(1, SeqCst) * 13);
    let ports = (0..12_000).map(|step| 20_000 + (start.wrapping_add(step) % 12_000) as u16);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).and_then(|it| it.local_addr());
    ports.into_iter().find_map(|port| free(port).ok()).expect("a free port")
}
