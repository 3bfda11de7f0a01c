//! A breaker compared with a slow model that keeps every call and has no state machine.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Breaker, BreakerState, BreakerWindow, CallOutcome, Clock, Pass, Tick, Trip};

const OPEN_MS: u64 = 50;
const PATIENCE_MS: u64 = 1000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    End(usize, CallOutcome),
    EndUntil(usize, u64),
    Wait(u64),
    Automatic,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    by_time: bool,
    size: u64,
    percent: u64,
    min_calls: u64,
    trials: usize,
}

/// One call that passed: its number, the epoch it began in, whether it is a trial, and when it began.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    number: u64,
    epoch: u64,
    is_trial: bool,
    began_ms: u64,
}

/// The model: epochs are numbered, and every ended call is kept with its time and result.
struct Model {
    settings: Settings,
    now_ms: u64,
    calls: u64,
    epoch: u64,
    /// Ended calls of this closed epoch: (when, failed).
    ended: Vec<(u64, bool)>,
    open_until_ms: Option<u64>,
    /// Trials under way, and successes, while half-open.
    trying: Option<(Vec<Call>, usize)>,
    breaks: u32,
}

impl Model {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            now_ms: 0,
            calls: 0,
            epoch: 0,
            ended: vec![],
            open_until_ms: None,
            trying: None,
            breaks: 0,
        }
    }

    fn state(&self) -> BreakerState {
        match (&self.trying, self.open_until_ms) {
            (Some(_), _) => BreakerState::HalfOpen,
            (None, Some(_)) => BreakerState::Open,
            (None, None) => BreakerState::Closed,
        }
    }

    fn start(&mut self) -> Result<Call, u64> {
        if let Some(until) = self.open_until_ms {
            if self.now_ms < until {
                return Err(until);
            }
            self.epoch += 1;
            (self.open_until_ms, self.trying) = (None, Some((vec![], 0)));
        }
        self.calls += 1;
        let (number, epoch, began_ms) = (self.calls, self.epoch, self.now_ms);
        let Some((running, succeeded)) = &mut self.trying else {
            return Ok(Call { number, epoch, is_trial: false, began_ms });
        };
        if running.len() + *succeeded == self.settings.trials {
            let oldest = running.iter().map(|call| call.began_ms).min().unwrap();
            if oldest + PATIENCE_MS > self.now_ms {
                return Err(oldest + PATIENCE_MS);
            }
            let place = running.iter().position(|call| call.began_ms == oldest).unwrap();
            running.remove(place);
        }
        let call = Call { number, epoch, is_trial: true, began_ms };
        running.push(call);
        Ok(call)
    }

    fn open(&mut self, until_ms: u64) {
        self.breaks += 1;
        self.epoch += 1;
        (self.open_until_ms, self.trying) = (Some(until_ms), None);
    }

    fn open_by_itself(&mut self) {
        let length = (OPEN_MS << self.breaks.min(10)).min(8 * OPEN_MS);
        self.open(self.now_ms + length);
    }

    fn close(&mut self) {
        self.epoch += 1;
        (self.breaks, self.ended, self.open_until_ms, self.trying) = (0, vec![], None, None);
    }

    fn end(&mut self, call: Call, outcome: CallOutcome) {
        if call.epoch != self.epoch {
            return;
        }
        let failed = matches!(outcome, CallOutcome::Failure | CallOutcome::Overload);
        if let Some((running, succeeded)) = &mut self.trying {
            let Some(place) = running.iter().position(|it| *it == call) else { return };
            running.remove(place);
            if failed {
                self.open_by_itself();
            } else if outcome == CallOutcome::Success {
                *succeeded += 1;
                if *succeeded == self.settings.trials {
                    self.close();
                }
            }
            return;
        }
        if outcome == CallOutcome::Ignore || self.open_until_ms.is_some() {
            return;
        }
        self.ended.push((self.now_ms, failed));
        let Settings { by_time, size, percent, min_calls, .. } = self.settings;
        let last = self.ended.len() as u64;
        let bucket = |ms: u64| ms * 10 / size;
        let now = bucket(self.now_ms);
        let in_window = |(index, (ms, _)): &(usize, &(u64, bool))| match by_time {
            true => bucket(*ms) + 10 > now,
            false => *index as u64 + size >= last,
        };
        let window: Vec<_> = self.ended.iter().enumerate().filter(in_window).collect();
        let failures = window.iter().filter(|(_, (_, failed))| *failed).count() as u64;
        let (calls, is_bad) = (window.len() as u64, failed);
        if is_bad && calls >= min_calls && failures * 100 >= percent * calls {
            self.open_by_itself();
        }
    }

    fn end_until(&mut self, call: Call, until_ms: u64) {
        let is_known = match &self.trying {
            Some((running, _)) => running.contains(&call),
            None => self.open_until_ms.is_none(),
        };
        if call.epoch == self.epoch && is_known && until_ms > self.now_ms {
            self.open(until_ms);
        } else {
            self.end(call, CallOutcome::Overload);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        3 => Just(CallOutcome::Success),
        3 => Just(CallOutcome::Failure),
        1 => Just(CallOutcome::Overload),
        1 => Just(CallOutcome::Ignore),
    ];
    let step = prop_oneof![
        8 => Just(Step::Start),
        8 => (0..8_usize, outcome).prop_map(|(call, outcome)| Step::End(call, outcome)),
        1 => (0..8_usize, 0..200_u64).prop_map(|(call, ms)| Step::EndUntil(call, ms)),
        4 => prop_oneof![0..20_u64, 40..60_u64, 90..450_u64, 990..1010_u64].prop_map(Step::Wait),
        1 => Just(Step::Automatic),
    ];
    proptest::collection::vec(step, 1..200)
}

