//! Configuration that changes while the server runs.

use crate::process::Service;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

fn yaml(round: usize, limit: usize) -> String {
    format!(
        "domain: d
descriptors:
  - {{key: k, rate_limit: {{name: k, quota: {limit}/year}}}}
  - {{key: other, rate_limit: {{name: other, unit: minute, requests_per_unit: {}}}}}
",
        1 + round % 7
    )
}

#[test]
fn a_thousand_reloads_under_load_lose_no_request_and_no_count() {
    const LIMIT: usize = 10_000_000;
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), &yaml(0, LIMIT), &["--watch-interval", "0s"]);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, done) = (service.client(), Arc::clone(&done));
            thread::spawn(move || {
                let mut taken = 0;
                while !done.load(SeqCst) {
                    // Not one of them may fail.
                    taken += client.count_ones("TG.CHECK k x 1", 4).unwrap();
                    assert!(client.ask("TG.CHECK other x 1").starts_with('['));
                }
                taken
            })
        })
        .collect();
    for round in 1..=1000 {
        // The limit itself goes up and down, and what is used stays used.
        service.write_config(&yaml(round, LIMIT * (1 + round % 3)));
        let (status, body) = service.admin("POST", "/reload", "");
        assert_eq!(status, 200, "round {round}: {body}");
    }
    done.store(true, SeqCst);
    let taken: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    let reply = service.client().ask("TG.PEEK k x 0");
    let left: usize = reply.split(", ").nth(2).unwrap().parse().unwrap();
    assert_eq!(LIMIT * (1 + 1000 % 3) - left, taken, "no count is lost over 1000 reloads");
    let (status, metrics) = service.admin("GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(metrics.contains("tollgate_config_version 1001"), "{metrics}");
}

#[test]
fn a_bad_file_keeps_the_old_configuration_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), &yaml(0, 5), &["--watch-interval", "0s"]);
    let mut client = service.client();
    assert_eq!(client.count_ones("TG.CHECK k x 1", 9).unwrap(), 5);
    service.write_config("domain: d\ndescriptors:\n  - {kee: k}\n");
    let (status, body) = service.admin("POST", "/reload", "");
    assert!(status >= 400, "{status} {body}");
    assert!(body.contains("unknown key 'kee'") && body.contains("limits.yaml"), "{body}");
    assert_eq!(client.count_ones("TG.CHECK k x 1", 9).unwrap(), 0, "the old limit is in force");
    let (_, metrics) = service.admin("GET", "/metrics", "");
    assert!(metrics.contains("tollgate_config_last_load_success 0"), "{metrics}");
    let (_, config) = service.admin("GET", "/config", "");
    assert!(config.contains("kee"), "{config}");
    // SIGHUP loads it again; a changed file is found by itself, too: see `life.rs`.
    service.write_config(&yaml(1, 5));
    let (status, _) = service.admin("POST", "/reload", "");
    assert_eq!(status, 200);
}
