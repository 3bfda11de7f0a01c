//! Keys: which key a request has, the result without one, and invalid settings.

use http::{Method, Request, request::Builder};
use proptest::{collection::vec, prelude::*};
use tollgate_tower::{
    Info, Key, Peer,
    key::{ClientAddress, Found, KeyBytes, KeyPart, KeySource, KeyText, Missing, Trust},
};

#[derive(Clone)]
struct User {
    name: String,
    id: u64,
    tenant: Option<u32>,
}

fn user(name: &str, id: u64) -> User {
    User { name: name.to_owned(), id, tenant: None }
}

fn get() -> Builder {
    Request::builder().uri("/things?page=2")
}

fn find(key: &Key, request: Builder) -> (Found, KeyBytes) {
    let (request, mut bytes) = (request.body(()).unwrap(), KeyBytes::new());
    let found = key.find(&Info::of(&request), &mut bytes);
    assert_eq!(found.is_counted(), !bytes.is_empty(), "{key:?} found {found:?}, wrote {bytes}");
    (found, bytes)
}

fn known(key: &Key, request: Builder) -> KeyBytes {
    let (found, bytes) = find(key, request);
    assert_eq!(found, Found::Known, "{key:?}");
    bytes
}

#[test]
fn each_source_finds_its_part() {
    let ann = || get().extension(user("ann", 7));
    let peer = Peer(([192, 0, 2, 1], 4711).into());
    let rows: [(Key, Builder, Option<&str>); 17] = [
        (Key::global(), get(), Some("(global)")),
        (Key::peer(), get().extension(peer), Some("192.0.2.1")),
        (Key::peer(), get(), None),
        (Key::extension(|user: &User| &user.name), ann(), Some("ann")),
        (Key::extension(|user: &User| user.name.as_str()), ann(), Some("ann")),
        (Key::extension(|user: &User| &user.id), ann(), Some("7")),
        (Key::extension(|user: &User| &user.tenant), ann(), None),
        (Key::extension(|user: &User| &user.name), get().extension(user("", 7)), None),
        (Key::extension(|user: &User| &user.name), get(), None),
        (Key::path(), get(), Some("/things")),
        (Key::method(), get(), Some("GET")),
        (Key::method(), get().method(Method::PATCH), Some("PATCH")),
        (Key::method(), get().method("FROBNICATE"), Some("other")),
        (Key::method(), get().method("other"), Some("other")),
        (Key::route(), get(), None),
        (
            Key::route(),
            Request::builder().uri("/shop.Cart/Add").header("content-type", "application/grpc"),
            // A client that claims to speak gRPC does not choose its route by that.
            None,
        ),
        (Key::all([Key::method(), Key::path(), Key::peer()]), get().extension(peer), {
            Some("GET /things 192.0.2.1")
        }),
    ];
    for (row, (key, request, expected)) in rows.into_iter().enumerate() {
        assert_eq!(key.check(), Ok(()), "row {row}");
        let (found, bytes) = find(&key, request);
        match expected {
            Some(text) => {
                assert_eq!((found, &*bytes.to_string()), (Found::Known, text), "row {row}")
            }
            None => assert_eq!(found, Found::Refuse, "row {row}"),
        }
    }
}

type Lines = &'static [(&'static str, &'static str)];

#[test]
fn secrets_are_counted_by_their_hash() {
    // The counted part, headers, and the secret in them if there is one.
    let rows: [(Key, Lines, Option<&str>); 18] = [
        (Key::header("x-api-key"), &[("x-api-key", "s3cret")], Some("s3cret")),
        (Key::header("X-API-Key"), &[("x-api-key", " s3cret ")], Some("s3cret")),
        (
            Key::header("x-api-key"),
            &[("x-api-key", "s3cret"), ("x-api-key", "s3cret")],
            Some("s3cret"),
        ),
        (Key::header("x-api-key"), &[("x-api-key", "")], None),
        (Key::header("x-api-key"), &[("x-other", "s3cret")], None),
        (Key::bearer(), &[("authorization", "Bearer s3cret")], Some("s3cret")),
        (Key::bearer(), &[("authorization", "bEARER   s3cret")], Some("s3cret")),
        (Key::bearer(), &[("authorization", "Bearer")], None),
        (Key::bearer(), &[("authorization", "Bearer ")], None),
        (Key::bearer(), &[("authorization", "Bearers3cret")], None),
        (Key::bearer(), &[("authorization", "Basic s3cret")], None),
        (Key::bearer(), &[("authorization", "x")], None),
        (Key::cookie("sid"), &[("cookie", "sid=s3cret")], Some("s3cret")),
        (Key::cookie("sid"), &[("cookie", "a=b; sid=\"s3cret\"; xsid=no")], Some("s3cret")),
        (Key::cookie("sid"), &[("cookie", "a=b"), ("cookie", "sid=s3cret")], Some("s3cret")),
        (Key::cookie("sid"), &[("cookie", "sid=s3cret; sid=s3cret")], Some("s3cret")),
        (Key::cookie("sid"), &[("cookie", "SID=s3cret; sidx=1; sid")], None),
        (Key::cookie("sid"), &[("cookie", "sid=; sid=\"\"")], None),
    ];
    let hidden = |secret: &str| {
        let bytes = known(&Key::header("x"), get().header("x", secret));
        bytes.as_bytes()[3..].to_vec()
    };
    for (row, (key, headers, secret)) in rows.into_iter().enumerate() {
        let request = headers.iter().fold(get(), |get, (name, value)| get.header(*name, *value));
        let (found, bytes) = find(&key, request);
        let Some(secret) = secret else {
            assert_eq!(found, Found::Refuse, "row {row}");
            continue;
        };
        assert_eq!((found, &bytes.as_bytes()[3..]), (Found::Known, &*hidden(secret)), "row {row}");
        let text = format!("{bytes} {bytes:?} {key:?}");
        assert!(!text.contains(secret), "row {row}: {text}");
    }
}

