//! Clients with requests and responses of their own, as services of the crate `http`.

use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_service::Service;

/// Lets layers of tower wrap a client that has its own types of requests and responses, such as
/// `reqwest::Client`.
///
/// `Q` is the client's type of requests. The service converts an [`http::Request`] into it, and the
/// client's responses into [`http::Response`] with a body of the same type as the request's. A
/// request that cannot be converted fails with the client's error.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate_tower::client::{HttpClient, PaceLayer};
/// use tower_layer::Layer;
/// use tower_service::Service;
///
/// let reqwest = HttpClient::<_, reqwest::Request>::new(reqwest::Client::new());
/// let mut client = PaceLayer::builder().build()?.layer(reqwest);
/// let request = Request::get("http://127.0.0.1:8080/").body(reqwest::Body::default())?;
/// let call = client.call(request); // a future of Response<reqwest::Body>
/// # drop(call);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HttpClient<S, Q> {
    inner: S,
    request: PhantomData<fn() -> Q>,
}

impl<S, Q> HttpClient<S, Q> {
    /// Wraps a client.
    pub const fn new(client: S) -> Self {
        Self { inner: client, request: PhantomData }
    }
}

impl<S, Q, B> Service<Request<B>> for HttpClient<S, Q>
where
    S: Service<Q, Response: Into<Response<B>>>,
    Q: TryFrom<Request<B>, Error: Into<S::Error>>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = HttpClientFuture<S::Future, S::Error, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (future, error) = match Q::try_from(request) {
            Ok(request) => (Some(self.inner.call(request)), None),
            Err(error) => (None, Some(error.into())),
        };
        HttpClientFuture { future, error, body: PhantomData }
    }
}

impl<S: Clone, Q> Clone for HttpClient<S, Q> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone())
    }
}

impl<S: fmt::Debug, Q> fmt::Debug for HttpClient<S, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpClient").field(&self.inner).finish()
    }
}

pin_project! {
    /// The response future of [`HttpClient`].
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct HttpClientFuture<F, E, B> {
        #[pin]
        future: Option<F>,
        // The error of a request that could not be converted.
        error: Option<E>,
        body: PhantomData<fn() -> B>,
    }
}

impl<F, P, E, B> Future for HttpClientFuture<F, E, B>
where
    F: Future<Output = Result<P, E>>,
    P: Into<Response<B>>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(error) = this.error.take() {
            return Poll::Ready(Err(error));
        }
        let Some(future) = this.future.as_pin_mut() else {
            debug_assert!(false, "polled after it was ready");
            return Poll::Pending;
        };
        Poll::Ready(ready!(future.poll(context)).map(Into::into))
    }
}

impl<F, E, B> fmt::Debug for HttpClientFuture<F, E, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClientFuture")
    }
}
