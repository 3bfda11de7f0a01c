//! Fallbacks: when they answer, their responses, and the marks on these.

use super::*;
use crate::concurrency::Fed;
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use tollgate_tower::{
    Degraded, FallbackLayer, NotRun, TimeoutLayer,
    fallback::{FallbackBody, FallbackCause},
    timeout::TimeoutPhase,
};
use tower::limit::ConcurrencyLimitLayer;

fn instead() -> Response<Bytes> {
    Response::builder().header("x-from", "fallback").body(Bytes::from_static(b"instead")).unwrap()
}

async fn text(response: Response<FallbackBody<Fed>>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn it_answers_for_failures_refusals_and_errors_and_marks_its_responses() {
    let refused = {
        let mut response = head(403, &[]);
        response.extensions_mut().insert(RefusedBy::new("rate limit", "no", None));
        response
    };
    let not_run = {
        let mut response = head(418, &[]);
        response.extensions_mut().insert(NotRun);
        response
    };
    for (row, (request, is_used)) in [
        (answered(head(200, &[])), false),
        (answered(head(404, &[])), false),
        (answered(head(501, &[])), false),
        (answered(head(429, &[])), true),
        (answered(head(500, &[])), true),
        (answered(head(503, &[])), true),
        (answered(head(200, &[("content-type", "application/grpc"), ("grpc-status", "14")])), true),
        (answered(refused), true),
        (answered(not_run), true),
        (request("/fails"), true),
    ]
    .into_iter()
    .enumerate()
    {
        let layer = FallbackLayer::value(instead()).build().unwrap();
        let (service, mut senders) = limited(&layer);
        let response = once(&service, request).await.unwrap();
        let sender = senders.recv().await.unwrap();
        assert_eq!(response.extensions().get::<Degraded>().is_some(), is_used, "row {row}");
        assert_eq!(layer.used(), u64::from(is_used), "row {row}");
        assert!(!response.headers().contains_key("tollgate-degraded"), "row {row}: not asked for");
        if is_used {
            assert!(sender.is_closed(), "row {row}: what failed is gone");
            assert_eq!(response.status(), StatusCode::OK, "row {row}");
            assert!(response.extensions().get::<NotRun>().is_none(), "row {row}");
            assert_eq!(response.headers()["x-from"], "fallback", "row {row}");
            assert_eq!(text(response).await, "instead", "row {row}");
        }
    }
}

#[tokio::test]
async fn predicates_choose_and_errors_that_are_not_chosen_stay() {
    let layer = FallbackLayer::value(instead())
        .when(|head| head.status == StatusCode::NOT_FOUND)
        .when_error(|error: &String| error.contains("broken"))
        .degraded_header()
        .build()
        .unwrap();
    let (service, _senders) = limited(&layer);
    assert_eq!(once(&service, request("/fails")).await.unwrap_err(), "it failed");
    let response = once(&service, answered(head(500, &[]))).await.unwrap();
    assert_eq!(response.status(), 500);
    assert!(!response.headers().contains_key("tollgate-degraded"));
    let response = once(&service, answered(head(404, &[]))).await.unwrap();
    assert_eq!(response.headers()["tollgate-degraded"], "1");

    let other_type = FallbackLayer::value(instead()).when_error(|_: &u64| false).build().unwrap();
    let (service, _senders) = limited(&other_type);
    assert!(once(&service, request("/fails")).await.is_ok(), "it decides about its own type only");
}

#[tokio::test(start_paused = true)]
async fn a_function_knows_the_request_and_the_reason() {
    let say = |request: &http::request::Parts, cause: &FallbackCause<'_>| {
        let why = match (cause.refused_by(), cause.timeout(), cause.error::<String>()) {
            (Some(refused), _, _) => refused.to_string(),
            (_, Some(timeout), _) => timeout.phase().name().to_owned(),
            (_, _, Some(error)) => error.clone(),
            _ => cause.response().map_or_else(String::new, |head| head.status.to_string()),
        };
        Response::new(Bytes::from(format!("{} {}: {why}", request.method, request.uri.path())))
    };
    let fallback = FallbackLayer::function(say).build().unwrap();
    let scene = scene(|builder| builder);
    let timeout = TimeoutLayer::builder().head(SECOND).clock(Clock::tokio()).build().unwrap();
    let service = fallback.layer(timeout.layer(scene.service.clone()));
    let said = async |request| {
        let response = once(&service, request).await.unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    };
    assert_eq!(said(answered(head(500, &[]))).await, "GET /: 500 Internal Server Error");
    assert_eq!(said(request("/fails")).await, "GET /fails: it failed");
    let open = "refused by breaker: too many calls failed in a row; retry after 5s";
    assert_eq!(said(request("/")).await, format!("GET /: {open}"));
    scene.breaker.automatic();
    let late = TimeoutPhase::Head.name();
    assert_eq!(said(request("/hangs")).await, format!("GET /hangs: {late}"));
}