#[test]
fn the_hash_of_a_secret_is_the_same_everywhere_and_for_ever() {
    // Made once with Python: hashlib.sha256(key.ljust(64, b"\0") + secret).digest()[:16].
    let public = known(&Key::header("x"), get().header("x", "s3cret"));
    assert_eq!(
        public.as_bytes(),
        b"\x01\x05\x13\x28\xa3\xf1\xa3\x4d\x6d\x86\xb1\xf8\xbd\xac\x90\x4e\x78\xd5\x04"
    );
    let keyed = Key::header("x").hash_key("0123456789abcdef");
    let keyed = known(&keyed, get().header("x", "s3cret"));
    assert_eq!(
        keyed.as_bytes(),
        b"\x01\x05\x13\xbf\x11\x5f\xca\xac\x7e\xa0\xa1\xc8\x27\x87\x01\x88\x16\x14\xf4"
    );
}

#[test]
fn a_hash_key_is_for_all_parts_that_have_none_of_their_own() {
    let (one, two) = ([1; 32], [2; 32]);
    let request = || get().header("x", "s3cret").header("authorization", "Bearer s3cret");
    let parts = |key: &Key| {
        let bytes = known(key, request()).as_bytes().to_vec();
        (bytes[3..19].to_vec(), bytes[22..].to_vec())
    };
    let same = parts(&Key::all([Key::header("x"), Key::bearer()]).hash_key(one));
    assert_eq!(same.0, same.1);
    let own = parts(&Key::all([Key::header("x").hash_key(two), Key::bearer()]).hash_key(one));
    assert_eq!(own.1, same.1);
    assert_ne!(own.0, own.1);
}

#[test]
fn two_secrets_where_one_is_needed_are_refused_whatever_is_said() {
    let two = |name: &'static str, one: &'static str, other: &'static str| {
        move || get().header(name, one).header(name, other).extension(user("ann", 7))
    };
    let ambiguous = [
        (Key::header("x-api-key"), two("x-api-key", "one", "other")),
        (Key::header("x-api-key"), two("x-api-key", "one", "")),
        (Key::bearer(), two("authorization", "Bearer one", "Bearer other")),
        (Key::bearer(), two("authorization", "Bearer one", "Basic other")),
        (Key::cookie("sid"), two("cookie", "sid=one", "sid=other")),
    ];
    for (row, (key, request)) in ambiguous.into_iter().enumerate() {
        for whole in [
            key.clone(),
            key.clone().or_skip(),
            key.clone().or_anonymous(),
            Key::any([key.clone(), Key::extension(|user: &User| &user.id)]),
            Key::all([Key::global(), key.clone().or_anonymous()]).or_skip(),
        ] {
            assert_eq!(find(&whole, request()).0, Found::Ambiguous, "row {row}: {whole:?}");
        }
    }
}

#[test]
fn requests_without_a_key_are_treated_as_said() {
    let key = || Key::header("x-api-key");
    for (key, missing, found, text) in [
        (key(), Missing::Refuse, Found::Refuse, ""),
        (key().or_refuse(), Missing::Refuse, Found::Refuse, ""),
        (key().or_skip(), Missing::Skip, Found::Skip, ""),
        (key().or_anonymous(), Missing::Anonymous, Found::Anonymous, "(anonymous)"),
        (Key::all([key(), Key::path()]), Missing::Refuse, Found::Refuse, ""),
        (Key::all([Key::path(), key()]).or_skip(), Missing::Skip, Found::Skip, ""),
        (
            Key::all([Key::path(), key()]).or_anonymous(),
            Missing::Anonymous,
            Found::Anonymous,
            "(anonymous)",
        ),
        (
            Key::all([Key::path(), key().or_anonymous()]),
            Missing::Refuse,
            Found::Known,
            "/things (anonymous)",
        ),
        (Key::any([key(), Key::path()]), Missing::Refuse, Found::Known, "/things"),
        (Key::any([key(), Key::bearer()]).or_skip(), Missing::Skip, Found::Skip, ""),
    ] {
        assert_eq!(key.check(), Ok(()), "{key:?}");
        assert_eq!(key.missing(), missing, "{key:?}");
        let (what, bytes) = find(&key, get());
        assert_eq!((what, bytes.to_string().as_str()), (found, text), "{key:?}");
    }
}

