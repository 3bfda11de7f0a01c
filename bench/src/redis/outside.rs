//! redis-benchmark: an independent client.

use super::server::{Bench, Sample};
use std::process::{Command, Stdio};

/// The arguments with which redis-benchmark calls INCR.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outside {
    pub(super) connections: usize,
    pub(super) pipeline: usize,
    /// The number of keys; one means always the same key.
    pub(super) keys: u64,
    pub(super) requests: u64,
}

impl Outside {
    /// Measures INCR.
    pub(super) fn measure(&self, bench: &Bench) -> Result<Sample, String> {
        let before = bench.server_us();
        let output = Command::new("redis-benchmark")
            .args(self.words(bench.redis.address().port()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("redis-benchmark cannot be run: {error}"))?;
        let server_us = bench.server_us() - before;
        let rate = rate(&String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| format!("redis-benchmark did not say a rate, {}", output.status))?;
        let decisions = self.requests as f64;
        let seconds = decisions / rate;
        Ok(Sample {
            decisions,
            seconds,
            server_us,
            // Unknown for another process.
            client_us: f64::NAN,
            calls: decisions,
            allowed: decisions,
        })
    }

    fn words(&self, port: u16) -> Vec<String> {
        let numbers = [
            ("-p", u64::from(port)),
            ("-c", self.connections as u64),
            ("-P", self.pipeline as u64),
            ("-n", self.requests),
        ];
        let mut words: Vec<String> =
            numbers.iter().flat_map(|(name, value)| [(*name).into(), value.to_string()]).collect();
        if self.keys > 1 {
            words.extend(["-r".into(), self.keys.to_string()]);
        }
        words.extend(["-t", "incr", "--csv"].map(String::from));
        words
    }
}

/// Reads the rate from the output of `--csv`.
fn rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("\"INCR\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_second_field_of_its_line() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"INCR\",\"123456.78\",\"0.100\"\n";
        assert_eq!(rate(text), Some(123_456.78));
        assert_eq!(rate("Could not connect"), None);
    }

    #[test]
    fn one_key_is_not_drawn() {
        let outside = Outside { connections: 1, pipeline: 16, keys: 1, requests: 100 };
        assert_eq!(outside.words(7).join(" "), "-p 7 -c 1 -P 16 -n 100 -t incr --csv");
        let many = Outside { keys: 1000, ..outside };
        assert!(many.words(7).join(" ").contains("-r 1000"));
    }
}
