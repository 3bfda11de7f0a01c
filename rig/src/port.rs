//! Ports for programs that cannot choose one themselves.
//!
//! A port is taken by the lock on a file with its number, which the kernel gives up with the process:
//! so two test processes never have the same one, also while a server is down for a while.
//! The range is below the ports that the system gives out by itself, so nobody who connects can
//! take one meanwhile; and apart from 20000 to 32000, where tests without locks look.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

const FIRST: u16 = 11_000;
const COUNT: u32 = 9_000;

/// A port on 127.0.0.1 that nobody else gets while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// INVARIANT: locked. Closing it gives the port back.
    _lock: File,
}

impl Port {
    /// Takes a free port.
    ///
    /// # Panics
    ///
    /// If none is free, or the folder of locks cannot be made.
    #[must_use]
    pub fn reserve() -> Self {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let owner = rustix::process::getuid().as_raw();
        let folder = std::env::temp_dir().join(format!("tollgate-rig-ports-{owner}"));
        fs::create_dir_all(&folder).expect("a folder for the locks of ports");
        // Processes start far apart from each other, so that they rarely meet.
        // ORDERING: Relaxed is enough, any number will do; the lock decides.
        let calls = CALLS.fetch_add(1, Relaxed);
        let start = std::process::id().wrapping_mul(97).wrapping_add(calls.wrapping_mul(13));
        (0..COUNT)
            .map(|step| FIRST + (start.wrapping_add(step) % COUNT) as u16)
            .find_map(|number| {
                let lock = File::create(folder.join(number.to_string())).ok()?;
                lock.try_lock().ok()?;
                TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
                Some(Self { number, _lock: lock })
            })
            .unwrap_or_else(|| panic!("no free port from {FIRST} on, out of {COUNT}"))
    }

    /// Returns the number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the address, on 127.0.0.1.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// Returns an address on 127.0.0.1 with a port that this process keeps until it ends.
///
/// # Panics
///
/// Like [`Port::reserve`].
#[must_use]
pub fn free_port() -> SocketAddr {
    // Bounded by the number of ports.
    static KEPT: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::reserve();
    let address = port.address();
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(port);
    address
}
