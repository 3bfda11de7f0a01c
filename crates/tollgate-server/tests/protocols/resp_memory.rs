//! Decisions over the Redis protocol ask for no memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tollgate_server::{
    net::{Connection, Listener, Stream},
    resp,
    server::Settings,
};

thread_local! {
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is going away has no counter any more.
        let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test(flavor = "current_thread")]
async fn decisions_ask_for_no_memory() {
    let (shared, _clock) = crate::resp_support::shared(Settings::default());
    let (mut client, theirs) = UnixStream::pair().unwrap();
    let connection = Connection::new(shared, Listener::Resp, None);
    tokio::spawn(resp::serve(Stream::Unix(theirs), connection));
    // Both pass at first and are refused later. Each reply is of the same length every time.
    for (line, reply) in [
        ("CL.THROTTLE a 15 1 600 1\r\n", "*5\r\n:1\r\n:16\r\n:0\r\n:600\r\n:9600\r\n"),
        (
            "TG.CHECK per-user alice 1\r\n",
            "*6\r\n:0\r\n:3\r\n:0\r\n:20000\r\n:60000\r\n$8\r\nper-user\r\n",
        ),
    ] {
        let (batch, mut buffer) = (line.repeat(16), vec![0; 16 * reply.len()]);
        let mut blocks = 0;
        for round in 0..64 {
            if round == 8 {
                blocks = BLOCKS.get();
            }
            client.write_all(batch.as_bytes()).await.unwrap();
            if round == 0 {
                // Some pass, with other numbers.
                let _ = client.read(&mut buffer).await.unwrap();
                continue;
            }
            client.read_exact(&mut buffer).await.unwrap();
        }
        let blocks = BLOCKS.get() - blocks;
        assert_eq!(buffer, reply.repeat(16).as_bytes(), "{line}");
        assert_eq!(blocks, 0, "{line}");
    }
}
