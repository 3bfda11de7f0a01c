//! `TG.*`: the policies of the configuration.

use super::{
    command::{count, is},
    parse::Args,
    session::{Batch, Session},
    throttle::milliseconds,
};
use crate::{
    engine::{Ask, DEFAULT_LIFE, Hits, MAX_ASKS, MAX_LIFE, Request, Subject, Ticket, Verb},
    plan::{Entry, MAX_ENTRIES, Plan},
};
use std::time::Duration;

/// Why arguments are invalid.
pub(super) type Wrong = String;

/// Policies with their keys, as given.
pub(super) struct Given<'a> {
    /// The values of all keys, one after the other.
    values: Vec<&'a [u8]>,
    /// Policy, range of its values, cost.
    items: Vec<(&'a str, (usize, usize), u64)>,
    life: Option<Duration>,
}

/// The optional last words of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    Nothing,
    /// `LIFE ms`
    Life,
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(80).collect()
}

pub(super) fn name(text: &[u8]) -> Result<&str, Wrong> {
    std::str::from_utf8(text)
        .map_err(|_| format!("\"{}\" is not UTF-8; send names in UTF-8", shown(text)))
}

fn cost(text: &[u8]) -> Result<u64, Wrong> {
    count(text).ok_or_else(|| {
        format!("\"{}\" is not a cost; give a whole number of at least 0", shown(text))
    })
}

/// Reads `policy key [cost]`, or `policy KEYS n value.. [COST cost]`, once or several times. Where
/// several follow, each has its cost; `unsaid` is that of a policy without one.
pub(super) fn read<'a>(args: &Args<'a>, tail: Tail, unsaid: u64) -> Result<Given<'a>, Wrong> {
    let mut given = Given { values: Vec::new(), items: Vec::new(), life: None };
    let mut at = 1;
    while let Some(policy) = args.get(at) {
        if tail == Tail::Life && is(policy, "LIFE") && at > 1 {
            given.life = Some(life(args, at)?);
            return Ok(given);
        }
        let (policy, start) = (name(policy)?, given.values.len());
        let Some(key) = args.get(at + 1) else {
            return Err(format!("policy \"{policy}\" is not followed by a key; add one"));
        };
        let hits = if is(key, "KEYS") {
            at = list(args, at + 2, &mut given.values)?;
            match args.get(at) {
                Some(word) if is(word, "COST") => {
                    at += 2;
                    cost(args.at(at - 1))?
                }
                _ => unsaid,
            }
        } else {
            given.values.push(key);
            at += 2;
            match args.get(at) {
                None => unsaid,
                Some(word) if tail == Tail::Life && is(word, "LIFE") => unsaid,
                Some(word) => {
                    at += 1;
                    cost(word)?
                }
            }
        };
        if given.items.len() == MAX_ASKS {
            return Err(format!("more than {MAX_ASKS} policies in one request; split it"));
        }
        given.items.push((policy, (start, given.values.len()), hits));
    }
    Ok(given)
}

/// Reads `n value..` and returns where it ends.
pub(super) fn list<'a>(
    args: &Args<'a>,
    at: usize,
    values: &mut Vec<&'a [u8]>,
) -> Result<usize, Wrong> {
    let wanted = args.at(at);
    let count = count(wanted).and_then(|count| usize::try_from(count).ok());
    let Some(count) = count.filter(|count| *count <= MAX_ENTRIES) else {
        return Err(format!(
            "\"{}\" is not a number of keys; write KEYS, the number of keys (at most \
             {MAX_ENTRIES}) and the keys; a key named KEYS is `KEYS 1 KEYS`",
            shown(wanted)
        ));
    };
    let start = at + 1;
    if args.len() < start + count {
        return Err(format!("fewer keys follow than KEYS {count} announces"));
    }
    values.extend(args.iter_from(start).take(count));
    Ok(start + count)
}

fn life(args: &Args<'_>, at: usize) -> Result<Duration, Wrong> {
    let text = args.at(at + 1);
    let life = count(text).map(Duration::from_millis);
    match life.filter(|life| !life.is_zero() && *life <= MAX_LIFE) {
        Some(life) if args.len() == at + 2 => Ok(life),
        Some(_) => Err("LIFE and its milliseconds must come last".into()),
        None => Err(format!(
            "\"{}\" is not a lifetime; give milliseconds from 1 to {}",
            shown(text),
            MAX_LIFE.as_millis()
        )),
    }
}

impl<'a> Given<'a> {
    /// Returns one policy with its values.
    pub(super) fn one(policy: &'a str, values: Vec<&'a [u8]>) -> Self {
        Self { items: vec![(policy, (0, values.len()), 1)], values, life: None }
    }

