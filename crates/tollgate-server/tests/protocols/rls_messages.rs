//! Our reader of protobuf against another one's writer, and against damaged messages.

use crate::support::messages::{Descriptor, Entry, LimitOverride, RateLimitRequest};
use proptest::{collection::vec, option, prelude::*};
use prost::Message;
use tollgate_server::rls::request::Decoder;

fn any_entry() -> impl Strategy<Value = Entry> {
    (".{0,12}", ".{0,200}").prop_map(|(key, value)| Entry { key, value })
}

fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    let limit = (any::<u32>(), any::<i32>())
        .prop_map(|(requests_per_unit, unit)| LimitOverride { requests_per_unit, unit });
    (vec(any_entry(), 0..5), option::of(limit), option::of(any::<u64>()), any::<bool>()).prop_map(
        |(entries, limit, hits_addend, is_negative_hits)| Descriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        },
    )
}

fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    (".{0,20}", vec(any_descriptor(), 0..6), any::<u32>()).prop_map(
        |(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend },
    )
}

/// Reads with our reader.
fn read(decoder: &mut Decoder, bytes: &[u8]) -> Option<RateLimitRequest> {
    let request = decoder.decode(bytes).ok()?;
    let descriptors = request.descriptors().map(|(descriptor, entries)| Descriptor {
        entries: entries
            .iter()
            .map(|entry| Entry { key: entry.key.into(), value: entry.value.into() })
            .collect(),
        limit: descriptor.limit.map(|limit| LimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit,
        }),
        hits_addend: descriptor.hits_addend,
        is_negative_hits: descriptor.is_negative_hits,
    });
    let descriptors = descriptors.collect();
    let copy = RateLimitRequest {
        domain: request.domain.into(),
        descriptors,
        hits_addend: request.hits_addend,
    };
    decoder.put_back(request);
    Some(copy)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_others_write_is_read_as_it_was(first in any_request(), second in any_request()) {
        let mut decoder = Decoder::new();
        for request in [&first, &second] {
            let ours = read(&mut decoder, &request.encode_to_vec());
            prop_assert_eq!(ours.as_ref(), Some(request));
        }
        // Two messages in a row are one: lists are joined, and the last of the others counts.
        let both = [first.encode_to_vec(), second.encode_to_vec()].concat();
        let merged = RateLimitRequest::decode(&*both).unwrap();
        prop_assert_eq!(read(&mut decoder, &both), Some(merged));
    }

    #[test]
    fn damaged_messages_are_read_as_others_read_them(
        request in any_request(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = request.encode_to_vec();
        for (at, value) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        // Where both read it, they agree. We refuse groups and too many of anything.
        if let Some(ours) = read(&mut Decoder::new(), &bytes) {
            prop_assert_eq!(RateLimitRequest::decode(&*bytes).ok(), Some(ours));
        }
    }
}
