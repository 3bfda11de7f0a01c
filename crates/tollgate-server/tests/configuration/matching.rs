//! Descriptors meet the same limits as in a slow oracle. `fuzz/run 60 matching` goes on for longer.

mod oracle;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn descriptors_meet_the_limits_that_the_oracle_says(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        oracle::check(oracle::Dice(&bytes));
    }
}