    pub(super) fn asks<'g>(&'g self, hits: fn(u64) -> Hits) -> Vec<Ask<'g>> {
        let ask = |(policy, (start, end), cost): &(&'a str, (usize, usize), u64)| Ask {
            subject: Subject::Named { policy, keys: &self.values[*start..*end] },
            hits: hits(*cost),
            limit: None,
        };
        self.items.iter().map(ask).collect()
    }
}

impl Session {
    /// `TG.CHECK`, and `TG.PEEK`, which asks for nothing unless a cost is given.
    pub(super) async fn check(&mut self, batch: &Batch<'_>, args: &Args<'_>, verb: Verb) {
        let unsaid = u64::from(verb != Verb::Peek);
        // The usual form needs no memory.
        if args.len() <= 4 && !is(args.at(2), "KEYS") {
            let hits = args.get(3).map_or(Ok(unsaid), cost);
            let (policy, hits) = match (name(args.at(1)), hits) {
                (Ok(policy), Ok(hits)) => (policy, hits),
                (Err(wrong), _) | (_, Err(wrong)) => {
                    return self.wrong(format_args!("ERR {wrong}"));
                }
            };
            let subject = Subject::Named { policy, keys: &[args.at(2)] };
            let asks = [Ask { subject, hits: Hits::Take(hits), limit: None }];
            return self.decide(batch, &Request { domain: "", asks: &asks, verb }).await;
        }
        match read(args, Tail::Nothing, unsaid) {
            Ok(given) => {
                let asks = given.asks(Hits::Take);
                self.decide(batch, &Request { domain: "", asks: &asks, verb }).await;
            }
            Err(wrong) => self.wrong(format_args!("ERR {wrong}")),
        }
    }

    /// `TG.DESCRIPTOR domain hits key value [key value ...]`
    pub(super) async fn descriptor(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let pairs = args.len() - 3;
        if !pairs.is_multiple_of(2) || pairs / 2 > MAX_ENTRIES {
            return self.wrong(format_args!(
                "ERR a descriptor needs pairs of key and value, at most {MAX_ENTRIES}; {pairs} \
                 words were given"
            ));
        }
        let mut entries = [Entry::default(); MAX_ENTRIES];
        for (index, entry) in entries[..pairs / 2].iter_mut().enumerate() {
            let at = 3 + 2 * index;
            match (name(args.at(at)), name(args.at(at + 1))) {
                (Ok(key), Ok(value)) => *entry = Entry::new(key, value),
                (Err(wrong), _) | (_, Err(wrong)) => {
                    return self.wrong(format_args!("ERR {wrong}"));
                }
            }
        }
        let (domain, hits) = match (name(args.at(1)), cost(args.at(2))) {
            (Ok(domain), Ok(hits)) => (domain, hits),
            (Err(wrong), _) | (_, Err(wrong)) => return self.wrong(format_args!("ERR {wrong}")),
        };
        let subject = Subject::Entries(&entries[..pairs / 2]);
        let asks = [Ask { subject, hits: Hits::Take(hits), limit: None }];
        self.decide(batch, &Request { domain, asks: &asks, verb: Verb::Check }).await;
    }

    /// `TG.RESERVE policy key [cost] [LIFE ms]`
    pub(super) async fn reserve(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        match read(args, Tail::Life, 1) {
            Ok(given) => {
                let (asks, life) = (given.asks(Hits::Take), given.life.unwrap_or(DEFAULT_LIFE));
                let verb = Verb::Reserve(life);
                self.decide(batch, &Request { domain: "", asks: &asks, verb }).await;
            }
            Err(wrong) => self.wrong(format_args!("ERR {wrong}")),
        }
    }

    /// `TG.REFUND policy key [cost]`
    pub(super) async fn refund(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let given = match read(args, Tail::Nothing, 1) {
            Ok(given) => given,
            Err(wrong) => return self.wrong(format_args!("ERR {wrong}")),
        };
        let asks = given.asks(Hits::Give);
        let request = Request { domain: "", asks: &asks, verb: Verb::Check };
        match batch.engine.refund(batch.plan, batch.now, &request, &mut self.answer).await {
            Ok(given) => self.replies.count(given),
            Err(error) => self.wrong(format_args!("ERR {error}")),
        }
    }

