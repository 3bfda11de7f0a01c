//! The gRPC listener with malformed calls, with health checks and with reflection.

mod access;

use crate::support::{
    Client, framed, messages::RateLimitRequest, reply, request, server, unframed,
};
use bytes::Bytes;
use http::{Request, Version};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tollgate_server::{
    net::{ConnectionMemory, Listener, RefusalReason},
    rls,
    server::{Settings, Shared},
};

const SHOP: &str = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 5}\n";

#[tokio::test]
async fn calls_that_make_no_sense_are_told_why() {
    let (shared, _hand) = server(SHOP, Settings { max_request: 4096, ..Settings::default() });
    let mut client = Client::connect(&shared).await;
    let encoded = |request: &RateLimitRequest| framed(&request.encode_to_vec());
    let no_domain = RateLimitRequest { domain: String::new(), ..request(&[("user", "a")]) };
    let many: Vec<_> = (0..70).map(|_| ("user", "a")).collect();
    let mut unit = request(&[("user", "a")]);
    unit.descriptors[0].limit =
        Some(crate::support::messages::LimitOverride { requests_per_unit: 1, unit: 9 });
    let mut compressed = encoded(&request(&[("user", "a")])).to_vec();
    compressed[0] = 1;
    let rows = [
        (encoded(&no_domain), 2, "rate limit domain must not be empty"),
        (encoded(&request(&[])), 2, "rate limit descriptor list must not be empty"),
        (encoded(&request(&many)), 3, "more than 64 descriptors"),
        (encoded(&unit), 3, "unit 9"),
        (framed(b"\x0a\x05ab"), 13, "ends inside a field"),
        (framed(b"\x0a\x01\xff"), 13, "not UTF-8"),
        (framed(b"\x0b"), 13, "wire type 3"),
        (Bytes::new(), 13, "not one length-prefixed message"),
        (Bytes::from_static(&[0, 0, 0, 0, 9, 1]), 13, "not one length-prefixed message"),
        (framed(&[0; 5000]), 8, "above the maximum of 4096"),
        (Bytes::from(compressed), 12, "compressed"),
    ];
    let count = rows.len() as u64;
    for (body, code, text) in rows {
        let reply = client.call(rls::METHOD, body).await;
        assert_eq!((reply.status, reply.code()), (200, Some(code)), "{text}: {reply:?}");
        assert!(reply.text().contains(text), "{text} is not in {}", reply.text());
        if code == 12 {
            assert_eq!(reply.headers["grpc-accept-encoding"], "identity");
        }
    }
    assert_eq!(shared.traffic(Listener::Grpc).counts().bad_requests, count);
    assert_eq!(client.ask(&request(&[("user", "a")])).await.overall_code, 1, "it goes on");
}

#[tokio::test]
async fn what_is_not_grpc_is_told_so() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let other = client.call("/envoy.service.ratelimit.v3.RateLimitService/Nope", framed(b"")).await;
    assert_eq!((other.status, other.code()), (200, Some(12)), "{other:?}");
    let (answer, mut stream) = client.open(rls::METHOD, "application/json").await;
    stream.send_data(framed(b""), true).unwrap();
    assert_eq!(reply(answer).await.status, 415);
    let get = Request::get(format!("http://test{}", rls::METHOD)).version(Version::HTTP_2);
    let (answer, _) = client.send.send_request(get.body(()).unwrap(), true).unwrap();
    assert_eq!(reply(answer).await.status, 405);
}

