//! A log line that is left out allocates no memory.

use crate::counting::blocks;
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{Driver, ManualClock, Quota, log::LogThrottle};
use tracing_subscriber::{fmt, prelude::*};

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// No other test in this binary sets a subscriber. So this one may be global, with its layer in an
/// `Option`, which does not tell the layer its subscriber.
#[test]
fn a_line_that_is_left_out_asks_for_no_memory_and_the_notice_comes() {
    let (hand, text) = (ManualClock::new(), Text::default());
    let builder = LogThrottle::builder(Quota::per_minute(60).burst(20));
    let throttle = builder.driver(Driver::manual(&hand)).build().unwrap();
    let writer = text.clone();
    let output = fmt::layer().without_time().with_ansi(false).with_writer(move || writer.clone());
    tracing_subscriber::registry().with(Some(throttle.wrap(output))).init();
    let log = |lines: u32| (0..lines).for_each(|line| tracing::warn!(line, "full: {}", "disk"));
    log(21);
    assert_eq!(blocks(|| log(979)), 0);
    hand.advance(Duration::from_secs(30));
    let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with(" WARN tollgate::log: 980 log lines left out callsite="), "{last}");
    assert!(last.ends_with(" left_out=980"), "{last}");
    assert_eq!(text.lines().count(), 21);
}
