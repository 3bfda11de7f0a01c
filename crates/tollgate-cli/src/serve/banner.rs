//! The banner that `tollgate serve` prints when it starts.

use crate::log::LogFormat;
use std::{
    io::{self, Write},
    net::SocketAddr,
};
use tollgate_server::{config::Endpoint, engine::Backend, net::Listener, server::Server};

/// Says on standard error where it listens: in words with commands to try, or as events of the log.
pub(super) fn print(server: &Server, format: LogFormat) {
    let is_example = server.manager().source().paths.is_empty();
    let plan = server.shared().engine.plan_arc();
    let (version, size) = (env!("CARGO_PKG_VERSION"), crate::check::size(&plan));
    let store = server.shared().engine.stores().first().map_or("no", Backend::kind);
    let what = if is_example { "the built-in example" } else { "your configuration" };
    if format == LogFormat::Json {
        let (limits, domains) = (plan.rules().len(), plan.config().domains.len());
        tracing::info!(version, is_example, limits, domains, store, "tollgate is starting");
        for (listener, endpoint) in server.endpoints() {
            let tls = server.has_tls(listener);
            tracing::info!(listener = listener.name(), address = %endpoint, tls, "listening");
        }
        return;
    }
    let mut text = format!("tollgate {version} with {what}: {size}, {store} store\n");
    let mut tries = Vec::new();
    for (listener, endpoint) in server.endpoints() {
        let tls = server.has_tls(listener);
        text += &format!("listening {listener} {endpoint}{}\n", if tls { " (tls)" } else { "" });
        if let (true, false, Endpoint::Tcp(address)) =
            (is_example, server.has_secret(listener), &endpoint)
        {
            tries.push(example_of(listener, *address, tls));
        }
    }
    if !tries.is_empty() {
        text += "\nTry, in another terminal:\n";
        tries.iter().for_each(|line| text += &format!("  {line}\n"));
        text += "\n";
    }
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns a command to try. With TLS, `ca.pem` is the authority of the server's certificate.
fn example_of(listener: Listener, address: SocketAddr, tls: bool) -> String {
    let port = address.port();
    // Certificates are for names, as a rule.
    let address = match tls && address.ip().is_loopback() {
        true => format!("localhost:{port}"),
        false => address.to_string(),
    };
    let (https, cacert) = if tls { ("https", " --cacert ca.pem") } else { ("http", "") };
    match listener {
        Listener::Http => {
            format!("curl -i{cacert} '{https}://{address}/v1/check?policy=api&key=alice'")
        }
        Listener::Resp => {
            let tls = if tls { " --tls" } else { "" };
            format!("redis-cli -p {port}{tls}{cacert} CL.THROTTLE alice 15 30 60")
        }
        Listener::Grpc => {
            let tls = if tls { "-cacert ca.pem" } else { "-plaintext" };
            format!(
                "grpcurl {tls} -d '{{\"domain\":\"example\",\"descriptors\":[{{\"entries\":[{{\"key\":\"user\",\"value\":\"alice\"}}]}}]}}' \
                 {address} envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
            )
        }
        Listener::Admin => format!(
            "tollgate top --admin {https}://{address}{cacert}     # or open {https}://{address}/ui/ in a browser"
        ),
    }
}