#[tokio::test]
async fn another_service_gets_the_same_request_when_it_is_ready() {
    let (backup, mut backups) = limited(&ConcurrencyLimitLayer::new(1));
    let layer = FallbackLayer::service(backup.clone()).build().unwrap();
    let (primary, mut senders) = limited(&tower::layer::util::Identity::new());
    let service = layer.layer(tower::limit::ConcurrencyLimit::new(primary, 8));
    let mut other = backup.clone();
    let busy = call(&mut other, request("/hangs")).await;
    let _busy = backups.recv().await.unwrap();

    let mut failing = Box::pin(once(&service, request("/fails")));
    assert!(poll_once(&mut failing).is_pending(), "the backup has no slot");
    assert!(senders.recv().await.unwrap().is_closed(), "the first call is over");
    assert!(backups.try_recv().is_err());
    drop(busy);
    // "/fails" fails there, too: its error is returned.
    assert_eq!(failing.await.err().unwrap(), "it failed");
    assert_eq!(layer.used(), 0);
    let response = once(&service, answered(head(503, &[]))).await.unwrap();
    assert_eq!(response.status(), 503, "whatever the backup says");
    assert!(response.extensions().get::<Degraded>().is_some());
    assert_eq!(layer.used(), 1);
    let used = once(&service, answered(head(200, &[]))).await.unwrap();
    assert!(used.extensions().get::<Degraded>().is_none());
    assert_eq!(std::iter::from_fn(|| backups.try_recv().ok()).count(), 2, "only when it is needed");
}

#[tokio::test]
async fn a_dropped_fallback_frees_the_backup_and_what_is_not_cloned_has_none() {
    let (backup, mut backups) = limited(&ConcurrencyLimitLayer::new(1));
    let clones = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&clones);
    let layer =
        FallbackLayer::service(backup.clone()).clone_with(move |request: &Request<String>| {
            // ORDERING: one thread.
            count.fetch_add(1, SeqCst);
            let mut hangs = Request::get("/hangs").body(request.body().clone()).unwrap();
            hangs.headers_mut().clone_from(request.headers());
            (request.uri().path() != "/whole").then_some(hangs)
        });
    let layer = layer.build().unwrap();
    let (primary, _senders) = limited(&tower::layer::util::Identity::new());
    let service = layer.layer(tower::limit::ConcurrencyLimit::new(primary, 8));
    let mut failing = Box::pin(once(&service, request("/fails")));
    assert!(poll_once(&mut failing).is_pending());
    let sender = backups.recv().await.unwrap();
    drop(failing);
    assert!(sender.is_closed(), "the backup's call is gone");
    assert!(poll_once(&mut Box::pin(backup.clone().ready())).is_ready(), "and its slot is free");

    let mut whole = answered(head(500, &[]));
    *whole.uri_mut() = "/whole".parse().unwrap();
    let response = once(&service, whole).await.unwrap();
    assert_eq!(response.status(), 500, "as it came");
    assert!(response.extensions().get::<Degraded>().is_none());
    assert_eq!((clones.load(SeqCst), layer.used()), (2, 0));
}

#[test]
fn a_value_that_ends_no_call_is_refused() {
    for (status, is_good) in [(100, false), (103, false), (200, true), (304, true), (503, true)] {
        let value = Response::builder().status(status).body(Bytes::new()).unwrap();
        match FallbackLayer::value(value).build() {
            Ok(_) => assert!(is_good, "{status}"),
            Err(error) => {
                assert!(!is_good, "{status}");
                assert_eq!(error.code(), "TG-F01");
                assert!(error.to_string().contains(&status.to_string()), "{error}");
            }
        }
    }
}
