use super::*;

#[test]
fn memory_is_used_again() {
    let mut decoder = Decoder::new();
    // domain "d", two descriptors of one entry k=v each
    let entry = [0x0a, 1, b'k', 0x12, 1, b'v'];
    let mut message = vec![0x0a, 1, b'd'];
    for _ in 0..2 {
        message.extend_from_slice(&[0x12, 8, 0x0a, 6]);
        message.extend_from_slice(&entry);
    }
    let mut places = Vec::new();
    for _ in 0..3 {
        let request = decoder.decode(&message).unwrap();
        let asks = decoder.asks(&request).unwrap();
        assert_eq!(asks.len(), 2);
        places.push((request.entries.as_ptr() as usize, asks.as_ptr() as usize));
        decoder.put_asks_back(asks);
        decoder.put_back(request);
    }
    assert_eq!(places[1], places[2]);
    assert!(decoder.entries.capacity() >= 2 && decoder.asks.capacity() >= 2);
}

#[test]
fn hits_are_the_descriptors_or_the_requests() {
    let of = |own, is_negative_hits| Descriptor {
        hits_addend: own,
        is_negative_hits,
        ..Descriptor::default()
    };
    for (descriptor, of_request, expected) in [
        (of(None, false), 0, Hits::Take(1)),
        (of(None, false), 7, Hits::Take(7)),
        (of(Some(0), false), 7, Hits::Take(0)),
        (of(Some(3), false), 7, Hits::Take(3)),
        (of(Some(u64::MAX), false), 0, Hits::Take(u64::MAX)),
        (of(Some(3), true), 7, Hits::Give(3)),
        (of(None, true), 0, Hits::Give(1)),
    ] {
        assert_eq!(hits(&descriptor, of_request), expected, "{descriptor:?} of {of_request}");
    }
}
