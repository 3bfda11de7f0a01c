//! The arithmetic of the scripts, by the server's own Lua, beside whole numbers of 128 bits.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate_redis::{Reply, Route, Script};
use tollgate_rig::{Flavor, Redis};

const COUNTER: &str = include_str!("../../../src/lua/counter.lua");

/// floor(previous x weight / length) is exact also where the product is beyond what doubles hold.
#[tokio::test]
async fn shares_of_large_counts_are_exact() {
    let tail = "
        local out = {}
        for i = 1, #ARGV, 3 do
            out[#out + 1] = string.format('%.0f', share(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])))
        end
        return out";
    let script = Script::new([COUNTER, tail].concat());
    let mut random = fastrand::Rng::with_seed(7);
    for flavor in [Flavor::Redis, Flavor::Valkey] {
        let redis = Redis::start(flavor);
        let link = patient(&redis.url());
        link.ready(Duration::from_secs(20)).await.unwrap();
        let mut number = |bits: u32| {
            let bits = random.u32(1..=bits);
            random.u64(1..1 << bits)
        };
        let mut cases: Vec<[u64; 3]> = (0..3000)
            .map(|_| {
                let length = number(46);
                [number(46), number(46) % (length + 1), length]
            })
            .collect();
        // Quotients next to whole numbers.
        for _ in 0..3000 {
            let (length, quotient) = (number(45), number(45));
            let weight = length - length / 3;
            let previous = (u128::from(quotient) * u128::from(length) / u128::from(weight)) as u64;
            cases.extend([previous, previous + 1].map(|previous| [previous, weight, length]));
        }
        let mut call = script.call(0, 3 * cases.len());
        cases.iter().flatten().for_each(|number| call.push_number(*number));
        let reply = link.run(Route::Any, &script, call).await.unwrap();
        let seen = reply.parts().unwrap();
        assert_eq!(seen.len(), cases.len());
        for ([previous, weight, length], seen) in cases.into_iter().zip(seen) {
            let exact = u128::from(previous) * u128::from(weight) / u128::from(length);
            let text = exact.to_string();
            assert_eq!(seen, &Reply::Bytes(text.into()), "{previous} x {weight} / {length}");
        }
    }
}
