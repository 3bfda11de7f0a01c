//! How a call that was let through ended.

/// How a call that was let through ended.
///
/// One outcome serves every part that learns from calls: adaptive limits, breakers, retry budgets.
/// A refusal of our own is no outcome: the call never ran.
///
/// | outcome | examples | a law of [`adaptive`](crate::adaptive) uses it as | a [rate law](crate::adaptive::rate) |
/// |---|---|---|---|
/// | `Success` | 200, 404 | a round trip | a success |
/// | `Failure` | 500, a broken reply | nothing: an error says nothing about load, and is often fast | an error |
/// | `Overload` | timeout, 429, 503, connection refused | a sign of overload (a "drop") | an error |
/// | `Ignore` | the caller went away, a health check, a dropped guard | nothing | nothing |
///
/// # Examples
///
/// ```
/// use tollgate::CallOutcome;
///
/// fn classify(status: u16) -> CallOutcome {
///     match status {
///         429 | 503 => CallOutcome::Overload,
///         500..=599 => CallOutcome::Failure,
///         _ => CallOutcome::Success,
///     }
/// }
/// assert_eq!(classify(503), CallOutcome::Overload);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The call did its work.
    Success,
    /// The call failed for a reason other than load.
    Failure,
    /// The call failed because the other side has too much to do.
    Overload,
    /// The call says nothing about the other side.
    Ignore,
}
