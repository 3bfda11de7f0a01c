//! The arithmetic of the scripts, by the server's own Lua, beside whole numbers of 128 bits.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate_redis::{Reply, Route, Script};
use tollgate_rig::{Flavor, Redis};

const EXACT: &str = include_str!("../../../src/lua/exact.lua");
const GCRA: &str = include_str!("../../../src/lua/gcra.lua");

/// floor(a x b / c) is exact also where the product is beyond what doubles hold.
#[tokio::test]
async fn shares_of_large_counts_are_exact() {
    let tail = "
        local out = {}
        for i = 1, #ARGV, 3 do
            out[#out + 1] = string.format('%.0f', share(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])))
        end
        return out";
    let script = Script::new([EXACT, tail].concat());
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
        // Many permits, of a time in the finest fractions.
        for _ in 0..3000 {
            let c = number(40);
            cases.push([number(50), number(40) % c, c]);
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

/// A state keeps its time for every quota: the one that wrote it reads it unchanged, another rounds it up by
/// less than its finest fraction, a ninth of a nanosecond at most. Whole ninths are read by all alike.
#[tokio::test]
async fn another_quota_reads_a_state_to_a_ninth_of_a_nanosecond() {
    let tail = "
        local function quota(c)
            return struct.pack('<dddddd', c, 0, 0, 100, 0, 0)
        end
        local out = {}
        for i = 1, #ARGV, 3 do
            local n, c, other = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
            write(KEYS[1], 1, n, nil, 1, 1000, quota(c))
            local _, own = read(KEYS[1], 1, quota(c))
            local _, seen = read(KEYS[1], 1, quota(other))
            out[#out + 1] = string.format('%d %d', own, seen)
        end
        return out";
    let script = Script::new([GCRA, tail].concat());
    let mut random = fastrand::Rng::with_seed(9);
    let mut fraction = || match random.u8(0..4) {
        0 => 9000,
        1 => 9000 * random.u64(1..1000),
        2 => 9000 * random.u64(1..=(1 << 40) / 9000),
        _ => random.u64((1 << 40) / 9000..=1 << 40),
    };
    let cases: Vec<[u64; 3]> = (0..6000)
        .map(|case| {
            let (c, other) = (fraction(), fraction());
            let n = match case % 3 {
                0 => (c / 9000) * fastrand::Rng::with_seed(case).u64(0..9000),
                1 => c - 1,
                _ => fastrand::Rng::with_seed(case).u64(0..c),
            };
            [n, c, other]
        })
        .collect();
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let mut call = script.call(1, 3 * cases.len());
    call.push(b"state");
    cases.iter().flatten().for_each(|number| call.push_number(*number));
    let reply = link.run(Route::Any, &script, call).await.unwrap();
    let replies = reply.parts().unwrap();
    assert_eq!(replies.len(), cases.len());
    for ([n, c, other], reply) in cases.into_iter().zip(replies) {
        let text = std::str::from_utf8(reply.bytes().unwrap()).unwrap();
        let (own, seen) = text.split_once(' ').unwrap();
        let about = format!("{n}/{c} is {text}/{other}");
        assert_eq!(own.parse(), Ok(n), "{about}");
        let [n, c, other] = [n, c, other].map(u128::from);
        let (exact, seen) = (n * other, seen.parse::<u128>().unwrap() * c);
        // A thousandth of a fraction is what doubles may be off by.
        assert!(seen + c / 500 >= exact && seen < exact + c, "{about}");
        if [c, other, n * 9000].into_iter().zip([9000, 9000, c]).all(|(it, of)| it % of == 0) {
            assert_eq!(seen, exact, "{about}");
        }
    }
}
