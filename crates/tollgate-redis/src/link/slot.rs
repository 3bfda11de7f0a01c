//! Slots of a cluster.

/// So many slots has a cluster.
pub(super) const SLOTS: usize = 16384;

/// Returns the slot of a key in a cluster: of what is between the first `{` and the next `}`, if
/// that is not nothing.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{').map(|at| at + 1);
    let tag = open.and_then(|start| {
        let length = key[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[start..start + length])
    });
    let crc = tag
        .unwrap_or(key)
        .iter()
        .fold(0_u16, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ *byte)]);
    crc % SLOTS as u16
}

/// CRC-16 with the polynomial 0x1021, for each byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("{user1000}.following", 3443)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"foo{}{bar}"), 8363, "an empty tag is none");
    }
}
