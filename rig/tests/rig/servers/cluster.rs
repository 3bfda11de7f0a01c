//! A Cluster and a group of Sentinels that fail over.

use tollgate_rig::{Cluster, Flavor, Redis, Sentinel};

/// The slot of `foo`, as `CLUSTER KEYSLOT` says.
const SLOT_OF_FOO: u16 = 12_182;

#[test]
fn cluster_of_redis_fails_over_and_takes_the_old_primary_back() {
    fails_over(Flavor::Redis);
}

#[test]
fn cluster_of_valkey_fails_over_and_takes_the_old_primary_back() {
    fails_over(Flavor::Valkey);
}

fn fails_over(flavor: Flavor) {
    let mut cluster = Cluster::start(flavor);
    assert!(cluster.url().starts_with("redis+cluster://127.0.0.1:"));
    assert_eq!((cluster.nodes().len(), cluster.primaries()), (6, vec![0, 1, 2]));
    let old = cluster.owner(SLOT_OF_FOO);
    let [replica] = cluster.replicas(old)[..] else { panic!("one replica") };
    assert_eq!(cluster.nodes()[old].cli(&["SET", "foo", "1"]), "OK");
    assert!(cluster.nodes()[replica].cli(&["SET", "foo", "2"]).starts_with("MOVED 12182 "));

    cluster.node_mut(old).kill();
    let took = cluster.wait_for_failover(old);
    println!("{flavor:?}: failover in {took:?}");
    assert_eq!(cluster.owner(SLOT_OF_FOO), replica);
    assert_eq!(cluster.nodes()[replica].cli(&["SET", "foo", "2"]), "OK");

    cluster.restart(old);
    assert_eq!(cluster.replicas(replica), [old]);
    cluster.promote(old);
    assert_eq!(cluster.owner(SLOT_OF_FOO), old);
    assert_eq!(cluster.nodes()[old].cli(&["GET", "foo"]), "2");

    cluster.node_mut(old).kill();
    cluster.node_mut(replica).kill();
    cluster.wait_until_down();
    let other = cluster.primaries().into_iter().find(|node| *node != old).unwrap();
    assert!(cluster.nodes()[other].cli(&["GET", "foo"]).starts_with("CLUSTERDOWN"));
}

#[test]
fn cluster_of_redis_moves_a_slot() {
    moves_a_slot(Flavor::Redis);
}

#[test]
fn cluster_of_valkey_moves_a_slot() {
    moves_a_slot(Flavor::Valkey);
}

fn moves_a_slot(flavor: Flavor) {
    let cluster = Cluster::builder(flavor).replicas(0).password("sesame").start();
    assert!(cluster.url().starts_with("redis+cluster://:sesame@127.0.0.1:"));
    let (from, to) = (cluster.owner(SLOT_OF_FOO), 0);
    let [old, new] = [&cluster.nodes()[from], &cluster.nodes()[to]];
    assert_eq!(old.cli(&["SET", "foo", "1"]), "OK");
    let (moved, ask) =
        (format!("MOVED 12182 {}", new.address()), format!("ASK 12182 {}", new.address()));
    let back = format!("MOVED 12182 {}", old.address());
    assert_eq!(new.cli(&["GET", "foo"]), back);

    let migration = cluster.migrate(SLOT_OF_FOO, to);
    assert_eq!(migration.from(), from);
    assert_eq!(old.cli(&["GET", "foo"]), "1", "it is still there");
    assert_eq!(old.cli(&["GET", "{foo}2"]), ask);
    assert!(old.cli(&["MGET", "foo", "{foo}2"]).starts_with("TRYAGAIN"));
    assert_eq!(migration.move_keys(), 1);
    assert_eq!(old.cli(&["GET", "foo"]), ask);
    assert_eq!(new.cli(&["GET", "foo"]), back);
    migration.finish();
    assert_eq!(old.cli(&["GET", "foo"]), moved);
    assert_eq!(new.cli(&["GET", "foo"]), "1");
    assert_eq!(cluster.owner(SLOT_OF_FOO), to);
}

#[test]
fn a_node_and_a_sentinel_start_alone() {
    for flavor in Flavor::ALL {
        let node = Redis::builder(flavor).cluster().start();
        assert!(node.cli(&["CLUSTER", "INFO"]).contains("cluster_slots_assigned:0"), "{flavor:?}");
        assert!(node.cli(&["GET", "foo"]).starts_with("CLUSTERDOWN"), "{flavor:?}");

        let primary = Redis::start(flavor);
        let port = primary.address().port();
        let watch = format!("sentinel monitor main 127.0.0.1 {port} 1");
        let sentinel = Redis::builder(flavor).sentinel().line(&watch).start();
        let named = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        assert_eq!(named, format!("127.0.0.1\n{port}"), "{flavor:?}");
    }
}

#[test]
fn sentinels_of_redis_switch_to_the_replica() {
    switches(Flavor::Redis, Some("sesame"));
}

#[test]
fn sentinels_of_valkey_switch_to_the_replica() {
    switches(Flavor::Valkey, None);
}

fn switches(flavor: Flavor, password: Option<&str>) {
    let mut rig = match password {
        Some(password) => Sentinel::with_password(flavor, password),
        None => Sentinel::start(flavor),
    };
    let login = password.map(|it| format!(":{it}@")).unwrap_or_default();
    assert!(rig.url().starts_with(&format!("redis+sentinel://{login}127.0.0.1:")));
    assert!(rig.url().ends_with(&format!("/{}", rig.name())));
    assert_eq!(rig.primary(), 0);
    assert_eq!(rig.servers()[0].cli(&["SET", "a", "1"]), "OK");
    assert!(rig.servers()[1].cli(&["SET", "a", "1"]).starts_with("READONLY"));

    let old = rig.kill_primary();
    let took = rig.wait_for_switch(old);
    println!("{flavor:?}: switch in {took:?}");
    assert_eq!((old, rig.primary()), (0, 1));
    assert_eq!(rig.servers()[1].cli(&["SET", "a", "2"]), "OK");
}
