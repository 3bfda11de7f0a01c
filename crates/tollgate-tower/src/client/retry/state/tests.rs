//! Attempts that read one body in turn, in any order of events.

use super::*;
use proptest::prelude::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Wake,
};

/// A body that yields numbers, as many as it may.
#[derive(Default)]
struct Tap {
    inner: Arc<Mutex<TapState>>,
}

#[derive(Default)]
struct TapState {
    next: u8,
    ready: u8,
    last: u8,
    waker: Option<Waker>,
}

impl Body for Tap {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let mut tap = self.inner.lock().unwrap();
        if tap.next == tap.last {
            return Poll::Ready(None);
        }
        if tap.next == tap.ready {
            tap.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        tap.next += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&[tap.next])))))
    }
}

/// Lets the body yield one more frame.
fn flow(tap: &Mutex<TapState>) {
    let mut state = tap.lock().unwrap();
    state.ready = (state.ready + 1).min(state.last);
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        // ORDERING: Relaxed, here and below. One thread.
        self.0.fetch_add(1, Relaxed);
    }
}

/// One attempt: its number, what it has read, and whether it has ended.
struct Attempt {
    number: u64,
    read: Vec<u8>,
    wakes: Arc<Count>,
    /// How often it was woken when it began to wait.
    waits: Option<usize>,
    end: Option<Result<(), String>>,
}

impl Attempt {
    fn new(shared: &Shared<Tap>) -> Self {
        Self {
            number: shared.number(),
            read: Vec::new(),
            wakes: Arc::default(),
            waits: None,
            end: None,
        }
    }

    fn poll(&mut self, shared: &Shared<Tap>) {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.waits = None;
        match shared.poll_frame(self.number, &mut Context::from_waker(&waker)) {
            Poll::Pending => self.waits = Some(self.wakes.0.load(Relaxed)),
            Poll::Ready(None) => self.end = Some(Ok(())),
            Poll::Ready(Some(Err(error))) => self.end = Some(Err(error.to_string())),
            Poll::Ready(Some(Ok(frame))) => self.read.extend(frame.into_data().unwrap()),
        }
    }

    /// Tells whether it waits and was not woken since.
    fn sleeps(&self) -> bool {
        self.waits.is_some_and(|waits| waits == self.wakes.0.load(Relaxed))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_attempt_reads_all_from_the_start_and_only_the_latest_reads(
        last in 0..6_u8,
        max_frames in 0..8_usize,
        events in proptest::collection::vec(0..5_u8, 0..40),
    ) {
        let tap = Tap::default();
        tap.inner.lock().unwrap().last = last;
        let flows = Arc::clone(&tap.inner);
        let shared = Shared::new(tap, max_frames * (FRAME_BYTES + 1));
        let mut attempts = vec![Attempt::new(&shared)];
        for event in events {
            let latest = attempts.len() - 1;
            match event {
                0 => flow(&flows),
                1 | 2 => attempts[latest].poll(&shared),
                3 => {
                    let before = latest.saturating_sub(1);
                    attempts[before].poll(&shared);
                }
                _ => {
                    let has_come = flows.lock().unwrap().next;
                    prop_assert_eq!(shared.is_whole(), usize::from(has_come) <= max_frames);
                    if shared.recall() {
                        attempts.push(Attempt::new(&shared));
                        prop_assert!(!attempts[latest].sleeps(), "it is told that it is over");
                    }
                }
            }
            let held: usize = shared.state().pieces.len();
            prop_assert!(held <= max_frames.max(1), "{held} pieces are held");
        }
        // The latest attempt reads on to the end, and is polled whenever it was woken.
        let latest = attempts.len() - 1;
        for _ in 0..50 {
            while !attempts[latest].sleeps() && attempts[latest].end.is_none() {
                attempts[latest].poll(&shared);
            }
            flow(&flows);
        }
        for (place, attempt) in attempts.iter_mut().enumerate() {
            let expected: Vec<u8> = (1..=last).collect();
            prop_assert!(expected.starts_with(&attempt.read), "{:?}", attempt.read);
            if place == latest {
                prop_assert_eq!(&attempt.read, &expected);
                prop_assert_eq!(attempt.end.clone(), Some(Ok(())));
            } else {
                attempt.poll(&shared);
                let ended = attempt.end.clone().unwrap();
                prop_assert!(ended.unwrap_err().contains("sent again"));
            }
        }
    }
}

/// A body that panics when it is polled.
struct Breaks;

impl Body for Breaks {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled {
        panic!("a fault in a body")
    }
}

#[test]
fn a_body_that_panics_has_failed() {
    let shared = Shared::new(Breaks, 100);
    let mut context = Context::from_waker(Waker::noop());
    let poll = std::panic::AssertUnwindSafe(|| drop(shared.poll_frame(0, &mut context)));
    assert!(std::panic::catch_unwind(poll).is_err());
    assert!(!shared.recall());
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Err(error))) = shared.poll_frame(0, &mut context) else {
        panic!("it has failed")
    };
    assert!(error.to_string().contains("panicked"));
    assert!(matches!(shared.poll_frame(0, &mut context), Poll::Ready(None)));
}

/// An action of a body while it is polled for the first time.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A body that is recalled while it is polled, as by another thread.
struct Slow {
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    first: Option<Polled>,
    rest: VecDeque<&'static str>,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if let Some(first) = self.first.take() {
            return first;
        }
        Poll::Ready(self.rest.pop_front().map(|text| Ok(Frame::data(Bytes::from(text)))))
    }
}

#[test]
fn what_comes_to_an_attempt_that_is_recalled_meanwhile_goes_to_the_next() {
    let frame = |text| Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text)))));
    let long: &'static [u8] = &[b'x'; 500];
    // The result of the first poll, the frames that the next attempt reads, and whether there may
    // be a third.
    for (first, expected, may_repeat) in [
        (frame(b"one "), "one two", true),
        (frame(long), "x*500 two", false),
        (Poll::Pending, "two", true),
        (Poll::Ready(None), "", true),
        (Poll::Ready(Some(Err("broken".into()))), "error: broken", false),
    ] {
        let meanwhile = Arc::new(Mutex::new(None));
        let body =
            Slow { meanwhile: Arc::clone(&meanwhile), first: Some(first), rest: ["two"].into() };
        let shared = Arc::new(Shared::new(body, 300));
        let count = Arc::new(Count::default());
        let (other, waker) = (Arc::downgrade(&shared), Waker::from(Arc::clone(&count)));
        *meanwhile.lock().unwrap() = Some(Box::new(move || {
            let shared = other.upgrade().unwrap();
            assert!(shared.recall());
            let mut context = Context::from_waker(&waker);
            assert!(shared.poll_frame(1, &mut context).is_pending(), "the body is out");
        }) as Meanwhile);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Err(error))) = shared.poll_frame(0, &mut context) else {
            panic!("it was recalled")
        };
        assert!(error.to_string().contains("sent again"));
        assert_eq!(count.0.load(Relaxed), 1, "the next is woken");
        let mut read = String::new();
        loop {
            match shared.poll_frame(1, &mut context) {
                Poll::Pending => panic!("nothing is out any more"),
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(error))) => read = format!("error: {error}"),
                Poll::Ready(Some(Ok(frame))) => {
                    read.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
                }
            }
        }
        assert_eq!(read.replace(&"x".repeat(500), "x*500 "), expected);
        assert_eq!(shared.recall(), may_repeat, "{expected}");
    }
}
