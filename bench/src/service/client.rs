//! The client of every row: `tollgate load`, one thread, asked for JSON.

use serde_json::Value;
use std::{path::PathBuf, process::Command};

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) rate: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

/// The program, and how long a run takes.
pub(super) struct Client {
    pub(super) program: PathBuf,
    pub(super) duration: &'static str,
    pub(super) warmup: &'static str,
}

impl Client {
    /// Runs for the time that all rows take; `None`, and a line on standard error, if it failed.
    pub(super) fn timed(&self, words: &[String]) -> Option<Found> {
        let mut all = words.to_vec();
        all.extend(["--duration", self.duration, "--warmup", self.warmup].map(String::from));
        self.run(&all)
    }

    /// Runs with exactly these arguments.
    pub(super) fn run(&self, words: &[String]) -> Option<Found> {
        let mut command = Command::new(&self.program);
        command.arg("load").args(words).args(["--format", "json"]);
        let output = command.output().ok()?;
        if !output.status.success() {
            eprintln!("\n{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
            return None;
        }
        read(&output.stdout)
    }
}

fn read(json: &[u8]) -> Option<Found> {
    let json: Value = serde_json::from_slice(json).ok()?;
    let latency = json.get("latency_ms")?;
    Some(Found {
        rate: json.get("rate")?.as_f64()?,
        p50_ms: latency.get("p50")?.as_f64()?,
        p99_ms: latency.get("p99")?.as_f64()?,
        p999_ms: latency.get("p999")?.as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_by_its_names() {
        let json = br#"{"rate":5.0,"latency_ms":{"p50":1.0,"p99":2.0,"p999":3.0}}"#;
        let found = read(json).unwrap();
        assert_eq!((found.rate, found.p999_ms), (5.0, 3.0));
        assert!(read(b"{}").is_none());
    }
}