#[tokio::test]
async fn a_body_may_come_in_pieces() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let body = framed(&request(&[("user", "a")]).encode_to_vec());
    let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
    for at in 0..body.len() {
        stream.send_data(body.slice(at..=at), false).unwrap();
        // The server reads each piece before the client sends the next.
        tokio::task::yield_now().await;
    }
    // Other calls are answered meanwhile.
    assert_eq!(client.ask(&request(&[("user", "a")])).await.statuses[0].limit_remaining, 4);
    stream.send_data(Bytes::new(), true).unwrap();
    let reply = reply(answer).await;
    assert_eq!(reply.code(), Some(0), "{reply:?}");
    // The bodies exceed the windows, unless the server releases their capacity.
    let long = "x".repeat(30_000);
    for _ in 0..100 {
        client.ask(&request(&[("nobody", &long)])).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
    stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), false).unwrap();
    let reply = reply(answer).await;
    assert_eq!(reply.code(), Some(4), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    client.ask(&request(&[("user", "a")])).await;
    let counts = || shared.traffic(Listener::Grpc).counts().open;
    assert_eq!(counts(), 1);
    tokio::time::advance(Duration::from_secs(200)).await;
    client.ask(&request(&[("user", "a")])).await;
    for _ in 0..40 {
        tokio::time::advance(Duration::from_secs(75)).await;
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    assert_eq!(counts(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_lasts_as_long_as_its_client() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let (watch, mut asked) = client.open("/grpc.health.v1.Health/Watch", "application/grpc").await;
    asked.send_data(framed(b""), true).unwrap();
    let mut watched = watch.await.unwrap().into_body();
    assert!(watched.data().await.unwrap().is_ok());
    for _ in 0..40 {
        tokio::time::advance(Duration::from_secs(75)).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(shared.traffic(Listener::Grpc).counts().open, 1, "it answers pings");
    drop((watched, asked, client));
    for _ in 0..40 {
        tokio::time::advance(Duration::from_secs(75)).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(shared.traffic(Listener::Grpc).counts().open, 0);
}

#[tokio::test]
async fn a_server_that_leaves_is_not_serving_and_decides_on() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let (watch, mut asked) = client.open("/grpc.health.v1.Health/Watch", "application/grpc").await;
    asked.send_data(framed(b""), true).unwrap();
    let mut watched = watch.await.unwrap().into_body();
    assert_eq!(watched.data().await.unwrap().unwrap()[5..], [8, 1], "SERVING");
    shared.start_leaving().await;
    assert_eq!(watched.data().await.unwrap().unwrap()[5..], [8, 2], "NOT_SERVING");
    let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
    stream.send_data(framed(&request(&[("user", "a")]).encode_to_vec()), true).unwrap();
    assert_eq!(reply(answer).await.code(), Some(0));
}

#[tokio::test]
async fn a_draining_server_finishes_what_has_begun() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let body = framed(&request(&[("user", "a")]).encode_to_vec());
    let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
    stream.send_data(body.slice(..6), false).unwrap();
    // A watch, which would never end.
    let (watch, mut asked) = client.open("/grpc.health.v1.Health/Watch", "application/grpc").await;
    asked.send_data(framed(b""), true).unwrap();
    let mut watched = watch.await.unwrap().into_body();
    assert!(watched.data().await.unwrap().is_ok());
    shared.start_draining();
    assert!(watched.data().await.is_none_or(|piece| piece.is_err()));
    stream.send_data(body.slice(6..), true).unwrap();
    assert_eq!(reply(answer).await.code(), Some(0));
    while shared.traffic(Listener::Grpc).counts().open > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_http2_is_no_harm() {
    use tokio::io::AsyncWriteExt;
    let (shared, _hand) = server(SHOP, Settings::default());
    let (mut near, far) = tokio::net::UnixStream::pair().unwrap();
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let connection = tollgate_server::net::Connection::new(shared.clone(), Listener::Grpc, None);
    rls::serve(tollgate_server::net::Stream::Unix(far), connection).await;
    let counts = shared.traffic(Listener::Grpc).counts();
    assert_eq!((counts.open, counts.bad_requests), (0, 1));
}

#[tokio::test]
async fn a_probe_that_only_connects_is_no_bad_request() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let (near, far) = tokio::net::UnixStream::pair().unwrap();
    drop(near);
    let connection = tollgate_server::net::Connection::new(shared.clone(), Listener::Grpc, None);
    rls::serve(tollgate_server::net::Stream::Unix(far), connection).await;
    let counts = shared.traffic(Listener::Grpc).counts();
    assert_eq!((counts.open, counts.bad_requests), (0, 0));
}

#[tokio::test]
async fn health_is_told() {
    use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    for (service, code) in [("", 0), ("ratelimit", 0), ("other", 5)] {
        let asked = HealthCheckRequest { service: service.into() }.encode_to_vec();
        let reply = client.call("/grpc.health.v1.Health/Check", framed(&asked)).await;
        assert_eq!(reply.code(), Some(code), "{service}: {reply:?}");
        if code == 0 {
            let told = HealthCheckResponse::decode(unframed(&reply.body)).unwrap();
            assert_eq!(told.status, 1, "serving");
        }
    }
}

#[tokio::test]
async fn a_client_can_learn_the_protocol_and_use_it() {
    use protox::prost_reflect::{DescriptorPool, DynamicMessage};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, ServerReflectionResponse,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let mut learn = async |what| {
            let asked =
                ServerReflectionRequest { host: String::new(), message_request: Some(what) };
            let reply = client.call(&path, framed(&asked.encode_to_vec())).await;
            assert_eq!(reply.code(), Some(0), "{reply:?}");
            let told = ServerReflectionResponse::decode(unframed(&reply.body)).unwrap();
            told.message_response.unwrap()
        };
        let MessageResponse::ListServicesResponse(list) =
            learn(MessageRequest::ListServices(String::new())).await
        else {
            panic!("no list");
        };
        let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
        let ours = "envoy.service.ratelimit.v3.RateLimitService";
        assert!(names.iter().any(|name| name == ours), "{names:?}");
        assert!(names.iter().any(|name| name == "grpc.health.v1.Health"), "{names:?}");
        let mut pool = DescriptorPool::global();
        let mut wanted = vec![MessageRequest::FileContainingSymbol(ours.into())];
        let mut files = prost_types::FileDescriptorSet::default();
        while let Some(next) = wanted.pop() {
            let MessageResponse::FileDescriptorResponse(told) = learn(next).await else {
                panic!("no file");
            };
            for file in told.file_descriptor_proto {
                let file = prost_types::FileDescriptorProto::decode(&*file).unwrap();
                let new = |name: &&String| {
                    pool.get_file_by_name(name).is_none()
                        && files.file.iter().all(|file| file.name() != **name)
                };
                let more = file.dependency.iter().filter(new).cloned();
                wanted.extend(more.map(MessageRequest::FileByFilename));
                files.file.push(file);
            }
        }
        files.file.sort_by(|one, other| one.name().cmp(other.name()));
        files.file.dedup_by(|one, other| one.name() == other.name());
        pool.add_file_descriptor_set(files).unwrap();
        let method = pool.get_service_by_name(ours).unwrap().methods().next().unwrap();
        let text = r#"domain: "shop" descriptors { entries { key: "user" value: "z" } }"#;
        let asked = DynamicMessage::parse_text_format(method.input(), text).unwrap();
        let reply = client.call(rls::METHOD, framed(&asked.encode_to_vec())).await;
        let told = DynamicMessage::decode(method.output(), unframed(&reply.body)).unwrap();
        let code = told.get_field_by_name("overall_code").unwrap().as_enum_number();
        assert_eq!(code, Some(1), "{told}");
    }
}

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

fn refused(shared: &Shared, reason: RefusalReason) -> u64 {
    shared.traffic(Listener::Grpc).counts().refused[reason as usize]
}

/// Lets time pass, and lets all tasks run meanwhile.
async fn pass(seconds: u64) {
    let never = std::future::pending::<()>();
    let _ = tokio::time::timeout(Duration::from_secs(seconds), never).await;
}

/// Waits for the end of a call that gets no answer, and returns how its stream was reset.
async fn reset(answer: h2::client::ResponseFuture) -> Option<h2::Reason> {
    let mut body = match answer.await {
        Ok(response) => response.into_body(),
        Err(error) => return error.reason(),
    };
    while let Some(piece) = body.data().await {
        if let Err(error) = piece {
            return error.reason();
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_not_read_is_given_up_after_the_request_timeout() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect_with_window(&shared, 0).await;
    let base = shared.memory.used();
    let mut answers = Vec::new();
    for _ in 0..10 {
        let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
        let body = framed(&request(&[("user", "a")]).encode_to_vec());
        stream.send_data(body, true).unwrap();
        answers.push(answer);
    }
    pass(9).await;
    assert!(shared.memory.used() > base, "unsent replies are counted");
    for answer in answers {
        assert_eq!(reset(answer).await, Some(h2::Reason::CANCEL));
    }
    assert_eq!(refused(&shared, RefusalReason::Unread), 10);
    assert_eq!(shared.memory.used(), base);
}

#[tokio::test(start_paused = true)]
async fn reflection_that_sends_and_never_reads_is_ended() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect_with_window(&shared, 0).await;
    let base = shared.memory.used();
    // The first call sends more than the server keeps for it; the other sends little and does not
    // read.
    let list = framed(&[&[0x3a, 0xe8, 0x07][..], &[b'x'; 1000]].concat());
    for (count, seconds) in [(60, 1), (3, 11)] {
        let (answer, mut stream) = client.open(REFLECTION, "application/grpc").await;
        for _ in 0..count {
            stream.send_data(list.clone(), false).unwrap();
        }
        let ended = tokio::time::timeout(Duration::from_secs(seconds), reset(answer)).await;
        assert_eq!(ended.unwrap(), Some(h2::Reason::CANCEL), "{count}");
    }
    pass(1).await;
    assert_eq!(shared.memory.used(), base);
}

#[tokio::test]
async fn calls_of_health_and_reflection_at_once_are_bounded() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(client.open(REFLECTION, "application/grpc").await);
    }
    let refused = client.call("/grpc.health.v1.Health/Check", framed(b"")).await;
    assert_eq!(refused.code(), Some(8), "{refused:?}");
    assert_eq!(client.ask(&request(&[("user", "a")])).await.overall_code, 1, "it goes on");
    drop(open);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let served = client.call("/grpc.health.v1.Health/Check", framed(b"")).await;
    assert_eq!(served.code(), Some(0), "{served:?}");
    // Messages that are longer than any name.
    let long = client.call("/grpc.health.v1.Health/Check", framed(&[b'x'; 20_000])).await;
    assert_eq!(long.code(), Some(11), "{long:?}");
}

#[tokio::test]
async fn a_call_that_waits_is_refused_while_the_memory_is_used_up() {
    let settings = Settings { connection_memory_bytes: 4 << 20, ..Settings::default() };
    let (shared, _hand) = server(SHOP, settings);
    let mut client = Client::connect(&shared).await;
    let mut held = ConnectionMemory::open(&shared, Listener::Http).claim();
    held.resize(3 << 20).unwrap_err();
    held.resize((3 << 20) - (16 << 10)).unwrap();
    let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
    let half = [&[0, 0, 0xf, 0, 0][..], &[0; 60_000]].concat();
    stream.send_data(half.into(), false).unwrap();
    let refusal = reply(answer).await;
    assert_eq!(refusal.code(), Some(8), "{refusal:?}");
    assert!(refusal.text().contains("connection_memory_bytes"), "{}", refusal.text());
    assert_eq!(refused(&shared, RefusalReason::Memory), 1);
    // Small requests are still served, even on a new connection.
    assert_eq!(client.ask(&request(&[("user", "a")])).await.overall_code, 1);
    let health = "/grpc.health.v1.Health/Check";
    let mut other = Client::connect(&shared).await;
    assert_eq!(other.call(health, framed(b"")).await.code(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_and_a_socket_that_is_not_read_close_the_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // HEADERS without END_HEADERS; and half of a frame.
    for bytes in [&b"\0\0\x01\x01\0\0\0\0\x01\x82"[..], b"\0\0\x08\x06\0\0\0\0\0abc"] {
        let (shared, _hand) = server(SHOP, Settings::default());
        let (mut near, far) = tokio::net::UnixStream::pair().unwrap();
        let connection =
            tollgate_server::net::Connection::new(shared.clone(), Listener::Grpc, None);
        let served = tokio::spawn(rls::serve(tollgate_server::net::Stream::Unix(far), connection));
        near.write_all(preface).await.unwrap();
        near.write_all(bytes).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), served).await;
        ended.unwrap().unwrap();
        assert_eq!(refused(&shared, RefusalReason::Slow), 1);
        let mut rest = Vec::new();
        let _ = near.read_to_end(&mut rest).await;
    }
    // PINGs, whose acknowledgements are never read.
    let (shared, _hand) = server(SHOP, Settings::default());
    let (mut near, far) = tokio::net::UnixStream::pair().unwrap();
    let connection =
        tollgate_server::net::Connection::new(Arc::clone(&shared), Listener::Grpc, None);
    let served = tokio::spawn(rls::serve(tollgate_server::net::Stream::Unix(far), connection));
    near.write_all(preface).await.unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\0abcdefgh".repeat(10_000);
    let poured = async {
        for _ in 0..1000 {
            if near.write_all(&pings).await.is_err() {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), poured).await.is_ok());
    served.await.unwrap();
    assert_eq!(refused(&shared, RefusalReason::Unread), 1);
}

/// More replies than the client's window and the connection's own bound take at once.
#[tokio::test]
async fn many_long_replies_at_once_are_all_sent_to_a_client_that_reads() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut client = Client::connect(&shared).await;
    // The client learns how many calls it may have at once.
    client.ask(&request(&[("user", "a")])).await;
    let many: Vec<_> = (0..64).map(|_| ("user", "a")).collect();
    let body = framed(&request(&many).encode_to_vec());
    let mut answers = Vec::new();
    for _ in 0..600 {
        let (answer, mut stream) = client.open(rls::METHOD, "application/grpc").await;
        stream.send_data(body.clone(), true).unwrap();
        answers.push(tokio::spawn(reply(answer)));
    }
    let mut length = 0;
    for answer in answers {
        let reply = answer.await.unwrap();
        assert_eq!(reply.code(), Some(0), "{reply:?}");
        length += reply.body.len();
    }
    assert!(length > 1 << 19, "{length} bytes are too few to fill anything");
    assert_eq!(
        refused(&shared, RefusalReason::Unread) + refused(&shared, RefusalReason::Memory),
        0
    );
}
