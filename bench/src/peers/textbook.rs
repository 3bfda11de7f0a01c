//! Textbook implementations: a token bucket behind a mutex, and a channel filled by a ticker.

use super::{
    DENIED_BURST, FULL_RATE, HAMMERED_BURST, HAMMERED_RATE, PARTLY_BURST, PARTLY_RATE, PARTLY_USED,
};
use crate::{
    grid::{Case, Row, repeating},
    harness::Subject,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

struct Bucket {
    tokens: f64,
    last: Instant,
}

/// The usual one: a float of tokens, refilled by the time since the last call.
struct MutexBucket {
    rate: f64,
    capacity: f64,
    bucket: Mutex<Bucket>,
}

impl MutexBucket {
    fn allow(&self) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let elapsed = now.duration_since(bucket.last).as_secs_f64();
        bucket.last = now;
        bucket.tokens = self.capacity.min(bucket.tokens + elapsed * self.rate);
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    }
}

fn mutex_bucket(case: Case) -> Option<MutexBucket> {
    let (rate, burst, used) = match case {
        Case::Full => (FULL_RATE as f64, FULL_RATE, 0),
        Case::Partly | Case::Half => (PARTLY_RATE as f64, PARTLY_BURST, PARTLY_USED),
        Case::Denied => (1.0 / 3600.0, DENIED_BURST, DENIED_BURST),
        Case::Hammered => (HAMMERED_RATE as f64, HAMMERED_BURST, 0),
    };
    let bucket = Bucket { tokens: (burst - used) as f64, last: Instant::now() };
    Some(MutexBucket { rate, capacity: burst as f64, bucket: Mutex::new(bucket) })
}

/// A token bucket behind a mutex.
pub(crate) fn mutex() -> Row {
    Row::shared("textbook: token bucket in a mutex", mutex_bucket, MutexBucket::allow)
}

/// Tokens in a channel, which a thread of its own refills.
struct ChannelBucket {
    tokens: Mutex<Receiver<()>>,
    /// Keeps the ticker alive.
    ticket: Arc<SyncSender<()>>,
}

/// How many tokens the channel holds: it allocates memory for each.
const CHANNEL_CAPACITY: u64 = 1 << 18;

impl ChannelBucket {
    fn new(capacity: u64, every: Duration) -> Self {
        let (sender, receiver) = sync_channel(capacity as usize);
        let ticket = Arc::new(sender);
        let weak = Arc::downgrade(&ticket);
        thread::spawn(move || tick(&weak, every));
        Self { tokens: Mutex::new(receiver), ticket }
    }

    fn allow(&self) -> bool {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.try_recv().is_ok()
    }

    fn fill(&self) {
        while self.ticket.try_send(()).is_ok() {}
    }
}

/// Adds one token per interval, until the bucket is dropped.
fn tick(bucket: &Weak<SyncSender<()>>, every: Duration) {
    while let Some(sender) = bucket.upgrade() {
        let _full = sender.try_send(());
        drop(sender);
        thread::sleep(every);
    }
}

/// A channel and a ticker.
pub(crate) fn channel() -> Row {
    Row::new("textbook: channel and ticker thread", |case| {
        let (capacity, every) = match case {
            Case::Partly => (CHANNEL_CAPACITY, Duration::from_millis(1)),
            // The ticker checks every tenth of a second whether it is still needed.
            Case::Denied => (DENIED_BURST, Duration::from_millis(100)),
            // A thread cannot tick a million times a second, let alone 10^9 times.
            Case::Full | Case::Half | Case::Hammered => return None,
        };
        let bucket = Arc::new(ChannelBucket::new(capacity, every));
        let subject: Subject =
            repeating(Arc::clone(&bucket), |bucket: &Arc<ChannelBucket>| bucket.allow());
        Some(match case {
            Case::Partly => subject.prepared(CHANNEL_CAPACITY, move || bucket.fill()),
            _ => subject,
        })
    })
}