#[test]
fn nobody_can_be_named_like_those_without_a_name() {
    let name = || {
        Key::from_fn(|info, key| info.headers().get("x").is_some_and(|x| x.as_bytes().write(key)))
    };
    let anonymous = find(&name().or_anonymous(), get()).1;
    let header = find(&Key::header("x").or_anonymous(), get()).1;
    assert_eq!(anonymous, header);
    for text in ["anonymous", "(anonymous)", "\u{2}", "0"] {
        let Ok(value) = http::HeaderValue::from_bytes(text.as_bytes()) else { continue };
        assert_ne!(known(&name(), get().header("x", value)), anonymous, "{text:?}");
    }
    assert_eq!(find(&name(), get().header("x", "")).0, Found::Refuse);
}

#[test]
fn the_same_value_is_somebody_else_in_another_place() {
    let header = |name: &'static str| {
        Key::from_fn(move |info, key| {
            info.headers().get(name).is_some_and(|value| value.as_bytes().write(key))
        })
    };
    let key = Key::any([header("user"), header("guest"), Key::path()]);
    let one = known(&key, get().header("user", "/things"));
    let two = known(&key, get().header("guest", "/things"));
    let three = known(&key, get());
    assert!(one != two && two != three && one != three, "{one} {two} {three}");
}

