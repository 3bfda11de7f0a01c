//! Pictures from canned answers, and one from a real server.

use super::{
    once,
    state::{Picture, Sort, State, Then},
    text, view,
};
use crate::{client::Client, target::Target, tls::TlsArgs};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use serde_json::json;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tollgate::{Clock, store::MemoryStore};
use tollgate_server::{
    admin,
    config::Config,
    engine::{Answer, Ask, Backend, Engine, Hits, Request, Subject, Verb},
    net::{Access, Connection, Listener, Secret, Stream, Token},
    plan::Plan,
    server::{Settings, Shared},
};

fn picture() -> Picture {
    let rate = |allowed: f64, denied: f64| {
        let rate = json!({ "allowed_per_second": allowed, "denied_per_second": denied });
        json!({ "10s": rate })
    };
    let policies = json!({ "version": 3, "total": 4, "policies": [
        { "id": "shop:user", "label": "per-user", "limit": { "text": "100/min" },
          "mode": "enforced", "level": null, "rates": rate(2.0, 98.0),
          "history": [[0, 0], [1, 0], [0, 4], [4, 4]], "bypassed_until": null },
        { "id": "shop:site", "label": "whole-site", "limit": { "text": "5000/s burst 100" },
          "mode": "shadow", "level": 4321, "rates": rate(123.45, 0.0), "bypassed_until": null },
        { "id": "shop:free", "label": "free", "limit": null,
          "mode": "enforced", "level": null, "rates": rate(0.0, 0.0),
          "bypassed_until": { "at": "x", "left_ms": 1001 } },
    ] });
    let top = json!({ "policy": "per-user", "watched": true, "denied": [
        { "key": "ann", "cost": 900, "error": 0 }, { "key": "b\u{1b}[31mob", "cost": 7, "error": 1 },
    ] });
    let store = json!({
        "stores": [{ "name": "default", "kind": "memory", "keys": 1234, "bytes": 3_500_000 }],
        "errors": 2, "last_error": "connection refused", "is_failing": false,
        "listeners": { "http": { "open": 3, "most": 16384, "requests": 77 } },
    });
    let config = json!({ "version": 3, "last_load": { "ok": true, "error": null } });
    Picture {
        policies: serde_json::from_value(policies).unwrap(),
        top: serde_json::from_value(top).unwrap(),
        store: serde_json::from_value(store).unwrap(),
        config: serde_json::from_value(config).unwrap(),
    }
}

fn drawn(state: &State) -> String {
    drawn_at(state, 100)
}

fn drawn_at(state: &State, width: u16) -> String {
    drawn_in(state, width, view::height(state))
}

fn drawn_in(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    text(terminal.draw(|frame| view::draw(frame, state)).unwrap().buffer)
}

