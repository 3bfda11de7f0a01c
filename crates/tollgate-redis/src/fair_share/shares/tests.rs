use super::*;
use proptest::prelude::*;

fn rates<const N: usize>(of: [u64; N]) -> Vec<Rate> {
    of.map(Rate::per_second).to_vec()
}

fn claims(of: &[(u64, u16, u8)]) -> Vec<Claim> {
    let claim = |(wants, weight, band): &(u64, u16, u8)| Claim {
        wants: Rate::per_second(*wants),
        weight: *weight,
        band: *band,
    };
    of.iter().map(claim).collect()
}

#[test]
fn doormans_examples() {
    let asked = claims(&[(1000, 1, 0), (50, 1, 0), (10, 1, 0)]);
    let capacity = Rate::per_second(120);
    assert_eq!(Sharing::Fair.shares(capacity, &asked), rates([60, 50, 10]));
    let proportional = Sharing::Proportional.shares(capacity, &asked);
    assert_eq!(
        proportional.iter().map(Rate::to_string).collect::<Vec<_>>(),
        ["69.690721/s", "40.309278/s", "10/s"]
    );
    let each = Rate::per_second(40);
    assert_eq!(Sharing::Static { each }.shares(capacity, &asked), rates([40, 40, 10]));
}

#[test]
fn weights_and_bands() {
    let hundred = Rate::per_second(100);
    let bands = Sharing::bands();
    for (row, (sharing, asked, expected)) in [
        (Sharing::Fair, vec![(1000, 3, 0), (1000, 1, 0)], vec![75, 25]),
        (Sharing::Fair, vec![(30, 3, 0), (1000, 1, 0)], vec![30, 70]),
        // Filled to the end, which takes more than two rounds.
        (Sharing::Fair, vec![(10, 1, 0), (20, 1, 0), (28, 1, 0), (90, 1, 0)], vec![10, 20, 28, 42]),
        (Sharing::Proportional, vec![(1000, 3, 0), (1000, 1, 0)], vec![75, 25]),
        // Each lower band keeps its floor of 5, and no more than it wants.
        (bands, vec![(1000, 1, 0), (1000, 1, 3), (2, 1, 7)], vec![93, 5, 2]),
        (bands, vec![(30, 1, 0), (1000, 1, 1), (1000, 1, 1), (1000, 1, 2)], vec![30, 32, 32, 5]),
        (bands, vec![(10, 1, 5), (20, 1, 6)], vec![10, 20]),
        (Sharing::Bands { floor_ppm: 0 }, vec![(1000, 1, 0), (1000, 1, 1)], vec![100, 0]),
    ]
    .into_iter()
    .enumerate()
    {
        let shares = sharing.shares(hundred, &claims(&asked));
        let whole: Vec<u64> = shares.iter().map(|share| share.as_micros() / 1_000_000).collect();
        assert_eq!(whole, expected, "row {row}: {shares:?}");
    }
}

#[test]
fn the_ends_of_the_range() {
    let most = Claim { wants: Rate::MAX, weight: 1000, band: 7 };
    for sharing in [Sharing::Proportional, Sharing::Fair, Sharing::bands()] {
        assert_eq!(sharing.shares(Rate::MAX, &[]), []);
        assert_eq!(sharing.shares(Rate::ZERO, &[most; 3]), [Rate::ZERO; 3]);
        assert_eq!(sharing.shares(Rate::MAX, &[most]), [Rate::MAX]);
        let shares = sharing.shares(Rate::MAX, &[most; 500]);
        assert!(shares.iter().all(|share| *share == Rate::per_second(2_000_000)), "{sharing:?}");
    }
}

fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
    let wants = prop_oneof![0_u64..50, 0_u64..2_000_000_000, 0..=Rate::MAX.as_micros()];
    let claim = (wants, 1_u16..=1000, 0_u8..8).prop_map(|(wants, weight, band)| Claim {
        wants: Rate::from_micros(wants),
        weight,
        band,
    });
    prop::collection::vec(claim, 0..40)
}

proptest! {
    #[test]
    fn never_above_the_capacity_and_never_wasteful(
        capacity in prop_oneof![0_u64..100, 0..=Rate::MAX.as_micros()],
        asked in any_claims(),
    ) {
        let capacity = Rate::from_micros(capacity);
        for sharing in [Sharing::Proportional, Sharing::Fair, Sharing::bands()] {
            let shares = sharing.shares(capacity, &asked);
            let total: Rate = shares.iter().copied().sum();
            let wanted: Rate = asked.iter().map(|it| it.wants).sum();
            prop_assert!(total <= capacity, "{sharing:?} gives {total}");
            for (share, claim) in shares.iter().zip(&asked) {
                prop_assert!(*share <= claim.wants);
            }
            // Rounding loses less than a millionth for each share; coarse units less than 512.
            let lost = capacity.min(wanted).as_micros() - total.as_micros();
            prop_assert!(lost <= 2 * asked.len() as u64, "{sharing:?} leaves {lost}");
        }
    }

    #[test]
    fn fair_shares_are_max_min_fair(
        capacity in 0_u64..4_000_000_000,
        asked in any_claims(),
    ) {
        let shares = Sharing::Fair.shares(Rate::from_micros(capacity), &asked);
        // A process that does not get all it wants has no less for its weight than any other,
        // except for one millionth that is lost by rounding.
        for (short, claim) in shares.iter().zip(&asked).filter(|(share, it)| **share < it.wants) {
            for (share, other) in shares.iter().zip(&asked) {
                let most = u128::from(share.as_micros()) * u128::from(claim.weight);
                let mine = u128::from(short.as_micros() + 1) * u128::from(other.weight);
                prop_assert!(mine >= most, "{short} of {claim:?} against {share} of {other:?}");
            }
        }
    }
}
