//! The ceiling of gRPC: an HTTP/2 server that reads nothing and always answers the same.

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use std::process::ExitCode;
use tokio::net::{TcpListener, TcpStream};

/// The hidden argument; an address follows.
pub(super) const FLAG: &str = "--echo";

/// A framed message of two bytes: the overall code is OK.
const ANSWER: &[u8] = &[0, 0, 0, 0, 2, 0x08, 0x01];

/// Serves until killed, if the command line has the hidden argument.
pub(crate) fn answer(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    if arguments.next()? != FLAG {
        return None;
    }
    let address = arguments.next()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().ok()?;
    let failed = runtime.block_on(serve(&address)).err()?;
    eprintln!("{failed}");
    Some(ExitCode::FAILURE)
}

async fn serve(address: &str) -> std::io::Result<std::convert::Infallible> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(connection(stream));
    }
}

async fn connection(stream: TcpStream) {
    let shaken = h2::server::Builder::new()
        .max_concurrent_streams(10_000)
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 24)
        .handshake::<_, Bytes>(stream)
        .await;
    let Ok(mut connection) = shaken else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let mut body = request.into_body();
        if body.is_end_stream() {
            let _ = reply(respond);
            continue;
        }
        // The message comes with the headers or right after them; it is dropped unread.
        tokio::spawn(async move {
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
            }
            let _ = reply(respond);
        });
    }
}

fn reply(mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut body = respond.send_response(head, false)?;
    body.send_data(Bytes::from_static(ANSWER), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    body.send_trailers(trailers)
}
