//! A gauge in a word.

use super::*;

#[test]
fn a_word_holds_a_gauge_at_its_edges() {
    let most = super::super::queue::LIMIT_MAX as u32;
    for limit in [0, 1, most] {
        for in_flight in [0, 1, most] {
            for (waited_for, closed) in [(false, false), (false, true), (true, false), (true, true)]
            {
                let gauge = Gauge { limit, in_flight, waited_for, closed };
                assert_eq!(unpack(pack(gauge)), gauge);
                assert_eq!(unpack(pack(gauge) | SEIZED), gauge);
            }
        }
    }
}