    /// `TG.RESET policy key`
    pub(super) async fn reset(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let given = match read(args, Tail::Nothing, 1) {
            Ok(given) => given,
            Err(wrong) => return self.wrong(format_args!("ERR {wrong}")),
        };
        let asks = given.asks(Hits::Take);
        let request = Request { domain: "", asks: &asks, verb: Verb::Check };
        match batch.engine.reset(batch.plan, batch.now, &request, &mut self.answer).await {
            Ok(()) => self.replies.word("OK"),
            Err(error) => self.wrong(format_args!("ERR {error}")),
        }
    }

    /// `TG.SETTLE id actual [actual ...]`, and `TG.CANCEL id`, for which it is zero.
    pub(super) async fn settle(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        let ticket =
            name(args.at(1)).and_then(|id| id.parse::<Ticket>().map_err(|error| error.to_string()));
        let actual: Result<Vec<u64>, Wrong> = match args.len() {
            2 => Ok(vec![0]),
            _ => args.iter_from(2).map(cost).collect(),
        };
        let (ticket, actual) = match (ticket, actual) {
            (Ok(ticket), Ok(actual)) => (ticket, actual),
            (Err(wrong), _) | (_, Err(wrong)) => return self.wrong(format_args!("ERR {wrong}")),
        };
        match batch.engine.settle(&ticket, &actual).await {
            Ok(settled) => self.replies.yes(settled),
            Err(error) => self.wrong(format_args!("ERR {error}")),
        }
    }

    async fn decide(&mut self, batch: &Batch<'_>, request: &Request<'_>) {
        let Batch { engine, plan, now } = *batch;
        match engine.decide(plan, now, request, &mut self.answer).await {
            Ok(()) => {
                self.tally.note(&self.answer, plan, now);
                self.tell(batch, matches!(request.verb, Verb::Reserve(_)));
            }
            Err(error) => self.wrong(format_args!("ERR {error}")),
        }
    }

    /// Writes the answer: an array in the second version, a map in the third.
    fn tell(&mut self, batch: &Batch<'_>, is_reserved: bool) {
        let Self { answer, replies, .. } = self;
        let is_map = replies.version() == super::reply::Version::Three;
        let fields = if is_reserved { 7 } else { 6 };
        if is_map {
            replies.map(fields)
        } else {
            replies.array(fields)
        }
        let field = |name: &str, replies: &mut super::reply::Replies| {
            if is_map {
                replies.bulk(name);
            }
        };
        let is_allowed = answer.is_allowed();
        let report = answer.report(batch.plan, batch.now);
        field("allowed", replies);
        replies.yes(is_allowed);
        if is_reserved {
            field("id", replies);
            match answer.ticket() {
                Some(ticket) => replies.bulk(ticket.to_string()),
                None => replies.null(),
            }
        }
        for (name, number) in [
            ("limit", report.map(|report| report.limit)),
            ("remaining", report.map(|report| report.remaining)),
        ] {
            field(name, replies);
            match number {
                Some(number) => replies.count(number),
                None => replies.null(),
            }
        }
        field("retry_after_ms", replies);
        replies.int(match report.and_then(|report| report.retry_after) {
            _ if is_allowed => 0,
            Some(wait) => milliseconds(wait).max(1),
            None => -1,
        });
        field("reset_after_ms", replies);
        replies.int(report.map_or(0, |report| milliseconds(report.reset_after)));
        field("refused_by", replies);
        let refusing = answer.bound_part().filter(|_| !is_allowed);
        match refusing.map(|part| batch.plan.rule(part.rule).label()) {
            Some(policy) => replies.bulk(policy),
            None => replies.null(),
        }
    }

    /// `TG.POLICIES`
    pub(super) fn policies(&mut self, plan: &Plan) {
        let replies = &mut self.replies;
        replies.array(plan.rules_in_use().count());
        for rule in plan.rules_in_use() {
            replies.map(7);
            replies.bulk("policy");
            replies.bulk(rule.label());
            replies.bulk("id");
            replies.bulk(rule.id());
            for (name, number) in [("limit", rule.limit_now()), ("count", rule.kind().count())] {
                replies.bulk(name);
                match number {
                    Some(number) => replies.count(number),
                    None => replies.null(),
                }
            }
            replies.bulk("period_ms");
            match rule.kind().per() {
                Some(per) => replies.int(milliseconds(per)),
                None => replies.null(),
            }
            replies.bulk("lease_ms");
            match rule.kind().slots() {
                Some(slots) => replies.int(milliseconds(slots.lease)),
                None => replies.null(),
            }
            replies.bulk("keys");
            replies.array(rule.free_keys().len());
            for key in rule.free_keys() {
                replies.bulk(key.as_bytes());
            }
        }
    }
}
