//! `TG.ENTER`, `TG.RENEW` and `TG.LEAVE`: slots of `concurrency` rules.

use super::{
    command::{Command, is},
    parse::Args,
    policy::{Given, Tail, Wrong, list, name, read},
    reply::{Replies, Version},
    session::{Batch, Session},
    throttle::milliseconds,
};
use crate::engine::{Entry, Hits, LeaseError, LeaseId, Request, Verb};

impl Session {
    /// `TG.ENTER policy key [cost]`
    pub(super) async fn enter(&mut self, batch: &Batch<'_>, args: &Args<'_>) {
        match read(args, Tail::Nothing, 1) {
            Ok(given) => {
                if self.run_slots(batch, &given, Verb::Enter).await {
                    self.tally.note(&self.answer, batch.plan, batch.now);
                    self.tell_entry(batch);
                }
            }
            Err(wrong) => self.wrong(format_args!("ERR {wrong}")),
        }
    }

    /// `TG.RENEW policy key id`, and `TG.LEAVE`, which takes the same.
    pub(super) async fn hold(&mut self, batch: &Batch<'_>, args: &Args<'_>, command: Command) {
        let (given, id) = match lease(args) {
            Ok(lease) => lease,
            Err(wrong) => return self.wrong(format_args!("ERR {wrong}")),
        };
        let verb = if command == Command::Leave { Verb::Leave(id) } else { Verb::Renew(id) };
        if self.run_slots(batch, &given, verb).await {
            self.replies.yes(self.answer.is_allowed());
        }
    }

    /// Runs a verb. Returns false if it is invalid; it has then replied with the error.
    async fn run_slots(&mut self, batch: &Batch<'_>, given: &Given<'_>, verb: Verb) -> bool {
        let asks = given.asks(Hits::Take);
        let request = Request { domain: "", asks: &asks, verb };
        let Batch { engine, plan, now } = *batch;
        let decided = engine.decide(plan, now, &request, &mut self.answer).await;
        if let Err(error) = &decided {
            self.wrong(format_args!("ERR {error}"));
        }
        decided.is_ok()
    }

    /// Writes the answer to `TG.ENTER`: an array in the second version, a map in the third.
    fn tell_entry(&mut self, batch: &Batch<'_>) {
        let Self { answer, replies, .. } = self;
        let (slots, is_allowed) = (answer.slots(batch.plan), answer.is_allowed());
        let entry = answer.entry().copied().unwrap_or_default();
        let Entry { id, in_flight, retry_after, reason } = entry;
        let is_map = replies.version() == Version::Three;
        if is_map {
            replies.map(7);
        } else {
            replies.array(7);
        }
        let field = |name: &str, replies: &mut Replies| {
            if is_map {
                replies.bulk(name);
            }
        };
        field("allowed", replies);
        replies.yes(is_allowed);
        field("id", replies);
        match id {
            Some(id) => replies.bulk(id.to_string()),
            None => replies.null(),
        }
        for (name, number) in [("limit", slots.map(|slots| slots.limit)), ("in_flight", in_flight)]
        {
            field(name, replies);
            match number {
                Some(number) => replies.count(number),
                None => replies.null(),
            }
        }
        field("lease_ms", replies);
        replies.int(slots.map_or(0, |slots| milliseconds(slots.lease)));
        field("retry_after_ms", replies);
        replies.int(match retry_after {
            _ if is_allowed => 0,
            Some(wait) => milliseconds(wait).max(1),
            None => -1,
        });
        field("reason", replies);
        replies.bulk(reason);
    }
}

/// Reads `policy key id` or `policy KEYS n value.. id`.
fn lease<'a>(args: &Args<'a>) -> Result<(Given<'a>, LeaseId), Wrong> {
    let (policy, mut values) = (name(args.at(1))?, Vec::new());
    let at = if is(args.at(2), "KEYS") {
        list(args, 3, &mut values)?
    } else {
        values.push(args.at(2));
        3
    };
    if args.len() != at + 1 {
        return Err("give one policy, its key and the id that TG.ENTER returned".into());
    }
    let id = name(args.at(at))?.parse().map_err(|error: LeaseError| error.to_string())?;
    Ok((Given::one(policy, values), id))
}
