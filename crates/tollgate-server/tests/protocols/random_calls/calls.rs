//! One random call, over one of the protocols.

use super::{
    Random,
    model::{Decided, Model, Part, Reserved, node},
};
use crate::{
    edges::{Edges, Resp},
    support::{
        descriptor,
        messages::{Descriptor, RateLimitRequest},
    },
};
use serde_json::{Value, json};

const KEYS: [&str; 8] = ["user", "late", "shadow", "one", "two", "shut", "free", "bucket"];

/// A reservation that is open.
struct Open {
    id: String,
    reserved: Vec<Reserved>,
    ends_ms: u64,
}

#[derive(Default)]
pub(super) struct Caller {
    open: Vec<Open>,
}

/// Key, value and cost of each descriptor.
type Asks = Vec<(&'static str, String, u64)>;

fn asks(random: &mut Random, from: &[&'static str], most: u64) -> Asks {
    let count = 1 + random.below(most);
    let one = |random: &mut Random| {
        let key = random.pick(from);
        // Looks at a key in debt have a test of their own.
        let has_no_debt = matches!(key, "shadow" | "shut" | "free" | "bucket");
        let costs: &[u64] = if has_no_debt { &[0, 1, 1, 2, 3, 5] } else { &[1, 1, 2, 3, 5] };
        (key, random.pick(&["a", "b"]).to_owned(), random.pick(costs))
    };
    (0..count).map(|_| one(random)).collect()
}

fn policy(key: &str, random: &mut Random) -> &'static str {
    let rules = node(key);
    rules[random.below(rules.len() as u64) as usize].name
}

fn descriptors(asks: &Asks) -> Value {
    let each = asks
        .iter()
        .map(|(key, value, cost)| json!({"entries": [{"key": key, "value": value}], "hits": cost}));
    json!({"domain": "shop", "descriptors": each.collect::<Vec<_>>()})
}

/// Names one policy of each descriptor: the same for the same one, as two of one node are an error.
fn limits(asks: &Asks) -> Value {
    let each = asks
        .iter()
        .map(|(key, value, cost)| json!({"policy": node(key)[0].name, "key": value, "cost": cost}));
    json!({"limits": each.collect::<Vec<_>>()})
}

fn check_http(told: &Value, decided: &Decided, row: &str) {
    assert_eq!(told["allowed"], decided.allowed, "{row}: {told}");
    let bound = decided.bound();
    let retry = bound.filter(|_| !decided.allowed).and_then(|part| part.retry);
    for (field, expected) in [
        ("policy", bound.map(|part| json!(part.rule.name))),
        ("limit", bound.and_then(Part::limit).map(|limit| json!(limit))),
        ("remaining", bound.map(|part| json!(part.left))),
        ("retry_after_ms", retry.map(|retry| json!(retry))),
        ("reset_after_ms", bound.map(|part| json!(part.reset))),
    ] {
        assert_eq!(told[field], expected.unwrap_or(Value::Null), "{row}: {field} of {told}");
    }
    for (limit, part) in told["limits"].as_array().unwrap().iter().zip(&decided.parts) {
        assert_eq!(limit["policy"], part.rule.name, "{row}: {told}");
        let left = part.limit().map(|_| part.left);
        assert_eq!(limit["remaining"], json!(left), "{row}: {limit}");
    }
}

fn check_resp(told: &[Resp], decided: &Decided, row: &str) {
    let bound = decided.bound();
    let int = |number: Option<u64>| number.map_or(Resp::Null, |number| Resp::Int(number as i64));
    let retry = match bound.and_then(|part| part.retry) {
        _ if decided.allowed => 0,
        Some(retry) => retry as i64,
        None => -1,
    };
    let refused_by = bound.filter(|_| !decided.allowed).map(|part| part.rule.name);
    let expected = [
        Resp::Int(i64::from(decided.allowed)),
        int(bound.and_then(Part::limit)),
        int(bound.map(|part| part.left)),
        Resp::Int(retry),
        Resp::Int(bound.map_or(0, |part| part.reset as i64)),
        refused_by.map_or(Resp::Null, |name| Resp::Text(name.into())),
    ];
    assert_eq!(told, expected, "{row}");
}

fn check_envoy(told: (bool, Vec<(bool, Option<u32>, u32)>), decided: &Decided, row: &str) {
    let (allowed, statuses) = told;
    assert_eq!(allowed, decided.allowed, "{row}");
    for (ask, (is_over, limit, remaining)) in statuses.into_iter().enumerate() {
        let Some(part) = decided.of_ask(ask) else { continue };
        let over = matches!(part.code, "denied" | "spent");
        let left = match part.code {
            "denied" | "spent" | "shadow" => 0,
            "unlimited" => u32::MAX,
            _ => part.left as u32,
        };
        let expected = (over, part.limit().map(|limit| limit as u32), left);
        assert_eq!((is_over, limit, remaining), expected, "{row}, descriptor {ask}");
    }
}

impl Caller {
    /// Makes a call, and compares its reply with the model. Returns what it was.
    pub(super) async fn call(
        &mut self,
        edges: &mut Edges,
        model: &mut Model,
        random: &mut Random,
    ) -> String {
        match random.below(14) {
            0..=1 => http_by_name(edges, model, random).await,
            2 => http_batch(edges, model, random).await,
            3 => resp_check(edges, model, random).await,
            4 => resp_descriptor(edges, model, random).await,
            5..=6 => envoy(edges, model, random).await,
            7 => envoy_json(edges, model, random).await,
            8 => forward_auth(edges, model, random).await,
            9 => throttle(edges, model, random).await,
            10 => give_back(edges, model, random).await,
            11 => report(edges, random).await,
            12 => self.reserve(edges, model, random).await,
            _ => self.settle(edges, model, random).await,
        }
    }

    async fn reserve(
        &mut self,
        edges: &mut Edges,
        model: &mut Model,
        random: &mut Random,
    ) -> String {
        // A bucket gives back what time has not, to the fraction of a permit: other tests have that.
        let mut asked = asks(random, &["user", "late", "shadow", "one", "two", "free"], 2);
        asked.dedup_by_key(|(key, value, _)| (*key, value.clone()));
        let row = format!("reserve {asked:?}");
        let decided = model.decide(&asked, true);
        let id = if random.below(2) == 0 {
            let mut body = descriptors(&asked);
            body["life_ms"] = json!(30_000);
            let told = edges.post("/v1/reserve", &body).await.json();
            check_http(&told, &decided, &row);
            told["id"].as_str().map(str::to_owned)
        } else {
            let words = asked
                .iter()
                .map(|(key, value, cost)| format!("{} {value} {cost}", node(key)[0].name));
            let words = words.collect::<Vec<_>>().join(" ");
            let told = edges.resp(&format!("TG.RESERVE {words} LIFE 30000")).await;
            let mut told = told.list().to_vec();
            let id = told.remove(1);
            check_resp(&told, &decided, &row);
            id.text().map(str::to_owned)
        };
        if let Some(id) = id {
            let (reserved, ends_ms) = (model.reserved(&decided), model.now_ms() + 30_000);
            self.open.push(Open { id, reserved, ends_ms });
        }
        row
    }

    async fn settle(
        &mut self,
        edges: &mut Edges,
        model: &mut Model,
        random: &mut Random,
    ) -> String {
        if self.open.is_empty() {
            return "nothing to settle".into();
        }
        let Open { id, reserved, ends_ms } =
            self.open.remove(random.below(self.open.len() as u64) as usize);
        let actual = random.pick(&[0, 0, 1, 2, 4]);
        let row = format!("settle {id} with {actual}");
        let is_open = ends_ms > model.now_ms();
        if is_open {
            model.settle(&reserved, &[actual]);
        }
        let settled = match (random.below(2), actual) {
            (0, 0) => edges.post("/v1/cancel", &json!({"id": id})).await.status == 200,
            (0, _) => {
                let body = json!({"id": id, "actual": actual});
                edges.post("/v1/settle", &body).await.status == 200
            }
            (_, 0) => edges.resp(&format!("TG.CANCEL {id}")).await == Resp::Int(1),
            _ => edges.resp(&format!("TG.SETTLE {id} {actual}")).await == Resp::Int(1),
        };
        assert_eq!(settled, is_open, "{row}");
        row
    }
}

async fn http_by_name(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 1);
    let (key, value, cost) = &asked[0];
    let verb = random.pick(&["check", "check", "peek"]);
    let target = format!("/v1/{verb}?policy={}&key={value}&cost={cost}", policy(key, random));
    let decided = model.decide(&asked, verb == "check");
    let told = edges.get(&target).await;
    assert_eq!(told.status, if decided.allowed { 200 } else { 429 }, "{target}");
    check_http(&told.json(), &decided, &target);
    target
}

