//! Feeds any bytes to the reader of replies, at once and in pieces: it must not panic, must say the
//! same both times, and must not take what is beyond its bounds.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tollgate_redis::{Reply, ReplyBounds, ReplyError, ReplyParser};

const BOUNDS: ReplyBounds = ReplyBounds { bulk: 1 << 10, total: 4 << 10, elements: 64, depth: 4 };

/// Reads replies from bytes that come in pieces of `step`.
fn read(bytes: &[u8], step: usize) -> (Vec<Reply>, Option<ReplyError>) {
    let (mut parser, mut buffer) = (ReplyParser::new(BOUNDS), BytesMut::new());
    let mut replies = Vec::new();
    for piece in bytes.chunks(step) {
        buffer.extend_from_slice(piece);
        loop {
            match parser.next(&mut buffer) {
                Ok(Some(reply)) => {
                    let (elements, depth) = size(&reply);
                    assert!(elements <= BOUNDS.elements && depth <= BOUNDS.depth);
                    replies.push(reply);
                }
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

/// Counts the elements of all arrays, and how deep they are.
fn size(reply: &Reply) -> (usize, usize) {
    let parts = reply.parts().unwrap_or_default();
    let inner = parts
        .iter()
        .map(size)
        .fold((0, 0), |(elements, depth), (more, deep)| (elements + more, depth.max(deep)));
    (parts.len() + inner.0, inner.1 + usize::from(!parts.is_empty()))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(whole, read(bytes, usize::from(*step).max(1)));
});
