//! Explains a quota, in words and numbers.

use crate::span::Span;
use std::{
    io::{self, Write},
    time::Duration,
};
use tollgate::{Algorithm, Clock, Initial, Limiter, Quota, QuotaError};

/// Writes the explanation.
pub(super) fn text(quota: &Quota, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{quota}\n")?;
    if quota.is_unlimited() {
        return writeln!(out, "Everything passes and nothing is counted.");
    }
    if quota.capacity() == 0 {
        return writeln!(
            out,
            "Nothing passes: the burst is 0, so every cost is too high and waiting does not help."
        );
    }
    rate(quota, out)?;
    let burst = quota.capacity();
    let why = match quota.explicit_burst() {
        Some(_) => "",
        None => " (one period's worth, because no burst is set)",
    };
    writeln!(out, "  burst        {burst} can be saved up and then pass at once{why}")?;
    writeln!(out, "  cost         a cost above {burst} never passes")?;
    fresh(quota, out)?;
    if quota.count() == 0 {
        return writeln!(out, "  in all       {burst}, and then nothing: the rate is zero");
    }
    bounds(quota, out)?;
    windows(quota, out)
}

fn rate(quota: &Quota, out: &mut impl Write) -> io::Result<()> {
    let (number, period) = (quota.count(), quota.period());
    if number == 0 {
        return writeln!(out, "  rate         none: spent permits do not come back");
    }
    write!(out, "  rate         {number} every {}", Span(period))?;
    let period_ns = period.as_nanos();
    let each_ns = period_ns / u128::from(number);
    let about = if period_ns.is_multiple_of(u128::from(number)) { "" } else { "about " };
    // A rounded figure below a microsecond would mislead.
    if number > 1 && (about.is_empty() || each_ns >= 1_000) {
        let each = Duration::from_nanos(u64::try_from(each_ns).unwrap_or(u64::MAX));
        write!(out, ", one {about}every {}", Span(each))?;
    }
    writeln!(out)
}

/// Asks a limiter rather than a formula what happens at the start, and from empty.
fn fresh(quota: &Quota, out: &mut impl Write) -> io::Result<()> {
    let permits = |number: u64| match number {
        1 => "1 passes".to_owned(),
        number => format!("{number} pass"),
    };
    match quota.initial_fill() {
        Initial::Full => writeln!(
            out,
            "  fresh start  full: {} at once, also after a restart",
            permits(quota.capacity())
        )?,
        Initial::Permits(number) if number > 0 => {
            writeln!(out, "  fresh start  {} at once, then the rate", permits(number))?
        }
        _ => writeln!(out, "  fresh start  empty: nothing passes at once")?,
    }
    let Ok((first, full)) = from_empty(quota) else {
        return Ok(());
    };
    if let (Some(first), Some(full)) = (first, full) {
        writeln!(
            out,
            "  from empty   the first passes after {}, full after {}",
            Span(first),
            Span(full)
        )?;
    }
    Ok(())
}

type Waits = (Option<Duration>, Option<Duration>);

/// Returns how long an emptied limiter takes to admit one, and to be full; none if never.
fn from_empty(quota: &Quota) -> Result<Waits, QuotaError> {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder(quota.initial(Initial::Empty)).clock(clock).build()?;
    let (decision, now) = (limiter.peek(), limiter.now());
    Ok((decision.retry_after(now), decision.reset_after(now)))
}

fn bounds(quota: &Quota, out: &mut impl Write) -> io::Result<()> {
    let burst = quota.capacity();
    writeln!(out, "\nThe most that can pass, burst + rate x time:")?;
    let mut spans =
        vec![1, 60, 3_600, 86_400].into_iter().map(Duration::from_secs).collect::<Vec<_>>();
    spans.push(quota.period());
    spans.sort();
    spans.dedup();
    for span in spans {
        let refilled =
            u128::from(quota.count()) * span.as_nanos() / quota.period().as_nanos().max(1);
        writeln!(
            out,
            "  in any {:<6}{:>14} = {burst} + {refilled}",
            Span(span).to_string(),
            u128::from(burst) + refilled
        )?;
    }
    writeln!(
        out,
        "If your backend cannot take that much, lower the burst; sliding-log enforces a hard \
         limit."
    )
}

/// Says what the windows make of the quota, or why they refuse it.
fn windows(quota: &Quota, out: &mut impl Write) -> io::Result<()> {
    let (limit, period) = (quota.count(), Span(quota.period()));
    writeln!(out, "\nAs a window:")?;
    if quota.explicit_burst().is_some_and(|burst| burst != limit) {
        let window = Quota::per(limit, quota.period());
        return writeln!(
            out,
            "  windows have no burst and reject this quota; they would accept {window}"
        );
    }
    let double = limit.saturating_mul(2);
    for (algorithm, promise) in [
        (
            Algorithm::FixedWindow,
            format!(
                "{limit} in each {period} since the epoch; up to {double} across a window boundary"
            ),
        ),
        (
            Algorithm::AnchoredWindow,
            format!(
                "{limit} in each {period} from its first event; up to {} across a window boundary",
                double.saturating_sub(1)
            ),
        ),
        (
            Algorithm::SlidingCounter,
            format!("about {limit} in any {period}, by estimate; never more than {double}"),
        ),
        (Algorithm::SlidingLog, format!("{limit} in every {period}, exactly")),
    ] {
        let (clock, _hand) = Clock::manual();
        let limiter = Limiter::builder(*quota).algorithm(algorithm).clock(clock);
        let promise = match limiter.build() {
            Ok(_) => promise,
            Err(error) => format!("rejects it: {error}"),
        };
        writeln!(out, "  {:<16} {promise}", algorithm.name())?;
    }
    Ok(())
}