fn settings() -> impl Strategy<Value = Settings> {
    (any::<bool>(), 1..12_u64, 1..=100_u64, 1..8_u64, 1..4_usize).prop_map(
        |(by_time, size, percent, min_calls, trials)| {
            // A bucket is a whole number of milliseconds, so that the model can count in them.
            let size = if by_time { size * 10 } else { size };
            let min_calls = if by_time { min_calls } else { min_calls.min(size) };
            Settings { by_time, size, percent, min_calls, trials }
        },
    )
}

fn build(settings: Settings, clock: Clock) -> Breaker {
    let Settings { by_time, size, percent, min_calls, trials } = settings;
    let window = match by_time {
        true => BreakerWindow::time(Duration::from_millis(size)),
        false => BreakerWindow::calls(size as u32),
    };
    Breaker::builder()
        .trip(Trip::failure_percent(percent as u32))
        .window(window)
        .min_calls(min_calls)
        .open_for(Duration::from_millis(OPEN_MS))
        .most(Duration::from_millis(8 * OPEN_MS))
        .jitter(0)
        .trials(trials as u32)
        .clock(clock)
        .build()
        .unwrap()
}

proptest! {
    #[test]
    fn decides_as_the_model_does(settings in settings(), steps in steps()) {
        let (clock, hand) = Clock::manual();
        let breaker = build(settings, clock);
        let mut model = Model::new(settings);
        let mut running: Vec<(Call, Pass<'_>)> = vec![];
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Step::Start => match (model.start(), breaker.try_pass()) {
                    (Ok(call), Ok(pass)) => {
                        prop_assert_eq!(pass.is_trial(), call.is_trial, "step {}", index);
                        running.push((call, pass));
                    }
                    (Err(until_ms), Err(open)) => {
                        let until = Tick::from_millis(until_ms);
                        prop_assert_eq!(open.retry_at(), Some(until), "step {}", index);
                    }
                    (model, breaker) => prop_assert!(false, "{index}: {model:?}, {breaker:?}"),
                },
                Step::End(number, outcome) if number < running.len() => {
                    let (call, pass) = running.remove(number);
                    model.end(call, outcome);
                    if outcome == CallOutcome::Ignore { drop(pass) } else { pass.end(outcome) }
                }
                Step::EndUntil(number, ms) if number < running.len() => {
                    let (call, pass) = running.remove(number);
                    model.end_until(call, model.now_ms + ms);
                    pass.end_until(CallOutcome::Overload, Tick::from_millis(model.now_ms + ms));
                }
                Step::End(..) | Step::EndUntil(..) => {}
                Step::Wait(ms) => {
                    model.now_ms += ms;
                    hand.advance(Duration::from_millis(ms));
                }
                Step::Automatic => {
                    model.close();
                    breaker.automatic();
                }
            }
            prop_assert_eq!(breaker.state(), model.state(), "step {}: {:?}", index, step);
        }
    }
}
