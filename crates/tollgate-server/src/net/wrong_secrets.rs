//! Slows down clients that send wrong secrets.
//!
//! A right secret passes at once, regardless of earlier ones from its source. The reply to a wrong
//! one waits: each source has five replies free and one each second after that, by GCRA, and at
//! most five replies wait. The reply to one more waits as long as the last of them, and then the
//! server closes its connection: closing it at once would let an attacker guess faster.

use super::Client;
use crate::server::Shared;
use std::{fmt, net::IpAddr, time::Duration};
use tokio::time::timeout;
use tollgate::{Clock, KeyedLimiter, Quota, WhenFull};

/// Replies to wrong secrets that a source gets at once.
const FREE: u64 = 5;

/// The longest that a reply waits, and so how many of a source wait.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Sources that are tracked. A further one counts as if it had used up its replies.
const MAX_SOURCES: u64 = 65_536;

/// Counts the wrong secrets of each source.
pub(crate) struct WrongSecrets(Option<KeyedLimiter<IpAddr>>);

impl WrongSecrets {
    pub(crate) fn new(clock: &Clock) -> Self {
        let limiter = KeyedLimiter::builder(Quota::per_second(1).burst(FREE))
            .clock(clock.clone())
            .max_keys(MAX_SOURCES)
            .when_full(WhenFull::Refuse)
            .build();
        debug_assert!(limiter.is_ok(), "the quota and the bound are constants");
        Self(limiter.ok())
    }

    /// Counts a wrong secret. Returns how long the reply waits; `None` if too many wait.
    fn next(&self, client: &Client) -> Option<Duration> {
        let limiter = self.0.as_ref()?;
        let now = limiter.now();
        let turn = limiter.reserve_at(&client.source(), now, (1, MAX_WAIT)).ok()?;
        let wait = turn.delay(now);
        turn.keep();
        Some(wait)
    }
}

impl fmt::Debug for WrongSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrongSecrets")
    }
}

/// The effect of a wrong secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Penalty {
    /// The reply is delayed by this time.
    Wait(Duration),
    /// Too many replies to this source wait: this one waits longest, and the connection is closed.
    Close,
}

impl Penalty {
    /// Counts a wrong secret of a client.
    pub(crate) fn of(shared: &Shared, client: &Client) -> Self {
        let wait = shared.wrong_secrets.next(client);
        shared.traffic(client.listener).wrong_secret(wait.is_none());
        wait.map_or(Self::Close, Self::Wait)
    }

    /// Waits, at most until the server shuts down. Returns true if the connection is to be closed.
    pub(crate) async fn served(self, shared: &Shared) -> bool {
        let (wait, closes) = match self {
            Self::Wait(wait) => (wait, false),
            Self::Close => (MAX_WAIT, true),
        };
        if !wait.is_zero() {
            let mut drain = shared.drain();
            let _ = timeout(wait, drain.wait_for(|draining| *draining)).await;
        }
        closes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Listener;

    #[test]
    fn a_source_has_five_replies_free_then_one_each_second_and_five_that_wait() {
        let (clock, hand) = Clock::manual();
        let wrong = WrongSecrets::new(&clock);
        let from = |address: &str| {
            let peer = Some(format!("{address}:1").parse().unwrap());
            Client { listener: Listener::Http, peer, local: None }
        };
        let waits = |address: &str, count: usize| -> Vec<Option<u64>> {
            let next = |_| wrong.next(&from(address)).map(|wait| wait.as_secs());
            (0..count).map(next).collect()
        };
        let expected = [0, 0, 0, 0, 0, 1, 2, 3, 4, 5].map(Some);
        assert_eq!(waits("192.0.2.1", 10), expected);
        assert_eq!(waits("192.0.2.1", 1000), [None; 1000]);
        assert_eq!(waits("[::ffff:192.0.2.1]", 1), [None], "the same address");
        // Another address of the same /64 is the same source; another network is not.
        assert_eq!(waits("[2001:db8::1]", 10), expected);
        assert_eq!(waits("[2001:db8::2]", 1), [None]);
        assert_eq!(waits("[2001:db8:0:1::1]", 1), [Some(0)]);
        let unix = Client { listener: Listener::Resp, peer: None, local: None };
        assert_eq!(wrong.next(&unix), Some(Duration::ZERO));
        hand.advance(Duration::from_secs(1));
        assert_eq!(waits("192.0.2.1", 2), [Some(5), None], "one more each second");
        hand.advance(Duration::from_secs(60));
        assert_eq!(waits("192.0.2.1", 10), expected);
    }

    #[test]
    fn the_number_of_sources_is_bounded() {
        let (clock, _hand) = Clock::manual();
        let wrong = WrongSecrets::new(&clock);
        let at = |number: u32| Client {
            listener: Listener::Http,
            peer: Some((std::net::Ipv4Addr::from(number), 1).into()),
            local: None,
        };
        let refused = (0..100_000).filter(|number| wrong.next(&at(*number)).is_none()).count();
        assert_eq!(refused, 100_000 - 65_536);
    }
}