#[test]
fn what_code_of_users_does_stays_within_its_part() {
    let path = known(&Key::path(), get());
    let cases: [fn(&Info<'_>, &mut KeyBytes) -> bool; 4] = [
        |_, key| {
            key.push(b"half");
            false
        },
        |_, _| true,
        |_, key| {
            key.clear();
            true
        },
        |_, key| {
            key.push(b"gone");
            key.clear();
            true
        },
    ];
    for (row, write) in cases.into_iter().enumerate() {
        assert_eq!(find(&Key::from_fn(write), get()).0, Found::Refuse, "row {row}");
        // A buffer that already has a key of another limit keeps it.
        let (request, mut bytes) = (get().body(()).unwrap(), path.clone());
        let key = Key::all([Key::method(), Key::from_fn(write)]);
        assert_eq!(key.find(&Info::of(&request), &mut bytes), Found::Refuse, "row {row}");
        assert_eq!(bytes, path, "row {row}");
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn the_route_is_the_one_that_axum_has_matched() {
    use axum::{Router, body::Body, extract::Request, middleware, routing::get};
    use tower::ServiceExt as _;

    let key = Key::all([Key::route(), Key::peer()]);
    let tell = move |request: Request| {
        let mut bytes = KeyBytes::new();
        let found = key.find(&Info::of(&request), &mut bytes);
        std::future::ready(format!("{found:?} {bytes}"))
    };
    let things = Router::new().route("/things/{id}", get(|| async { "never" }));
    let tell = middleware::from_fn(move |request, _: middleware::Next| tell(request));
    let app = Router::new().nest("/v1", things).route_layer(tell);
    for path in ["/v1/things/1", "/v1/things/2?x"] {
        let address: std::net::SocketAddr = ([192, 0, 2, 1], 1).into();
        let request = Request::builder().uri(path).extension(axum::extract::ConnectInfo(address));
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        assert_eq!(body, "Known /v1/things/{id} 192.0.2.1", "{path}");
    }
}

#[test]
fn numbers_are_the_same_in_any_width() {
    let text = |part: &dyn KeyPart| {
        let mut key = KeyBytes::new();
        assert!(part.write(&mut key));
        key.to_string()
    };
    for (part, expected) in [
        (&7_u8 as &dyn KeyPart, "7"),
        (&7_u64, "7"),
        (&7_i128, "7"),
        (&Some(7_usize), "7"),
        (&-7_i32, "-7"),
        (&u128::MAX, "340282366920938463463374607431768211455"),
        (&i128::MIN, "-170141183460469231731687303715884105728"),
        (&("ann", 7_u16), "ann 7"),
        (&std::sync::Arc::<str>::from("ann"), "ann"),
        (&[1_u8, 2], "\\x01\\x02"),
    ] {
        assert_eq!(text(part), expected);
    }
    assert!(!None::<u8>.write(&mut KeyBytes::new()));
    assert!(!("ann", "").write(&mut KeyBytes::new()));
}

#[test]
fn keys_that_cannot_be_meant_are_refused() {
    let key = Key::bearer;
    for (row, (wrong, code, words)) in [
        (Key::header("x api key"), "TG-K03", "\"x api key\""),
        (Key::all([]), "TG-K05", "Key::all"),
        (Key::any([]), "TG-K05", "Key::any"),
        (Key::all([key(), Key::any([])]), "TG-K05", "Key::any"),
        (Key::header("X-Forwarded-For"), "TG-K09", "x-forwarded-for"),
        (Key::any([Key::global(), key()]), "TG-K10", "part 0"),
        (Key::any([key(), Key::peer().or_anonymous(), key()]), "TG-K10", "part 1"),
        (Key::any([Key::all([Key::path(), Key::method()]), key()]), "TG-K10", "part 0"),
        (
            Key::all([Key::path(), key().or_skip()]),
            "TG-K11",
            "part 1 of a combination calls or_skip",
        ),
        (Key::any([key().or_refuse(), Key::path()]), "TG-K11", "or_refuse"),
        (key().hash_key("short"), "TG-K12", "5 bytes"),
        (key().hash_key([0; 65]), "TG-K12", "65 bytes"),
        (Key::all([Key::path(), key().hash_key("")]), "TG-K12", "0 bytes"),
        (Key::peer().hash_key([0; 32]), "TG-K13", "nothing is hashed"),
        (Key::all(vec![key(); 65]), "TG-K14", "65 parts"),
        (Key::any(vec![key(); 1000]), "TG-K14", "1000 parts"),
        (Key::cookie(""), "TG-K15", "\"\""),
        (Key::cookie("a=b"), "TG-K15", "\"a=b\""),
        (Key::client(ClientAddress::forwarded(Trust::hops(0))), "TG-K02", "forwarded"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = wrong.check().unwrap_err();
        assert_eq!(error.code(), code, "row {row}: {error}");
        let text = error.to_string();
        assert!(text.contains(words) && text.contains(error.docs()), "row {row}: {text}");
        // An invalid key that is used all the same gives a result.
        find(&wrong, get());
    }
    for right in [
        Key::any([key(), Key::peer()]),
        Key::any([key(), Key::peer().or_anonymous()]),
        Key::all(vec![key(); 64]),
        Key::any([key(), Key::cookie("sid")]).hash_key([0; 16]).or_skip(),
        Key::all([Key::all([key()]), Key::any([key(), Key::global()])]).hash_key([0; 64]),
    ] {
        assert_eq!(right.check(), Ok(()), "{right:?}");
    }
}

#[test]
fn keys_can_be_shared_and_print_no_secret() {
    fn is_shared<T: Send + Sync + Clone + std::fmt::Debug + 'static>(_: &T) {}
    let key = Key::all([Key::bearer(), Key::from_fn(|_, _| false)]).hash_key("secret of the fleet");
    is_shared(&key);
    is_shared(&KeyBytes::new());
    assert!(!format!("{key:?}").contains("secret"), "{key:?}");
    // A key is itself a source.
    let nested = Key::from_source(Key::path());
    assert_eq!(known(&nested, get()).to_string(), "/things");
    let (request, mut bytes) = (get().body(()).unwrap(), KeyBytes::new());
    assert!(KeySource::write(&Key::path(), &Info::of(&request), &mut bytes));
    assert_eq!(KeyText::of(bytes.as_bytes()).to_string(), "/things");
}

/// The values of a request for each of three parts: none, or parts of a key.
type Parts = [Option<Vec<Vec<u8>>>; 3];

fn parts() -> impl Strategy<Value = Parts> {
    let part = proptest::option::weighted(0.7, vec(vec(0_u8..4, 0..3), 1..3));
    proptest::array::uniform3(part)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn different_requests_have_different_keys(one in parts(), other in parts()) {
        let part = |at: usize| {
            Key::from_fn(move |info, key| match &info.extensions().get::<Parts>().unwrap()[at] {
                Some(parts) => {
                    parts.iter().for_each(|part| key.push(part));
                    true
                }
                None => false,
            })
        };
        let all = Key::all([0, 1, 2].map(|at| part(at).or_anonymous()));
        let same = [&one, &other].map(|parts| known(&all, get().extension(parts.clone())));
        prop_assert_eq!(one == other, same[0] == same[1]);

        // The first that is present, in its position.
        let any = Key::any([0, 1, 2].map(part)).or_anonymous();
        let first = |parts: &Parts| parts.iter().position(Option::is_some).map(|at| (at, parts[at].clone()));
        let same = [&one, &other].map(|parts| find(&any, get().extension(parts.clone())).1);
        prop_assert_eq!(first(&one) == first(&other), same[0] == same[1]);
    }
}
