//! Permits of a limiter that are booked ahead.

use crate::Reservation;

/// Permits that go back to the limiter unless they are kept. A drop may wake callers that wait for
/// the limiter, so hold no lock then.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the permits back"]
pub(crate) struct Booked(Option<Reservation>);

impl Booked {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn new(reservation: Reservation) -> Self {
        Self(Some(reservation))
    }

    pub(crate) const fn get(&self) -> Option<&Reservation> {
        self.0.as_ref()
    }

    pub(crate) fn take(&mut self) -> Option<Reservation> {
        self.0.take()
    }

    pub(crate) fn keep(mut self) {
        if let Some(reservation) = self.take() {
            reservation.keep();
        }
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        if let Some(reservation) = self.take() {
            reservation.cancel();
        }
    }
}
