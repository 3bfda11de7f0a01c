//! Feeds any bytes to the reader of commands, at once and in pieces: it must not panic, must say the
//! same both times, and must not take what is beyond its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::resp::parse::{Bounds, Parser, ProtocolError};

const BOUNDS: Bounds = Bounds { arguments: 32, bulk: 1 << 10, command: 4 << 10 };

type Commands = Vec<Vec<Vec<u8>>>;

/// Reads commands from bytes that come in pieces of `step`.
fn read(bytes: &[u8], step: usize) -> (Commands, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut commands) = (Parser::new(BOUNDS), Vec::new(), Vec::new());
    for piece in bytes.chunks(step) {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buffer) {
                Ok(Some(length)) => {
                    assert!((1..=buffer.len()).contains(&length));
                    let args: Vec<_> =
                        parser.args(&buffer).iter_from(0).map(<[u8]>::to_vec).collect();
                    assert!(args.len() <= BOUNDS.arguments);
                    commands.push(args);
                    buffer.drain(..length);
                }
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(whole, read(bytes, usize::from(*step).max(1)));
});