async fn http_batch(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 4);
    let body = if random.below(2) == 0 { limits(&asked) } else { descriptors(&asked) };
    let decided = model.decide(&asked, true);
    let row = format!("check {body}");
    check_http(&edges.post("/v1/check", &body).await.json(), &decided, &row);
    row
}

async fn resp_check(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 3);
    let words =
        asked.iter().map(|(key, value, cost)| format!("{} {value} {cost}", node(key)[0].name));
    let verb = random.pick(&["TG.CHECK", "TG.CHECK", "TG.PEEK"]);
    let line = format!("{verb} {}", words.collect::<Vec<_>>().join(" "));
    let decided = model.decide(&asked, verb == "TG.CHECK");
    check_resp(edges.resp(&line).await.list(), &decided, &line);
    line
}

async fn resp_descriptor(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 1);
    let (key, value, cost) = &asked[0];
    let line = format!("TG.DESCRIPTOR shop {cost} {key} {value}");
    let decided = model.decide(&asked, true);
    check_resp(edges.resp(&line).await.list(), &decided, &line);
    line
}

fn envoy_request(asked: &Asks) -> RateLimitRequest {
    let each = asked.iter().map(|(key, value, cost)| Descriptor {
        hits_addend: Some(*cost),
        ..descriptor(&[(*key, value)])
    });
    RateLimitRequest { domain: "shop".into(), descriptors: each.collect(), hits_addend: 0 }
}

