use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.into(), port }
}

fn read(url: &str) -> Settings {
    url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

#[test]
fn places() {
    let two = vec![tcp("a", 1), tcp("b", 26379)];
    for (url, place, shown) in [
        ("redis://localhost", Place::One(tcp("localhost", 6379)), "redis://localhost:6379"),
        ("valkey://h:7/3", Place::One(tcp("h", 7)), "redis://h:7/3"),
        ("redis://[::1]:7", Place::One(tcp("::1", 7)), "redis://[::1]:7"),
        ("redis://[::1]/", Place::One(tcp("::1", 6379)), "redis://[::1]:6379"),
        (
            "redis+unix:///a/b%20c",
            Place::One(Address::Unix("/a/b c".into())),
            "redis+unix:///a/b c",
        ),
        (
            "redis+sentinel://a:1,b/main/2",
            Place::Sentinel { sentinels: two, name: "main".into() },
            "redis+sentinel://a:1,b:26379/main/2",
        ),
        (
            "valkey+cluster://a,b:2",
            Place::Cluster(vec![tcp("a", 6379), tcp("b", 2)]),
            "redis+cluster://a:6379,b:2",
        ),
    ] {
        let settings = read(url);
        assert_eq!(settings.place, place, "{url}");
        assert_eq!(settings.to_string(), shown, "{url}");
    }
    assert_eq!(read("redis://h/3").database, 3);
    assert_eq!(read("redis+unix:///s?db=4").database, 4);
}

#[test]
fn the_password_is_decoded_and_never_printed() {
    for (url, user, password) in [
        ("redis://:s3cret@h", None, "s3cret"),
        ("redis://u%40x:s3cr%3At@h", Some("u@x"), "s3cr:t"),
        ("redis://u:s3c@ret@h", Some("u"), "s3c@ret"),
        ("redis+unix://u:s3cret@/sock", Some("u"), "s3cret"),
        ("redis+cluster://u:s3cret@a,b", Some("u"), "s3cret"),
        ("redis://h?password=s3cr%26t", None, "s3cr&t"),
    ] {
        let settings = read(url);
        assert_eq!(settings.user.as_deref(), user, "{url}");
        let secret = settings.password.as_ref().map(|it| it.read().unwrap());
        assert_eq!(secret.as_deref(), Some(password), "{url}");
        for shown in [format!("{settings}"), format!("{settings:?}")] {
            assert!(!shown.contains("s3c"), "{shown}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "from a file\n").unwrap();
    let settings = read(&format!("redis://h?password_file={}", path.display()));
    assert_eq!(settings.password.unwrap().read().unwrap(), "from a file");
}

/// A password that is not percent-encoded ends up anywhere in the address.
#[test]
fn a_wrong_address_shows_no_part_of_its_password() {
    for url in [
        "redis://:s3cret@",
        "redis://:s3cret@h:x",
        "redis://u:s3cret",
        "redis://:s3cret",
        "redis://u:a:s3cret",
        "redis://u:a/s3cret@h",
        "redis://u:a/s3cret@h/1",
        "redis://u:a?s3cret@h",
        "redis://u:a?b=1&s3cret@h",
        "redis://u:a#s3cret",
        "redis://h?password=a&s3cret",
        "redis://h?password=a&s3cret=1",
        "redis://h/s3cret",
        "redis+cluster://u:s3cret",
        "redis+cluster://u:a/s3cret@h",
        "redis+sentinel://u:a/s3cret@h/name",
        "redis+sentinel://u:s3cret/name",
        "redis+unix://u:s3cret",
        "redis+unix://u:s3cret@h",
    ] {
        let Err(error) = url.parse::<Settings>() else { panic!("{url} is an address") };
        assert!(!error.to_string().contains("s3cret"), "{url}: {error}");
    }
    let error = "redis://u:a/s3cret@h".parse::<Settings>().unwrap_err().to_string();
    assert!(error.contains("%2F"), "{error}");
}

#[test]
fn parameters() {
    let settings = read(
        "redis://h?deadline=20ms&connect_timeout=1s&connections=3&max_in_flight=7&protocol=2\
         &client_name=me&breaker_failures=2&breaker_window=4&probe_min=10ms&probe_max=1m\
         &refresh=5s&keepalive=3s&max_bulk=4096",
    );
    let expected = Settings::at(Place::One(tcp("h", 6379)))
        .deadline(Duration::from_millis(20))
        .connect_timeout(Duration::from_secs(1))
        .connections(3)
        .max_in_flight(7)
        .protocol(2)
        .client_name("me".into())
        .breaker_failures(2)
        .breaker_window(4)
        .probe_min(Duration::from_millis(10))
        .probe_max(Duration::from_secs(60))
        .refresh(Duration::from_secs(5))
        .keepalive(Duration::from_secs(3))
        .max_bulk(4096);
    assert_eq!(settings, expected);
    if cfg!(feature = "tls") {
        let tls = read("rediss://h?ca=/ca.pem&cert=/c.pem&key=/k.pem&server_name=redis").tls;
        let expected = Tls {
            ca: Some("/ca.pem".into()),
            certificate: Some("/c.pem".into()),
            key: Some("/k.pem".into()),
            server_name: Some("redis".into()),
        };
        assert_eq!(tls, Some(expected));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_way_out() {
    for (url, expected) in [
        ("localhost:6379", "has no `://`"),
        ("http://h", "\"http://\" is not a known scheme"),
        ("redis+tcp://h", "\"redis+tcp://\" is not a known scheme"),
        ("redis://", "names no host"),
        ("redis://:6379", "names no host"),
        ("redis://h:0", "use 1 to 65535"),
        ("redis://h:x", "use 1 to 65535"),
        ("redis://::1", "as [::1]"),
        ("redis://[::1", "without its ]"),
        ("redis://[::1]7", "[address]:port"),
        ("redis://h/x", "not the number of a database"),
        ("redis://a,b", "names no host"),
        ("redis+unix://h", "the path of the socket is missing"),
        ("redis+sentinel://h", "the name of the primary is missing"),
        ("redis+cluster://h/1", "a Cluster has only database 0"),
        ("redis://u@h", "a user needs a password"),
        ("redis://:%4@h", "two hexadecimal digits"),
        ("redis://h?deadine=1s", "did you mean `deadline`?"),
        ("redis://h?colour=1", "use one of deadline"),
        ("redis://h?deadline=50", "write 250ms"),
        ("redis://h?deadline=10us", "deadline 10µs is out of range; use 1ms to 3600s"),
        ("redis://h?deadline=99999999999999999999s", "not a duration"),
        ("redis://h?connections=17", "connections 17 is out of range; use 1 to 16"),
        ("redis://h?connections=-1", "not a whole number"),
        ("redis://h?breaker_failures=11", "use 1 to 10"),
        ("redis://h?probe_min=5s", "probe_min 5s is out of range; use 1ms to 1s"),
        ("redis://h?protocol=4", "use 2 to 3"),
        ("redis://h?client_name=a%20b", "without spaces"),
        ("redis://h?ca=/x", "rediss://"),
        ("redis://h?sentinel_user=x", "sentinel_password"),
    ] {
        let error = url.parse::<Settings>().expect_err(url).to_string();
        assert!(error.contains(expected), "{url}: {error}");
    }
    if cfg!(feature = "tls") {
        let error = "rediss://h?cert=/x".parse::<Settings>().unwrap_err().to_string();
        assert!(error.contains("give both or neither"), "{error}");
    }
}
