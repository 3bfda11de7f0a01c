//! What the kernel's files say. Any text may come: what does not parse is `None`.

/// The path of this process' cgroup in the v2 tree, from `/proc/self/cgroup`: `0::/a/b`.
pub(super) fn cgroup_path(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end();
    // A group outside of this namespace is shown as `/..`.
    let is_inside = path.starts_with('/') && path.split('/').all(|part| part != "..");
    is_inside.then_some(path)
}

/// How many processors a group may use, from `cpu.max`: `150000 100000` are 1.5; `None` for `max`,
/// no limit.
pub(super) fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok()?;
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// CPU time used so far, in microseconds, from `cpu.stat`.
pub(super) fn usage_us(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

/// Time in which some task waited so far, in microseconds, from a pressure file:
/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=4242`.
pub(super) fn pressure_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok()
}

/// Busy and total time of all processors so far, in the same unit, from `/proc/stat`:
/// `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
pub(super) fn host(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // Guests are in `user` already.
    let words = line.split_ascii_whitespace().take(8);
    let times: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    // Old kernels have only the first four.
    let (idle, iowait) = (times.get(3)?, times.get(4).unwrap_or(&0));
    let total = times.iter().try_fold(0_u64, |sum, time| sum.checked_add(*time))?;
    Some((total - idle - iowait, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(
            cgroup_path("12:cpu:/old\n0::/system.slice/a.service\n").unwrap(),
            "/system.slice/a.service"
        );
        assert_eq!(cgroup_path("0::/\n"), Some("/"));
        assert_eq!(cgroup_path("0::/../../other\n"), None);
        assert_eq!(cgroup_path("4:memory:/v1\n"), None);
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!(cpu_max("0 0\n"), None);
        let stat = "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\nnr_periods 0\n";
        assert_eq!(usage_us(stat), Some(123_456));
        let pressure = "some avg10=1.53 avg60=0.87 avg300=0.64 total=94813291\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        assert_eq!(pressure_us(pressure), Some(94_813_291));
        let stat = "cpu  100 5 50 800 40 3 2 10 7 0\ncpu0 50 2 25 400 20 1 1 5 3 0\nintr 1\n";
        assert_eq!(host(stat), Some((170, 1010)));
        assert_eq!(host("cpu 1 2 3 4\n"), Some((6, 10)));
        assert_eq!(host("cpu 1 2 3\n"), None);
        assert_eq!(host(&format!("cpu {0} {0} 0 0\n", u64::MAX)), None);
    }

    /// Lines that look almost right, and lines that do not.
    fn garbage() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("cpu".to_owned()),
            Just("usage_usec".to_owned()),
            Just("some".to_owned()),
            Just("total=".to_owned()),
            Just("0::".to_owned()),
            Just("max".to_owned()),
            Just("\n".to_owned()),
            Just("/..".to_owned()),
            any::<u64>().prop_map(|it| it.to_string()),
            any::<i64>().prop_map(|it| it.to_string()),
            any::<f64>().prop_map(|it| it.to_string()),
            "\\PC{0,8}",
        ];
        let joined =
            (prop::collection::vec(word, 0..24), prop_oneof![Just(" "), Just(""), Just("\n")]);
        prop_oneof![".{0,200}", joined.prop_map(|(words, by)| words.join(by))]
    }

    proptest! {
        #[test]
        fn garbage_is_nothing_or_a_number(text in garbage()) {
            if let Some(path) = cgroup_path(&text) {
                prop_assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."));
            }
            prop_assert!(cpu_max(&text).is_none_or(|cpus| cpus.is_finite() && cpus > 0.0));
            prop_assert!(host(&text).is_none_or(|(busy, total)| busy <= total));
            let _ = (usage_us(&text), pressure_us(&text));
        }
    }
}
