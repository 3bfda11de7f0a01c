//! Load shedding, the hook of a degraded service, and the header.

use super::{MS, Scene, scene};
use crate::concurrency::{ask, request};
use http::Request;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU8, Ordering::SeqCst},
};
use tollgate::Priority;
use tollgate_tower::{Degradation, NotRun, Shedding};

fn of(urgency: u8) -> Request<String> {
    let mut request = request("/");
    request.extensions_mut().insert(Priority::new(urgency).unwrap());
    request
}

/// Returns the status and the header of a request.
async fn response(scene: &Scene, urgency: u8) -> (u16, Option<String>) {
    let response = ask(&scene.service, of(urgency)).await;
    assert_eq!(response.extensions().get::<NotRun>().is_some(), response.status() == 503);
    let header = response.headers().get("tollgate-shedding");
    (response.status().as_u16(), header.map(|value| value.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn under_load_the_least_urgent_are_refused_first() {
    let percent = Arc::new(AtomicU8::new(0));
    let read = Arc::clone(&percent);
    // ORDERING: one thread.
    let load = move || f64::from(read.load(SeqCst)) / 100.0;
    let scene = scene(100, |builder| builder.shed(Shedding::load(load, 0.9)).shedding_header());
    let served = async |urgency| response(&scene, urgency).await.0 == 200;
    assert!(served(7).await);
    for (row, (now, lowest)) in
        [(95, 6), (95, 5), (80, 5), (50, 6), (100, 5), (50, 6), (50, 7)].into_iter().enumerate()
    {
        percent.store(now, SeqCst);
        scene.hand.advance(1_000 * MS);
        for urgency in 0..8 {
            let row = format!("row {row}, load {now} %, urgency {urgency}");
            assert_eq!(served(urgency).await, urgency <= lowest, "{row}");
        }
    }
    assert_eq!(scene.limit.report().in_flight, 0);
}

/// Returns the names of the headers of a request that is shed.
pub(crate) async fn headers_of_a_refusal() -> Vec<String> {
    let scene = scene(1, |builder| builder.shedding_header());
    let _held = ask(&scene.service, of(7)).await;
    drop(ask(&scene.service, of(7)).await);
    scene.hand.advance(1_000 * MS);
    let refused = ask(&scene.service, of(7)).await;
    refused.headers().keys().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_header_names_the_lowest_priority_served() {
    let scene = scene(100, |builder| builder.shed(Shedding::load(|| 1.0, 0.5)).shedding_header());
    assert_eq!(response(&scene, 7).await, (200, None));
    scene.hand.advance(1_000 * MS);
    assert_eq!(response(&scene, 7).await, (503, None), "the second has just begun");
    assert_eq!(response(&scene, 4).await, (200, None));
    scene.hand.advance(1_000 * MS);
    assert_eq!(response(&scene, 3).await, (200, Some("4".into())));
    assert_eq!(response(&scene, 7).await, (503, Some("4".into())), "refusals have it, too");
}

#[tokio::test]
async fn a_minute_of_refusals_is_reported_and_its_end() {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&changes);
    let scene =
        scene(1, |builder| builder.on_degradation(move |change| seen.lock().unwrap().push(change)));
    let minute = async |held: bool| {
        let held = if held { Some(ask(&scene.service, request("/")).await) } else { None };
        for _ in 0..6 {
            scene.hand.advance(10_000 * MS);
            drop(ask(&scene.service, request("/")).await);
        }
        drop(held);
        std::mem::take(&mut *changes.lock().unwrap())
    };
    assert_eq!(minute(false).await, []);
    assert_eq!(minute(true).await, [Degradation::Began]);
    assert_eq!(minute(true).await, [], "it goes on");
    assert_eq!(minute(false).await, [Degradation::Ended]);
}
