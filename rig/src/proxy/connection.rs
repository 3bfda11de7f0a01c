//! One connection, there and back.

use super::{Counters, Mode, Orders, count::RequestCount, reset};
use crate::wait::now;
use std::{
    cell::Cell,
    future::pending,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::timeout,
};

/// Chunks of replies on their way at a time, each of [`CHUNK`] bytes at most.
const CHUNKS: usize = 1_024;
const CHUNK: usize = 16 * 1_024;

/// A connection that was accepted.
pub(super) struct Connection<'a> {
    pub(super) client: TcpStream,
    /// The orders when it was accepted.
    pub(super) now: Orders,
    pub(super) orders: watch::Receiver<Orders>,
    pub(super) counters: &'a Counters,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// One side closed it.
    Closed,
    /// It is to be reset on both sides.
    Reset,
}

/// What both directions share.
struct Pair<'a> {
    orders: watch::Receiver<Orders>,
    counters: &'a Counters,
    /// Bytes were lost, so none may follow.
    lost: Cell<bool>,
}

/// A piece of the replies, and when it is due.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

impl Connection<'_> {
    pub(super) async fn run(mut self) {
        let began = self.now.cut_number;
        let mut orders = self.orders.clone();
        let cut = async move {
            // An error means that the proxy ends.
            drop(orders.wait_for(|orders| orders.cut_number != began || orders.ends).await);
        };
        drop(self.client.set_nodelay(true));
        let mut server = None;
        let pair = Pair { orders: self.orders, counters: self.counters, lost: Cell::new(false) };
        let end = tokio::select! {
            biased;
            () = cut => End::Reset,
            end = pair.serve(&mut self.client, &mut server, self.now) => end,
        };
        if end == End::Reset {
            reset(&self.client);
            if let Some(server) = &server {
                reset(server);
            }
        }
    }
}

impl Pair<'_> {
    async fn serve(
        &self,
        client: &mut TcpStream,
        server: &mut Option<TcpStream>,
        now: Orders,
    ) -> End {
        let (from_client, to_client) = client.split();
        if now.mode == Mode::BlackHole {
            self.lost.set(true);
            return self.swallow(from_client).await;
        }
        // A stalled network lets nobody through; the kernel accepted for us already.
        let target = self.settled().await.target;
        let Ok(stream) = TcpStream::connect(target).await else {
            return End::Reset;
        };
        drop(stream.set_nodelay(true));
        let (from_server, to_server) = server.insert(stream).split();
        let (sender, chunks) = mpsc::channel(CHUNKS);
        tokio::select! {
            end = self.up(from_client, to_server) => end,
            end = deliver(self, chunks, to_client) => end,
            // When the server closes, what it said is delivered first.
            end = async { self.down(from_server, sender).await; pending().await } => end,
        }
    }

    /// Requests: from the client to the server.
    async fn up(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> End {
        let mut buffer = vec![0; CHUNK];
        let mut count = RequestCount::default();
        loop {
            let Ok(length @ 1..) = from.read(&mut buffer).await else {
                return End::Closed;
            };
            let bytes = &buffer[..length];
            self.count_up(bytes, &mut count);
            let mode = self.settled().await.mode;
            if matches!(mode, Mode::BlackHole | Mode::DropRequests) {
                self.lost.set(true);
            }
            // Under DropReplies the connection has lost replies, but requests still arrive.
            if self.lost.get() && mode != Mode::DropReplies {
                continue;
            }
            if to.write_all(bytes).await.is_err() {
                return End::Reset;
            }
        }
    }

    /// Replies: from the server into the queue, each with the time when it is due.
    async fn down(&self, mut from: ReadHalf<'_>, queue: mpsc::Sender<Chunk>) {
        let mut buffer = vec![0; CHUNK];
        let mut last_due = now();
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let delay = match self.orders.borrow().mode {
                Mode::Delay(delay) => delay,
                _ => Duration::ZERO,
            };
            // In order, also when the delay got shorter.
            last_due = last_due.max(now() + delay);
            let chunk = Chunk { due: last_due, bytes: buffer[..length].to_vec() };
            if queue.send(chunk).await.is_err() {
                return;
            }
        }
    }

    /// Reads until the client closes, and gives nothing back.
    async fn swallow(&self, mut from: ReadHalf<'_>) -> End {
        let mut buffer = vec![0; CHUNK];
        let mut count = RequestCount::default();
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            self.count_up(&buffer[..length], &mut count);
        }
        End::Closed
    }

    fn count_up(&self, bytes: &[u8], count: &mut RequestCount) {
        // ORDERING: Relaxed is enough, these publish nothing else.
        self.counters.bytes_up.fetch_add(bytes.len() as u64, Relaxed);
        self.counters.requests.fetch_add(count.read(bytes), Relaxed);
    }

    /// Waits until the mode is not [`Mode::Stall`], and returns the orders.
    async fn settled(&self) -> Orders {
        let mut orders = self.orders.clone();
        let settled = orders.wait_for(|orders| orders.mode != Mode::Stall).await.map(|it| *it);
        match settled {
            Ok(orders) => orders,
            // The proxy ends; the connection is told so by `cut`.
            Err(_) => pending().await,
        }
    }
}

