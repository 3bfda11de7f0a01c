//! How a request is sent again, and the copy that is kept for that.

use http::Request;

/// How requests are sent again; given to a [`RetryBuilder`](super::RetryBuilder).
///
/// [`CloneBody`] clones them, a closure `|request: &Request<B>| -> Option<Request<B>>` clones some
/// of them, and [`Replay`](super::Replay) keeps the frames read of their bodies. Other types need
/// not implement it.
pub trait Repeat<B> {
    /// The copy that is kept of a request that was sent.
    type Spare;

    /// Returns the request to send, and the copy to keep: `None` if it is not to be repeated.
    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Self::Spare>);

    /// Tells whether the copy suffices to send the request again.
    fn is_whole(&self, _spare: &Self::Spare) -> bool {
        true
    }

    /// Stops the attempt under way. Tells whether the copy still suffices; if not, nothing is
    /// stopped.
    fn recall(&self, _spare: &Self::Spare) -> bool {
        true
    }

    /// Returns the request to send again, and the copy to keep after that.
    fn again(&self, spare: Self::Spare) -> (Request<B>, Option<Self::Spare>);

    /// Returns the request to send for the last time.
    fn last(&self, spare: Self::Spare) -> Request<B>;
}

/// Clones any request whose body can be cloned.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneBody;

impl<B: Clone> Repeat<B> for CloneBody {
    type Spare = Request<B>;

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Request<B>>) {
        let clone = request.clone();
        (request, Some(clone))
    }

    fn again(&self, spare: Request<B>) -> (Request<B>, Option<Request<B>>) {
        self.keep(spare)
    }

    fn last(&self, spare: Request<B>) -> Request<B> {
        spare
    }
}

impl<B, F: Fn(&Request<B>) -> Option<Request<B>>> Repeat<B> for F {
    type Spare = Request<B>;

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Request<B>>) {
        let clone = self(&request);
        (request, clone)
    }

    fn again(&self, spare: Request<B>) -> (Request<B>, Option<Request<B>>) {
        self.keep(spare)
    }

    fn last(&self, spare: Request<B>) -> Request<B> {
        spare
    }
}
