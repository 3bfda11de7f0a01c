//! State that survives a restart.

use crate::process::Service;
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::SystemTime,
};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 1000000/year}}
";

const USED: &str = "TG.PEEK k x 0";

/// Takes permits until the test stops it, or the server is gone.
struct Load {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Load {
    fn start(service: &Service) -> Self {
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stopped, mut client) =
            (Arc::clone(&acknowledged), Arc::clone(&stop), service.client());
        let thread = thread::spawn(move || {
            while !stopped.load(SeqCst) {
                // A killed server sends no response.
                let Ok(taken) = client.count_ones("TG.CHECK k x 1", 8) else { return };
                count.fetch_add(taken as u64, SeqCst);
            }
        });
        Self { acknowledged, stop, thread }
    }

    fn end(self) -> u64 {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap();
        self.acknowledged.load(SeqCst)
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

/// Waits until the file has another modification time than `before`.
fn await_change(path: &Path, before: Option<SystemTime>) -> Option<SystemTime> {
    loop {
        let now = changed(path);
        if now.is_some() && now != before {
            return now;
        }
        thread::yield_now();
    }
}

fn used(service: &Service) -> u64 {
    let reply = service.client().ask(USED);
    let fields: Vec<_> = reply.trim_matches(['[', ']']).split(", ").collect();
    1_000_000 - fields[2].parse::<u64>().unwrap_or_else(|_| panic!("{reply}"))
}

#[test]
fn a_killed_server_loses_at_most_what_came_since_the_last_snapshot_but_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let file = path.to_str().unwrap();
    let flags = ["--snapshot", file, "--snapshot-every", "50ms"];
    let mut service = Service::start(folder.path(), YAML, &flags);
    let load = Load::start(&service);
    let first = await_change(&path, None);
    // The snapshot after this one begins later than now, so it includes every permit acknowledged
    // so far.
    let acknowledged = load.acknowledged.load(SeqCst);
    await_change(&path, first);
    service.kill();
    let total = load.end();

    let service = Service::start(folder.path(), YAML, &flags);
    let used = used(&service);
    assert!(acknowledged > 0 && used >= acknowledged, "{used} of at least {acknowledged}");
    // Requests in flight at the kill may have taken permits without a response.
    assert!(used <= total + 8, "{used} of at most {total}");
}

#[test]
fn a_server_that_is_told_to_stop_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let flags = ["--snapshot", path.to_str().unwrap(), "--snapshot-every", "1h"];
    let mut service = Service::start(folder.path(), YAML, &flags);
    let mut client = service.client();
    let taken: usize = (0..20).map(|_| client.count_ones("TG.CHECK k x 1", 50).unwrap()).sum();
    service.signal("TERM");
    assert!(service.wait(), "it ends well");
    let service = Service::start(folder.path(), YAML, &flags);
    assert_eq!(used(&service), taken as u64);
}

#[test]
fn a_damaged_snapshot_is_put_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    fs::write(&path, "nonsense").unwrap();
    let flags = ["--snapshot", path.to_str().unwrap()];
    let service = Service::start(folder.path(), YAML, &flags);
    assert_eq!(used(&service), 0);
    assert!(folder.path().join("state.unusable").exists());
}
