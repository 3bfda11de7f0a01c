//! The layer around an output layer.
//!
//! It decides in `on_event`: once for each line, after every filter outside. `tracing` also calls `enabled` without a line
//! (`tracing::enabled!`), and more than once.
//!
//! A filter inside (`layer.with_filter(..)`) notes its answer to `enabled` in a thread-local, and takes it back in
//! `on_event`. If the throttle left the line out in between, the note would stay and the filter would drop the next line,
//! uncounted. So the throttle calls `enabled` of the layer inside not in its own `enabled`, but just before it hands over a line. A
//! filter inside then also decides about notices, by the callsite that they are about.

use super::{
    Shared,
    notice::{Notice, asks_to_flush, is_flush_request},
    state::{FieldValue, LineDecision},
};
use std::sync::Arc;
use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::Visit,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};
use tracing_subscriber::{
    layer::{Context, Layer},
    registry::LookupSpan,
};

/// The layer that [`LogThrottle::wrap`](super::LogThrottle::wrap) returns.
#[derive(Debug)]
pub struct ThrottledLayer<L> {
    inner: L,
    shared: Arc<Shared>,
}

impl<L> ThrottledLayer<L> {
    pub(super) fn new(inner: L, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// Hands an event over to the layer inside, if that wants lines of this callsite.
    fn deliver<S>(&self, callsite: &Metadata<'_>, event: &Event<'_>, context: Context<'_, S>)
    where
        S: Subscriber,
        L: Layer<S>,
    {
        let is_wanted = self.inner.enabled(callsite, context.clone())
            && self.inner.event_enabled(event, context.clone());
        if is_wanted {
            self.inner.on_event(event, context);
        }
    }

    fn deliver_notice<S>(&self, notice: &Notice, context: &Context<'_, S>)
    where
        S: Subscriber,
        L: Layer<S>,
    {
        notice.as_event(|event| self.deliver(notice.about, event, context.clone()));
    }

    /// Hands notices over. If the output panics, what it has not taken is kept.
    fn deliver_notices<S>(&self, mut notices: Vec<Notice>, context: &Context<'_, S>)
    where
        S: Subscriber,
        L: Layer<S>,
    {
        // The next one is the last one, and leaves when it is written.
        notices.reverse();
        let mut untaken = Untaken { shared: &self.shared, notices };
        while let Some(notice) = untaken.notices.last() {
            self.deliver_notice(notice, context);
            untaken.notices.pop();
        }
    }

    /// Returns the value that a line is counted by: that of the event, else that of the innermost span.
    fn value_of<S>(&self, event: &Event<'_>, context: &Context<'_, S>) -> Option<FieldValue>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let by = self.shared.state.by()?;
        FieldValue::find(by, |visitor| event.record(visitor)).or_else(|| {
            let mut scope = context.event_scope(event)?;
            scope.find_map(|span| span.extensions().get::<SpanValues>()?.get(by).cloned())
        })
    }

    /// Keeps the value of a span's field with the span.
    fn note_value<S>(&self, record: impl FnOnce(&mut dyn Visit), id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let Some(by) = self.shared.state.by() else { return };
        let Some(value) = FieldValue::find(by, record) else { return };
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let mut values = extensions.remove::<SpanValues>().unwrap_or_default();
        values.set(by, value);
        extensions.insert(values);
    }
}

/// Notices that the output has not taken yet.
struct Untaken<'a> {
    shared: &'a Shared,
    notices: Vec<Notice>,
}

impl Drop for Untaken<'_> {
    fn drop(&mut self) {
        if !self.notices.is_empty() {
            self.shared.state.put_back(std::mem::take(&mut self.notices));
            self.shared.timer.trigger(());
        }
    }
}

/// The values of one span, for throttles that count by different fields.
#[derive(Debug, Default)]
struct SpanValues(Vec<(Box<str>, FieldValue)>);

impl SpanValues {
    fn get(&self, field: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(name, _)| **name == *field).map(|(_, value)| value)
    }

    fn set(&mut self, field: &str, value: FieldValue) {
        self.0.retain(|(name, _)| **name != *field);
        self.0.push((field.into(), value));
    }
}

impl<S, L> Layer<S> for ThrottledLayer<L>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    L: Layer<S>,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let value = self.value_of(event, &context);
        match self.shared.state.decide(event, value.as_ref()) {
            LineDecision::Pass(notices) => {
                self.deliver_notices(notices.into_iter().flatten().collect(), &context);
                self.deliver(event.metadata(), event, context);
            }
            LineDecision::LeftOut { is_first } => {
                if is_first {
                    self.shared.state.connect_to_global();
                    self.shared.timer.trigger(());
                }
            }
        }
    }

    /// Lets every line through to `on_event`, and stops the request to flush here: no output shows it. A request to a
    /// throttle inside is handed over.
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let state = &self.shared.state;
        if !asks_to_flush(event, state.number) {
            return !is_flush_request(event) || self.inner.event_enabled(event, context);
        }
        self.deliver_notices(state.take_notices(), &context);
        false
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        !metadata.is_span() || self.inner.enabled(metadata, context)
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let interest = self.inner.register_callsite(metadata);
        if metadata.is_span() { interest } else { Interest::always() }
    }

    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.shared.state.connect(dispatch);
        self.inner.on_register_dispatch(dispatch);
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.inner.on_layer(subscriber);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.note_value(|visitor| attributes.record(visitor), id, &context);
        self.inner.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.note_value(|visitor| values.record(visitor), id, &context);
        self.inner.on_record(id, values, context);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        self.inner.on_follows_from(id, follows, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.inner.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.inner.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.inner.on_close(id, context);
    }

    fn on_id_change(&self, old: &Id, new: &Id, context: Context<'_, S>) {
        self.inner.on_id_change(old, new, context);
    }
}
