//! A gRPC server with a limit, and a client that reads when to retry.
//!
//! `cargo run -p tollgate-examples --features tonic --bin tonic_limits`

use prost::Message;
use std::{error::Error, net::SocketAddr, time::Duration};
use tokio::net::TcpListener;
use tollgate::Quota;
use tollgate_tower::{LayerError, Policy, RateLimitLayer, key::Key};
use tonic::{
    Status,
    transport::{Endpoint, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Three calls of each method an hour, for each address.
fn limits() -> Result<RateLimitLayer, LayerError> {
    RateLimitLayer::builder()
        .policy(Policy::new("calls", Quota::per_hour(3)).key(Key::all([Key::peer(), Key::path()])))
        .build()
}

/// Serves the health service of gRPC, as an example of your own service.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (_reporter, service) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::from(listener);
    Server::builder().layer(limits()?).add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}

/// Calls until the server refuses; returns how many calls passed, and the refusal.
pub(crate) async fn call_until_refused(
    server: SocketAddr,
) -> Result<(u32, Status), Box<dyn Error>> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    let mut passed = 0;
    loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => passed += 1,
            Err(status) => return Ok((passed, status)),
        }
    }
}

/// Returns when to retry: the `google.rpc.RetryInfo` in the details of a status.
///
/// The crate `tonic-types` also has these messages; and `PaceLayer` reads them by itself.
pub(crate) fn retry_after(status: &Status) -> Option<Duration> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let info = details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay?;
    Some(Duration::new(delay.seconds.try_into().ok()?, delay.nanos.try_into().ok()?))
}

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));
    let (passed, status) = call_until_refused(address).await?;
    println!("{passed} calls passed, then: {:?}, {}", status.code(), status.message());
    println!("come back in {:?}", retry_after(&status));
    Ok(())
}
