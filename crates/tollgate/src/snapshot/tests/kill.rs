//! Real processes: killed while they write, and started at the same time.

use super::*;
use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

const DIRECTORY: &str = "TOLLGATE_TEST_SNAPSHOT_DIRECTORY";
const FROM: &str = "TOLLGATE_TEST_SNAPSHOT_FROM";

/// Snapshots that a child writes at most, should nobody kill it.
const VERSIONS_MAX: u64 = 100_000;

/// A child that does not outlive the test.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one ignored test of this file in a process of its own.
fn start(test: &str, scratch: &Scratch, from: u64) -> (Helper, BufReader<ChildStdout>) {
    let _held = no_fork();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("snapshot::tests::kill::{test}")])
        .args(["--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, &scratch.0)
        .env(FROM, from.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (Helper(child), lines)
}

/// Returns what follows `mark` in the next line that has it, and nothing at the end.
fn next_marked(lines: &mut impl BufRead, mark: &str) -> Option<String> {
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        // The last line may be cut off.
        let line = line.strip_suffix('\n')?;
        if let Some((_, rest)) = line.split_once(mark) {
            return Some(rest.to_owned());
        }
    }
}

fn version(n: u64) -> (Head, Vec<Entry>) {
    // From one block to several.
    let entries = (1..=500 + n % 7 * 1_000).map(|print| (print, 0, vec![n, !n, print]));
    (Head { wall_ns: n, ..head() }, entries.collect())
}

#[test]
#[ignore = "the child of a_killed_writer_leaves_the_last_snapshot_or_the_next"]
fn child_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let path = PathBuf::from(directory).join("state.snapshot");
    let from: u64 = std::env::var(FROM).unwrap().parse().unwrap();
    for n in from..from + VERSIONS_MAX {
        let (head, entries) = version(n);
        write_on(super::super::temporary::Real, &path, &head, &entries).unwrap();
        println!("finished {n}");
    }
}

#[test]
fn a_killed_writer_leaves_the_last_snapshot_or_the_next() {
    let scratch = Scratch::new();
    let mut from = 1;
    for round in 0..40_u64 {
        let (mut child, mut lines) = start("child_writes_until_it_is_killed", &scratch, from);
        let mut announced = 0;
        for _ in 0..=round % 3 {
            announced = next_marked(&mut lines, "finished ").unwrap().parse().unwrap();
        }
        for _ in 0..round * 10_007 {
            std::hint::spin_loop();
        }
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        while let Some(line) = next_marked(&mut lines, "finished ") {
            announced = line.parse().unwrap();
        }
        let found = read(&scratch.file()).unwrap();
        let n = found.0.wall_ns;
        assert!(n == announced || n == announced + 1, "round {round}: {n}, not {announced}");
        assert!(found == version(n), "round {round}: snapshot {n} has other records");
        assert!(scratch.names().len() <= 2, "round {round}: {:?}", scratch.names());
        from = n + 1;
    }
    write(&scratch.file(), &head(), &entries()).unwrap();
    assert_eq!(scratch.names(), ["state.snapshot"]);
}

#[test]
#[ignore = "the child of processes_that_start_at_once_agree_on_a_seed"]
fn child_prints_its_seed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (k0, k1) = SeedFile::load_or_create(&PathBuf::from(directory).join("seed")).unwrap();
    println!("drawn={k0:016x}{k1:016x}");
}

#[test]
fn processes_that_start_at_once_agree_on_a_seed() {
    for round in 0..5 {
        let scratch = Scratch::new();
        let children: Vec<_> =
            (0..4).map(|_| start("child_prints_its_seed", &scratch, 0)).collect();
        let mut seeds: Vec<_> = children
            .into_iter()
            .map(|(mut child, mut lines)| {
                let seed = next_marked(&mut lines, "drawn=").unwrap();
                child.0.wait().unwrap();
                seed
            })
            .collect();
        seeds.dedup();
        assert_eq!(seeds.len(), 1, "round {round}: {seeds:?}");
        assert_eq!(scratch.names(), ["seed"]);
    }
}
