//! Tokens, permissions and negative hits over gRPC.

use super::SHOP;
use crate::support::{Client, Reply, framed, reply, request, server};
use http::{Request, Version};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    rls,
    server::{Settings, Shared},
};

const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

fn token(secret: &str, permissions: &[Permission]) -> Token {
    let permissions = permissions.iter().copied().fold(Permissions::NONE, Permissions::with);
    Token::new(Secret::new(secret), &[Listener::Grpc], permissions)
}

fn shared(negative_hits: bool, tokens: Vec<Token>) -> Arc<Shared> {
    let access = Access { negative_hits, ..Access::new(tokens) };
    server(SHOP, Settings { access, ..Settings::default() }).0
}

fn tokens() -> Vec<Token> {
    use Permission::{Check, Read, Settle};
    vec![token("reader", &[Read]), token("checker", &[Check]), token("both", &[Check, Settle])]
}

async fn call(client: &mut Client, token: &str, path: &str, body: &[u8]) -> Reply {
    let mut request = Request::post(format!("http://test{path}"))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    client.send = client.send.clone().ready().await.unwrap();
    let sent = client.send.send_request(request.body(()).unwrap(), false);
    let (answer, mut stream) = sent.unwrap();
    stream.send_data(framed(body), true).unwrap();
    reply(answer).await
}

fn hit(is_negative: bool) -> Vec<u8> {
    let mut hit = request(&[("user", "a")]);
    hit.descriptors[0].is_negative_hits = is_negative;
    hit.encode_to_vec()
}

#[tokio::test]
async fn a_token_is_asked_for_where_one_is_configured() {
    let shared = shared(false, tokens());
    for (row, (token, path, code)) in [
        ("", rls::METHOD, 16),
        ("reader", rls::METHOD, 7),
        ("checker", rls::METHOD, 0),
        ("both", rls::METHOD, 0),
        ("wrong", rls::METHOD, 16),
        ("", HEALTH, 0),
        ("", REFLECTION, 16),
        ("checker", REFLECTION, 7),
    ]
    .into_iter()
    .enumerate()
    {
        let body = if path == rls::METHOD { hit(false) } else { Vec::new() };
        let mut client = Client::connect(&shared).await;
        let told = call(&mut client, token, path, &body).await;
        assert_eq!(told.code(), Some(code), "row {row}: {told:?}");
        let text = [(16, "`authorization: Bearer ..`"), (7, "the permission `")];
        let text = text.into_iter().find(|(of, _)| *of == code).map_or("", |(_, text)| text);
        assert!(told.text().contains(text), "row {row}: {told:?}");
    }
}

#[tokio::test]
async fn negative_hits_need_the_key_and_the_permission_to_settle() {
    for (negative_hits, tokens, token, may) in [
        (false, vec![], "", false),
        (true, vec![], "", true),
        (false, tokens(), "both", false),
        (true, tokens(), "checker", false),
        (true, tokens(), "both", true),
    ] {
        let shared = shared(negative_hits, tokens);
        let mut client = Client::connect(&shared).await;
        let mut passed = 0;
        for _ in 0..20 {
            let told = call(&mut client, token, rls::METHOD, &hit(false)).await;
            // A message with overall_code OK begins so.
            passed += usize::from(told.body.get(5..7) == Some(&[8, 1]));
            let told = call(&mut client, token, rls::METHOD, &hit(true)).await;
            let code = if may { 0 } else { 7 };
            assert_eq!(told.code(), Some(code), "{negative_hits} {token}: {told:?}");
            let text = if negative_hits { "`settle`" } else { "`negative_hits: true`" };
            assert!(may || told.text().contains(text), "{told:?}");
        }
        assert_eq!(passed, if may { 20 } else { 5 }, "{negative_hits} {token}");
    }
}

#[tokio::test]
async fn the_reply_to_a_wrong_token_waits_and_a_right_one_does_not() {
    let shared = shared(false, tokens());
    let mut client = Client::connect(&shared).await;
    let body = hit(false);
    for _ in 0..5 {
        assert_eq!(call(&mut client, "wrong", rls::METHOD, &body).await.code(), Some(16));
    }
    let mut waiting: Vec<_> = (0..5)
        .map(|_| {
            let (mut client, body) = (client.clone(), body.clone());
            Box::pin(async move { call(&mut client, "wrong", rls::METHOD, &body).await })
        })
        .collect();
    for one in &mut waiting {
        let early = timeout(Duration::from_millis(20), one.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
    }
    // On the same connection.
    assert_eq!(call(&mut client, "checker", rls::METHOD, &body).await.code(), Some(0));
    assert_eq!(call(&mut client, "wrong", rls::METHOD, &body).await.code(), Some(16));
    let counts = shared.traffic(Listener::Grpc).counts();
    assert_eq!((counts.wrong_secrets, counts.cut_off), (11, 1));
    assert!(client.send.clone().ready().await.is_err(), "the connection takes no more calls");
    shared.start_draining();
    for one in waiting {
        let told = timeout(Duration::from_millis(900), one).await.expect("at once");
        assert_eq!(told.code(), Some(16));
    }
}
