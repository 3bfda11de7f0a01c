//! Reads how busy Linux is. The only file that does.
//!
//! A group's limit may stand on any of its ancestors, so all of them are read, and the one closest to
//! its limit counts.

use super::{CpuError, parse};
use crate::{Clock, Tick};
use std::{fs, path::PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The load since the last reading.
#[derive(Debug)]
pub(super) struct SystemCpu {
    clock: Clock,
    /// This process' cgroup and its ancestors, innermost first; none without cgroup v2.
    groups: Vec<PathBuf>,
    last: Reading,
    load: Option<f64>,
}

/// The kernel's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reading {
    at: Tick,
    /// For each group with a limit: CPU time used in microseconds, and how many processors it may
    /// use.
    groups: Vec<Option<(u64, f64)>>,
    host: Option<(u64, u64)>,
    pressure_us: Option<u64>,
}

impl SystemCpu {
    pub(super) fn new() -> Result<Self, CpuError> {
        if !cfg!(target_os = "linux") {
            return Err(CpuError::Unsupported);
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = parse::cgroup_path(&own).map(groups_of).unwrap_or_default();
        let mut system =
            Self { clock: Clock::monotonic(), groups, last: Reading::default(), load: None };
        system.last = system.read();
        let is_known = system.last.host.is_some() || system.last.groups.iter().any(Option::is_some);
        if is_known { Ok(system) } else { Err(CpuError::Unreadable) }
    }

    /// Returns the load since the last call; the last one if no time has passed.
    pub(super) fn load(&mut self) -> Option<f64> {
        let now = self.read();
        if let Some(load) = now.load_since(&self.last) {
            self.load = Some(load);
            self.last = now;
        }
        self.load
    }

    fn read(&self) -> Reading {
        let group = |path: &PathBuf| {
            let cpus = parse::cpu_max(&fs::read_to_string(path.join("cpu.max")).ok()?)?;
            Some((parse::usage_us(&fs::read_to_string(path.join("cpu.stat")).ok()?)?, cpus))
        };
        let own = self.groups.first().map(|group| group.join("cpu.pressure"));
        let pressure = own.and_then(|path| fs::read_to_string(path).ok());
        let pressure = pressure.or_else(|| fs::read_to_string("/proc/pressure/cpu").ok());
        Reading {
            groups: self.groups.iter().map(group).collect(),
            host: fs::read_to_string("/proc/stat").ok().and_then(|text| parse::host(&text)),
            pressure_us: pressure.and_then(|text| parse::pressure_us(&text)),
            at: self.clock.now(),
        }
    }
}

/// Returns the folders of a group and its ancestors, innermost first.
fn groups_of(path: &str) -> Vec<PathBuf> {
    let inner = PathBuf::from(format!("{CGROUPS}{path}"));
    inner.ancestors().take_while(|it| it.starts_with(CGROUPS)).map(PathBuf::from).collect()
}

impl Reading {
    /// Returns the load since an earlier reading, between 0 and 1; `None` if no time has passed, or
    /// nothing is known.
    fn load_since(&self, earlier: &Self) -> Option<f64> {
        let micros = self.at.since(earlier.at).as_secs_f64() * 1e6;
        if micros < 1.0 {
            return None;
        }
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let pairs = self.groups.iter().zip(&earlier.groups);
        let limited = pairs
            .filter_map(|(now, before)| now.zip(*before))
            .map(|((now, cpus), (before, _))| since(now, before) / (micros * cpus))
            .reduce(f64::max);
        let host = self.host.zip(earlier.host).and_then(|((busy, total), (busy_0, total_0))| {
            let total = since(total, total_0);
            (total > 0.0).then(|| since(busy, busy_0) / total)
        });
        let usage = limited.or(host)?;
        let pressure = self.pressure_us.zip(earlier.pressure_us);
        let pressure = pressure.map_or(0.0, |(now, before)| since(now, before) / micros);
        Some(usage.max(pressure).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ms: u64, used_us: u64, host: (u64, u64), pressure_us: u64) -> Reading {
        Reading {
            at: Tick::from_millis(at_ms),
            groups: vec![None, Some((used_us, 2.0))],
            host: Some(host),
            pressure_us: Some(pressure_us),
        }
    }

    #[test]
    fn a_limit_counts_before_the_host_and_pressure_above_both() {
        let before = reading(1000, 500_000, (100, 1000), 7000);
        // 1 s later: 1.2 s of 2 s allowed.
        let after = reading(2000, 1_700_000, (200, 1400), 107_000);
        assert_eq!(after.load_since(&before), Some(0.6));
        let pressed = Reading { pressure_us: Some(807_000), ..after.clone() };
        assert_eq!(pressed.load_since(&before), Some(0.8));
        let unlimited = Reading { groups: vec![None, None], ..after.clone() };
        assert_eq!(unlimited.load_since(&before), Some(0.25));
        let silent = Reading { at: after.at, ..Reading::default() };
        assert_eq!(silent.load_since(&before), None);
        assert_eq!(before.load_since(&before), None, "no time has passed");
        // Counters that start anew, as after a move to another group.
        let anew = reading(3000, 0, (0, 0), 0);
        assert_eq!(anew.load_since(&after), Some(0.0));
    }

    #[test]
    fn ancestors_are_innermost_first() {
        let groups = groups_of("/a/b");
        assert_eq!(
            groups,
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"].map(PathBuf::from)
        );
        assert_eq!(groups_of("/").first(), Some(&PathBuf::from("/sys/fs/cgroup/")));
    }

    /// Whatever this host says, it is a share.
    #[cfg(target_os = "linux")]
    #[test]
    fn this_host_says_something() {
        let Ok(mut system) = SystemCpu::new() else { return };
        let load = std::iter::repeat_with(|| system.load()).take(100_000).find_map(|it| it);
        assert!(load.is_none_or(|load| (0.0..=1.0).contains(&load)), "{load:?}");
    }
}
