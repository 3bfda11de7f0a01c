use super::*;
use proptest::prelude::*;

fn parser() -> Parser {
    Parser::new(Bounds { arguments: 16, bulk: 64, command: 256 })
}

/// Reads all commands of some bytes.
fn all(bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let (mut parser, mut bytes, mut start) = (parser(), bytes.to_vec(), 0);
    let mut commands = Vec::new();
    while let Some(length) = parser.parse(&mut bytes[start..])? {
        let args = parser.args(&bytes[start..]);
        commands.push(args.iter_from(0).map(<[u8]>::to_vec).collect());
        start += length;
    }
    Ok(commands)
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn commands_are_arrays_or_lines() {
    for (text, expected) in [
        ("*1\r\n$4\r\nPING\r\n", vec![words(&["PING"])]),
        ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", vec![words(&["GET", ""])]),
        ("*1\r\n$2\r\n\r\n\r\n", vec![words(&["\r\n"])]),
        ("*0\r\n*-1\r\nPING\r\n", vec![vec![], vec![], words(&["PING"])]),
        ("PING\n\r\n  set  a\tb \r\n", vec![words(&["PING"]), vec![], words(&["set", "a", "b"])]),
        ("*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI", vec![words(&["PING"])]),
        ("", vec![]),
    ] {
        assert_eq!(all(text.as_bytes()), Ok(expected), "{text:?}");
    }
}

#[test]
fn lines_know_redis_quotes() {
    for (text, expected) in [
        (r#"a "b c" 'd e'"#, Some(vec!["a", "b c", "d e"])),
        (r#"a"b"c"#, None),
        (r#"a"b" c"#, Some(vec!["ab", "c"])),
        (r#""\n\r\t\b\a\\\"\q""#, Some(vec!["\n\r\t\u{8}\u{7}\\\"q"])),
        (r#""\x41\x4" "#, Some(vec!["Ax4"])),
        (r#"'it\'s' '\n'"#, Some(vec!["it's", "\\n"])),
        (r#""" ''"#, Some(vec!["", ""])),
        (r#""open"#, None),
        ("'open", None),
        (r#""a"b"#, None),
        (r#""a\"#, None),
    ] {
        let expected = expected.map(|expected| vec![words(&expected)]).ok_or(ProtocolError::Quotes);
        assert_eq!(all(format!("{text}\r\n").as_bytes()), expected, "{text}");
    }
}

#[test]
fn what_is_no_command_is_refused_in_redis_words() {
    let many = "a ".repeat(17) + "\r\n";
    let long = "x".repeat(INLINE_MAX + 1);
    let digits = format!("*{}", "1".repeat(65));
    let bulk_digits = format!("*1\r\n${}", "1".repeat(65));
    let big = "*5\r\n".to_owned() + &format!("$64\r\n{}\r\n", "x".repeat(64)).repeat(4);
    for (text, expected) in [
        ("*a\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        ("*-0\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*1\rx", "invalid multibulk length"),
        ("*17\r\n", "invalid multibulk length"),
        ("*9999999999999999999\r\n", "invalid multibulk length"),
        (&many, "invalid multibulk length"),
        (&digits, "too big mbulk count string"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$65\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$1\r\nab\r\n", "invalid bulk length"),
        (&bulk_digits, "too big bulk count string"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n\r\n", "expected '$', got ' '"),
        (&big, "too big request"),
        (&long, "too big inline request"),
    ] {
        let error = all(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, format!("Protocol error: {expected}"), "{:.40?}", text);
    }
}

#[test]
fn strangers_may_send_less() {
    let bounds = Bounds::of(1 << 20);
    for (text, expected) in [
        ("*11\r\n", Some(ProtocolError::StrangerArguments)),
        ("*10\r\n", None),
        ("*1\r\n$16385\r\n", Some(ProtocolError::StrangerBulk)),
        ("*1\r\n$16384\r\n", None),
    ] {
        let mut parser = Parser::new(bounds);
        parser.stranger(true);
        assert_eq!(parser.parse(&mut text.as_bytes().to_vec()).err(), expected, "{text:?}");
        parser = Parser::new(bounds);
        assert_eq!(parser.parse(&mut text.as_bytes().to_vec()), Ok(None), "{text:?}");
    }
}

fn command() -> impl Strategy<Value = (bool, Vec<Vec<u8>>)> {
    let array = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..6);
    let line = proptest::collection::vec(proptest::collection::vec(b'a'..=b'z', 1..8), 1..5);
    prop_oneof![array.prop_map(|args| (true, args)), line.prop_map(|args| (false, args))]
}

fn written(is_array: bool, args: &[Vec<u8>]) -> Vec<u8> {
    if !is_array {
        return [args.join(&b' '), b"\r\n".to_vec()].concat();
    }
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

proptest! {
    #[test]
    fn commands_round_trip_in_any_pieces(
        commands in proptest::collection::vec(command(), 1..6),
        cuts in proptest::collection::vec(0_usize..400, 0..12),
    ) {
        let stream: Vec<u8> =
            commands.iter().flat_map(|(is_array, args)| written(*is_array, args)).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.push(stream.len());
        cuts.sort_unstable();
        let (mut parser, mut buffer, mut seen) = (parser(), Vec::new(), Vec::new());
        let mut sent = 0;
        for cut in cuts {
            buffer.extend_from_slice(&stream[sent..cut]);
            sent = cut;
            while let Some(length) = parser.parse(&mut buffer).unwrap() {
                let args = parser.args(&buffer);
                seen.push(args.iter_from(0).map(<[u8]>::to_vec).collect::<Vec<_>>());
                buffer.drain(..length);
            }
        }
        prop_assert!(buffer.is_empty());
        let expected: Vec<_> = commands.into_iter().map(|(_, args)| args).collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn any_bytes_in_any_pieces_are_the_same_commands_or_the_same_error(
        bytes in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"'), any::<u8>()],
            0..80,
        ),
        step in 1_usize..9,
    ) {
        let whole = all(&bytes);
        let (mut parser, mut buffer, mut seen) = (parser(), Vec::new(), Vec::new());
        let mut error = None;
        'all: for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                match parser.parse(&mut buffer) {
                    Ok(Some(length)) => {
                        let args = parser.args(&buffer);
                        seen.push(args.iter_from(0).map(<[u8]>::to_vec).collect::<Vec<_>>());
                        buffer.drain(..length);
                    }
                    Ok(None) => break,
                    Err(wrong) => {
                        error = Some(wrong);
                        break 'all;
                    }
                }
            }
        }
        match error {
            Some(error) => prop_assert_eq!(whole, Err(error)),
            None => prop_assert_eq!(whole, Ok(seen)),
        }
    }
}