fn client(address: &str, token: Option<&str>) -> Client {
    let target = Target::new(address, &TlsArgs::default(), b"").unwrap();
    Client::new(target, token.map(str::to_owned)).unwrap()
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

#[test]
fn draws_what_it_was_told() {
    let mut state = State::new("127.0.0.1:6070".into(), String::new());
    state.show(Ok(picture()));
    let wanted = "\
tollgate 127.0.0.1:6070  configuration 3
store default (memory) 1234 keys 3.3 MiB  errors: 2 so far, last: connection refused
listeners (open/most, requests): http 3/16384 77
 3 of 4 policies by denied, rates of the last 3 s ──────────────────────────────────────────────────
  policy               limit            allowed/s  denied/s denied     left last 24 s
> per-user             100/min                1.7       2.7   62 %        -  ▁▄█
  whole-site (shadow)  5000/s burst 100     123.5       0.0    0 %     4321
  free (bypassed, 2 s) unlimited              0.0       0.0      -        -
 most denied keys of per-user ──────────────────────────────────────────────────────────────────────
      denied  key
         900  ann
           7  b\\u{1b}[31mob
q quit  up/down select  s sort  / filter  ? help
";
    assert_eq!(drawn(&state), wanted, "\n{}", drawn(&state));
}

#[test]
fn a_concurrency_limit_is_shown_with_what_is_in_flight() {
    let mut picture = picture();
    let policy = &mut picture.policies.policies[0];
    policy.limit = Some(serde_json::from_value(json!({ "text": "10 in flight" })).unwrap());
    policy.in_flight = Some(7);
    let mut state = State::new("a".into(), String::new());
    state.show(Ok(picture));
    assert!(
        drawn(&state).contains("per-user             10 in flight, 7 now"),
        "{}",
        drawn(&state)
    );
}

#[test]
fn a_rate_that_moves_is_shown_with_its_reason() {
    let mut picture = picture();
    let policy = &mut picture.policies.policies[0];
    policy.limit = Some(serde_json::from_value(json!({ "text": "100/s" })).unwrap());
    let adaptive = json!({
        "per_second": 72.94, "own_per_second": 80.0, "min_per_second": 10.0, "max_per_second": 200.0,
        "reason": "fleet", "follow": "cpu",
    });
    policy.adaptive = Some(serde_json::from_value(adaptive).unwrap());
    let warn = json!([{ "percent": 80, "crossed": 1 }, { "percent": 95, "crossed": 0 }]);
    policy.warn = serde_json::from_value(warn).unwrap();
    let mut state = State::new("a".into(), String::new());
    state.show(Ok(picture));
    for part in [
        "100/s, now 72.9/s fleet",
        "\nadaptive: 72.9/s of 10 to 200/s, follows cpu: fleet, by itself 80/s\n",
        "\nthresholds: 80 % crossed 1 time, 95 % crossed 0 times\n most denied keys",
    ] {
        assert!(drawn(&state).contains(part), "{part:?} is not in\n{}", drawn(&state));
    }
    state.press(key(KeyCode::Down));
    assert!(!drawn(&state).contains("adaptive:"), "it is about the chosen policy");
}

#[test]
fn breakers_that_are_open_come_first() {
    let node = |address: &str, state: &str, last_error: Option<&str>| {
        json!({
            "address": address, "state": state, "in_flight": 3, "last_error": last_error,
        })
    };
    let mut picture = picture();
    let nodes = [
        node("10.0.0.1:6379", "up", None),
        node("10.0.0.2:6379", "open", Some("connection\u{1b} refused")),
    ];
    let shared = json!({
        "fleet_size": 2, "degraded": null, "leased": 5, "calls": 99, "nodes": nodes,
    });
    picture.store.stores[0].shared = Some(serde_json::from_value(shared).unwrap());
    let mut state = State::new("a".into(), String::new());
    state.show(Ok(picture));
    let text = drawn(&state);
    let wanted = "\nbreakers: 10.0.0.2:6379 OPEN (connection\\u{1b} refused)  10.0.0.1:6379 closed, 3 in \
                  flight\n";
    assert!(text.contains(wanted), "{text}");
    assert!(text.contains("fleet 2 calls 99 leased 5"), "{text}");
}

#[test]
fn a_question_mark_shows_the_keys_and_any_key_closes_them() {
    let mut state = State::new("a".into(), String::new());
    let mut more = picture();
    for _ in 0..3 {
        more.policies.policies.extend(picture().policies.policies);
    }
    state.show(Ok(more));
    assert_eq!(state.press(key(KeyCode::Char('?'))), Then::Draw);
    let text = drawn(&state);
    for part in ["help", "quit", "select a policy", "sort by", "filter policies", "show this list"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("whole-site"), "{text}");
    assert_eq!(state.press(key(KeyCode::Char('s'))), Then::Draw);
    assert!(drawn(&state).contains("whole-site") && state.sort() == Sort::Denied);
    state.press(key(KeyCode::Char('?')));
    assert_eq!(state.press(key(KeyCode::Char('q'))), Then::Quit);
}

#[test]
fn the_width_is_used_and_what_does_not_fit_is_elided() {
    let mut picture = picture();
    let policies = &mut picture.policies.policies;
    policies[0].label = "every-request-of-a-tenant-to-the-search-service".into();
    policies[1].label = "every-upload-of-a-tenant-to-the-storage-service".into();
    policies[2].label = "\u{1b}[2Jcleared".into();
    policies[2].limit = Some(serde_json::from_value(json!({ "text": "9\u{7}/s" })).unwrap());
    picture.top.denied[0].key = "k".repeat(300);
    picture.config.last_load =
        Some(serde_json::from_value(json!({ "error": "x".repeat(300) })).unwrap());
    let mut state = State::new("127.0.0.1:6070".into(), String::new());
    state.show(Ok(picture));
    for (width, parts) in [
        // A narrow terminal has no room for the past; the mode stays beside a name that is cut.
        (60, &["every-requ…", "eve… (shad…", "5000/s bu…", "1.7       2.7"][..]),
        (110, &["every-upload-of-a-tenant-t… (shadow)", "burst 100", "last 18 s"]),
        (130, &["every-upload-of-a-tenant-to-the-storage-service (shadow)", "last 18 s", "▁▄█"]),
        (200, &["every-upload-of-a-tenant-to-the-storage-service (shadow)", "last 60 s"]),
    ] {
        let text = drawn_at(&state, width);
        for part in parts.iter().chain(&["\\u{1b}[", "kkk…", "xxx…", "denied  key", "allowed/s"])
        {
            assert!(text.contains(part), "{part:?} is not in {width}\n{text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'));
        let is_wide = |line: &str| line.chars().count() > usize::from(width);
        assert!(!text.lines().any(is_wide), "{width}\n{text}");
    }
}

#[test]
fn one_long_name_leaves_room_for_the_past_of_all() {
    let mut picture = picture();
    picture.policies.policies[2].label = "a-name-that-goes-on-".repeat(5);
    let mut state = State::new("127.0.0.1:6070".into(), String::new());
    state.show(Ok(picture));
    for (width, has_past) in [(80, false), (110, true), (150, true)] {
        let drawn = drawn_at(&state, width);
        assert_eq!(drawn.contains('▁'), has_past, "{width}: {drawn}");
        assert!(drawn.contains("whole-site (shadow)"), "{width}: {drawn}");
    }
}

#[test]
fn a_low_terminal_shows_policies_before_keys() {
    let mut picture = picture();
    let key = || serde_json::from_value(json!({ "key": "ann", "cost": 900, "error": 0 })).unwrap();
    picture.top.denied = std::iter::repeat_with(key).take(10).collect();
    let mut state = State::new("127.0.0.1:6070".into(), String::new());
    state.show(Ok(picture));
    let drawn = drawn_in(&state, 100, 16);
    assert!(drawn.contains("> per-user") && drawn.contains("free"), "{drawn}");
    assert!(drawn.contains(" ann") && drawn.contains("q quit"), "{drawn}");
}

#[test]
fn the_chosen_policy_stays_chosen_and_the_old_picture_stays_after_an_error() {
    let mut state = State::new("a".into(), String::new());
    assert_eq!(state.press(key(KeyCode::Down)), Then::Ask, "nothing to choose from");
    state.show(Ok(picture()));
    assert_eq!(state.position(), Some(0));
    for (code, position) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::Down, 2),
        (KeyCode::Down, 2),
        (KeyCode::Char('k'), 1),
    ] {
        state.press(key(code));
        assert_eq!(state.position(), Some(position), "{code:?}");
    }
    let mut moved = picture();
    moved.policies.policies.swap(1, 2);
    assert_eq!(state.choice(&moved.policies).unwrap().label, "whole-site");
    state.show(Ok(moved));
    assert_eq!(state.position(), Some(2));
    let gone = client("unix:/nowhere", None);
    state.show(super::ask(&gone, &state));
    assert!(drawn(&state).contains("cannot reach unix:/nowhere"), "{}", drawn(&state));
    assert!(drawn(&state).contains("per-user"));
}

#[test]
fn keys_sort_filter_and_quit() {
    let mut state = State::new("a".into(), String::new());
    for sort in [Sort::Allowed, Sort::Name, Sort::File, Sort::Denied] {
        assert_eq!(state.press(key(KeyCode::Char('s'))), Then::Ask);
        assert_eq!(state.sort(), sort);
    }
    assert_eq!(state.press(key(KeyCode::Char('/'))), Then::Draw);
    for typed in "qsx".chars() {
        assert_eq!(state.press(key(KeyCode::Char(typed))), Then::Ask);
    }
    state.press(key(KeyCode::Backspace));
    assert_eq!((state.filter(), state.is_typing), ("qs", true));
    assert!(drawn(&state).ends_with("/qs_\n"));
    state.press(key(KeyCode::Enter));
    assert_eq!((state.filter(), state.is_typing), ("qs", false));
    state.press(key(KeyCode::Esc));
    assert_eq!(state.filter(), "");
    assert_eq!(state.press(key(KeyCode::Char('q'))), Then::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(interrupt), Then::Quit);
}

const CONFIG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: per-user, unit: minute, requests_per_unit: 3 }
  - key: site
    value: all
    rate_limit: { name: whole-site, unit: second, requests_per_unit: 100 }
";

/// Serves administrators from a thread of its own, which ends with the test.
fn server() -> SocketAddr {
    let (told, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (clock, hand) = Clock::manual();
            let plan = Plan::compile(Config::from_text("a.yaml", CONFIG).unwrap(), None).unwrap();
            let store = MemoryStore::builder().clock(clock).build().unwrap();
            let engine = Engine::new(plan, vec![Backend::Memory(store)]);
            let access = Access::new(vec![Token::of(Listener::Admin, Secret::new("sesame"))]);
            let shared = Shared::new(engine, Settings { access, ..Settings::default() });
            let (engine, sampler) = (&shared.engine, shared.admin.sampler());
            sampler.tick(engine);
            let plan = engine.plan_arc();
            let mut answer = Answer::new();
            for _ in 0..8 {
                let subject = Subject::Named { policy: "per-user", keys: &[b"ann"] };
                let asks = [Ask { subject, hits: Hits::Take(1), limit: None }];
                let request = Request { domain: "", asks: &asks, verb: Verb::Check };
                engine.decide(&plan, engine.now(), &request, &mut answer).await.unwrap();
            }
            hand.advance(Duration::from_secs(1));
            sampler.tick(engine);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                let connection = Connection::new(Arc::clone(&shared), Listener::Admin, Some(peer));
                tokio::spawn(admin::serve(Stream::Tcp(stream), connection));
            }
        });
    });
    address.recv().unwrap()
}

#[test]
fn one_picture_of_a_real_server() {
    let address = server();
    let address = address.to_string();
    let known = client(&address, Some("sesame"));
    let mut state = State::new("there".into(), String::new());
    let Ok(text) = once(&known, &mut state) else { panic!("no picture") };
    for part in [
        "tollgate there  configuration 1\n",
        "store default (memory) 1 key ",
        "admin 1/16384 3,",
        "2 policies by denied",
        "> per-user",
        "3/min",
        "3.0       5.0   62 %        - █\n",
        "most denied keys of per-user",
        "           5  ann\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let stranger = client(&address, None);
    let Err(super::Failure::Server(error)) = once(&stranger, &mut state) else {
        panic!("a picture")
    };
    assert!(error.to_string().contains("--token-file"), "{error}");
}