async fn envoy(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 3);
    let row = format!("gRPC {asked:?}");
    let decided = model.decide(&asked, true);
    let told = edges.envoy(&envoy_request(&asked)).await;
    let statuses = told.statuses.iter().map(|status| {
        let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
        (status.code == 2, limit, status.limit_remaining)
    });
    check_envoy((told.overall_code == 1, statuses.collect()), &decided, &row);
    row
}

async fn envoy_json(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let asked = asks(random, &KEYS, 3);
    let each = asked.iter().map(|(key, value, cost)| {
        json!({"entries": [{"key": key, "value": value}], "hitsAddend": cost.to_string()})
    });
    let body = json!({"domain": "shop", "descriptors": each.collect::<Vec<_>>()});
    let row = format!("/json {body}");
    let decided = model.decide(&asked, true);
    let told = edges.post("/json", &body).await.json();
    let number = |value: &Value| value.as_u64().unwrap_or(0) as u32;
    let statuses = told["statuses"].as_array().unwrap().iter().map(|status| {
        let limit = status.get("currentLimit").map(|limit| number(&limit["requestsPerUnit"]));
        (status["code"] == "OVER_LIMIT", limit, number(&status["limitRemaining"]))
    });
    check_envoy((told["overallCode"] == "OK", statuses.collect()), &decided, &row);
    row
}

async fn forward_auth(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let (user, bucket) = (random.pick(&["a", "b"]), random.pick(&["a", "b"]));
    let row = format!("forward-auth of {user} and {bucket}");
    let decided = model.decide(&[("user", user.into(), 1), ("bucket", bucket.into(), 1)], true);
    let headers = format!("X-User: {user}\r\nX-Bucket: {bucket}\r\n");
    let told = edges.get_with("/auth", &headers).await;
    assert_eq!(told.status, if decided.allowed { 200 } else { 429 }, "{row}");
    let bound = decided.bound().unwrap();
    let seconds = |millis: u64| millis.div_ceil(1000).to_string();
    let retry = bound.retry.filter(|_| !decided.allowed);
    for (name, expected) in [
        ("RateLimit-Limit", Some(bound.limit().unwrap().to_string())),
        ("RateLimit-Remaining", Some(bound.left.to_string())),
        ("RateLimit-Reset", Some(seconds(bound.reset))),
        ("Retry-After", retry.map(seconds)),
    ] {
        assert_eq!(told.header(name), expected.as_deref(), "{row}: {name}");
    }
    row
}

async fn throttle(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let (key, cost) = (random.pick(&["x", "y"]), random.pick(&[1, 2, 4]));
    // 2 a second, and 4 beside the first at once.
    let line = format!("CL.THROTTLE {key} 4 2 1 {cost}");
    let (passes, left) = model.throttle(key, cost);
    let told = edges.resp(&line).await;
    let expected = (i64::from(!passes), 5, left as i64);
    let list = told.list();
    assert_eq!((list[0].int(), list[1].int(), list[2].int()), expected, "{line}");
    line
}

async fn give_back(edges: &mut Edges, model: &mut Model, random: &mut Random) -> String {
    let from = ["user", "late", "shadow", "one", "bucket"];
    let (key, value, cost) = asks(random, &from, 1).remove(0);
    let name = policy(key, random);
    let row = format!("refund {cost} of {name} {value}");
    let given = model.refund(key, &value, cost);
    match random.below(3) {
        0 => {
            let body = json!({"policy": name, "key": value, "cost": cost});
            let told = edges.post("/v1/refund", &body).await.json();
            assert_eq!(told, json!({"refunded": given}), "{row}");
        }
        1 => {
            let told = edges.resp(&format!("TG.REFUND {name} {value} {cost}")).await;
            assert_eq!(told, Resp::Int(given as i64), "{row}");
        }
        _ => {
            let mut request = envoy_request(&vec![(key, value, cost)]);
            request.descriptors[0].is_negative_hits = true;
            assert_eq!(edges.envoy(&request).await.overall_code, 1, "{row}");
        }
    }
    row
}

async fn report(edges: &mut Edges, random: &mut Random) -> String {
    let outcome = random.pick(&["success", "failure", "overload"]);
    if random.below(2) == 0 {
        let body = json!({"policy": "upstream", "outcome": outcome, "latency_ms": 5});
        assert_eq!(edges.post("/v1/report", &body).await.status, 200, "{outcome}");
    } else {
        let told = edges.resp(&format!("TG.REPORT upstream {outcome} 5")).await;
        assert_eq!(told, Resp::Text("OK".into()), "{outcome}");
    }
    format!("report {outcome}")
}
