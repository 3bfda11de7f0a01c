//! The layer around an output layer.
//!
//! It decides in `on_event`: once for each line, after every filter outside has had its say. `enabled` is asked without a line
//! (`tracing::enabled!`), and more than once.
//!
//! A filter inside (`layer.with_filter(..)`) notes its answer to `enabled` in a thread-local, and takes it back in
//! `on_event`. If the throttle left the line out in between, the note would stay and the filter would drop the next line,
//! uncounted. So the throttle does not ask the layer inside when it is asked itself, but just before it hands over a line. A
//! filter inside then also decides about notices, by the callsite that they are about.

use super::{
    Shared,
    notice::Notice,
    state::{FieldValue, Verdict},
};
use std::sync::Arc;
use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};
use tracing_subscriber::{
    layer::{Context, Layer},
    registry::{LookupSpan, SpanRef},
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
    fn note_value<S>(&self, value: Option<FieldValue>, span: Option<SpanRef<'_, S>>)
    where
        S: for<'a> LookupSpan<'a>,
    {
        let (Some(by), Some(value), Some(span)) = (self.shared.state.by(), value, span) else {
            return;
        };
        let mut extensions = span.extensions_mut();
        let mut values = extensions.remove::<SpanValues>().unwrap_or_default();
        values.set(by, value);
        extensions.insert(values);
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
            Verdict::Pass(notices) => {
                notices.iter().flatten().for_each(|notice| self.deliver_notice(notice, &context));
                self.deliver(event.metadata(), event, context);
            }
            Verdict::LeftOut { is_first } => {
                if is_first {
                    self.shared.state.connect_to_global();
                    self.shared.timer.trigger(());
                }
            }
        }
    }

    /// Lets every line through to `on_event`, and stops the request to flush here: no output shows it.
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let state = &self.shared.state;
        if !state.is_asked_to_flush(event) {
            return true;
        }
        state.take_losses().iter().for_each(|notice| self.deliver_notice(notice, &context));
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
        if let Some(by) = self.shared.state.by() {
            let value = FieldValue::find(by, |visitor| attributes.record(visitor));
            self.note_value(value, context.span(id));
        }
        self.inner.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(by) = self.shared.state.by() {
            let value = FieldValue::find(by, |visitor| values.record(visitor));
            self.note_value(value, context.span(id));
        }
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