/// Replies: from the queue to the client, each when it is due.
async fn deliver(pair: &Pair<'_>, mut chunks: mpsc::Receiver<Chunk>, mut to: WriteHalf<'_>) -> End {
    let mut mode_number = None;
    // Bytes given to the client under this mode.
    let mut given = 0_u64;
    while let Some(mut chunk) = chunks.recv().await {
        pause(chunk.due.saturating_duration_since(now())).await;
        let orders = pair.settled().await;
        if mode_number.replace(orders.mode_number) != Some(orders.mode_number) {
            given = 0;
        }
        let mut whole = true;
        match orders.mode {
            Mode::BlackHole | Mode::DropReplies => pair.lost.set(true),
            Mode::Corrupt(at) => {
                let place = at.checked_sub(given).and_then(|place| usize::try_from(place).ok());
                if let Some(byte) = place.and_then(|place| chunk.bytes.get_mut(place)) {
                    *byte ^= 0x80;
                }
            }
            Mode::ResetAfter(bytes) => {
                let left = usize::try_from(bytes.saturating_sub(given)).unwrap_or(usize::MAX);
                whole = chunk.bytes.len() < left;
                chunk.bytes.truncate(left);
            }
            _ => {}
        }
        // Under DropRequests the connection is lost too, but what was asked before is answered.
        if pair.lost.get() && orders.mode != Mode::DropRequests {
            continue;
        }
        given += chunk.bytes.len() as u64;
        if give(pair, &mut to, &chunk.bytes, orders.mode).await.is_err() {
            return End::Reset;
        }
        if !whole {
            return End::Reset;
        }
    }
    End::Closed
}

async fn give(
    pair: &Pair<'_>,
    to: &mut WriteHalf<'_>,
    bytes: &[u8],
    mode: Mode,
) -> std::io::Result<()> {
    // Throttled replies come in fiftieths of a second.
    let piece = match mode {
        Mode::Throttle(rate) => usize::try_from(rate / 50).unwrap_or(usize::MAX).max(1),
        _ => usize::MAX,
    };
    for part in bytes.chunks(piece.min(CHUNK)) {
        if let Mode::Throttle(rate) = mode {
            pause(Duration::from_secs_f64(part.len() as f64 / rate.max(1) as f64)).await;
        }
        // ORDERING: Relaxed is enough, it publishes nothing else. Who has the bytes finds them
        // counted, as the socket is between the two.
        pair.counters.bytes_down.fetch_add(part.len() as u64, Relaxed);
        to.write_all(part).await?;
    }
    Ok(())
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        // It is always the time that ends this.
        drop(timeout(duration, pending::<()>()).await);
    }
}
