use super::*;

fn enter(flights: &Flights, key: u64, now_us: u64, life_us: u64) -> bool {
    let (key, now) = (FlightKey { name: 7, key }, Tick::from_nanos(now_us * 1000));
    flights.enter(key, now, (1, 1), Duration::from_micros(life_us)).is_ok_and(|e| e.id.is_some())
}

#[test]
fn a_full_store_finds_room_as_soon_as_a_permit_ends() {
    let flights = Flights::new(2);
    assert!(enter(&flights, 1, 0, 1000) && enter(&flights, 2, 0, 5000));
    assert!(!enter(&flights, 3, 999, 10), "nothing has ended");
    assert!(enter(&flights, 3, 1000, 10), "the first has ended");
    assert!(!enter(&flights, 4, 1009, 10));
    assert!(enter(&flights, 4, 1010, 10), "and one that is shorter than those before it");
    assert_eq!(flights.in_flight(Tick::from_nanos(1_010_000), &[7, 8]), [2, 0]);
}

#[test]
fn sweeps_of_a_full_store_pause() {
    const MOST: u64 = 1000;
    let flights = Flights::new(MOST);
    for key in 0..MOST {
        assert!(enter(&flights, key, 0, 100 + key), "one ends each microsecond");
    }
    assert!(enter(&flights, 5000, 100, 1_000_000), "this sweep visits all");
    for now_us in 101..1100 {
        assert!(!enter(&flights, now_us + 9000, now_us, 1), "{now_us}: no other sweep yet");
    }
    assert!(enter(&flights, 5001, 1100, 1));
    assert_eq!(flights.in_flight(Tick::from_nanos(1_100_000), &[7]), [2]);
}
