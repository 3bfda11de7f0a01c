//! `tollgate check`: judges configuration files, and says which rule a request would meet.

use crate::{complain, counted, plan::InputError};
use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};
use tollgate_server::{
    config::{Config, Endpoint},
    plan::{Entry, Kind, Plan, Rule},
};

const EXAMPLES: &str = "\
Examples:
  tollgate check limits.yaml                             find errors and risky settings
  tollgate check limits.yaml --domain shop --entry path=/api/cart --entry user=alice
                                                         show which limits apply, and why
  tollgate check --list /etc/tollgate                    list all limits
  tollgate check --schema > tollgate.schema.json         write the JSON schema for your editor";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Configuration files or directories
    #[arg(value_name = "PATH", required_unless_present = "schema")]
    paths: Vec<PathBuf>,

    /// The domain of the request to explain; required if the files have several domains
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// An entry of the request's descriptor; repeat it for each entry, in order
    #[arg(long = "entry", value_name = "KEY=VALUE")]
    entries: Vec<String>,

    /// List all limits
    #[arg(long)]
    list: bool,

    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,

    /// Print the JSON schema of the configuration format
    #[arg(long)]
    schema: bool,
}

/// Judges, and prints what there is to say. Exits with 1 if the configuration is wrong.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, InputError> {
    let mut out = String::new();
    if args.schema {
        let schema = tollgate_server::config::schema();
        let _ = writeln!(out, "{schema:#}");
        return print(&out, ExitCode::SUCCESS);
    }
    let compiled = match Config::read(&args.paths) {
        Ok(config) => Plan::compile(config, None).map_err(|error| error.to_string()),
        Err(errors) => Err(errors.to_string()),
    };
    let plan = match compiled {
        Ok(plan) => plan,
        Err(error) => {
            complain(format_args!("{error}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    let lints = tollgate_server::config::lint(plan.config());
    for lint in &lints {
        let _ = writeln!(out, "{}: warning: {} [{}]", lint.place, lint.text, lint.name);
    }
    let server = &plan.config().server;
    if server.negative_hits.is_none() && server.grpc != Some(Endpoint::Off) {
        out += "note: gRPC and /json reject `is_negative_hits`; to accept it, set `negative_hits: \
                true` in the `server` section\n";
    }
    let _ = writeln!(out, "ok: {}, {}", size(&plan), counted(lints.len() as u64, "warning"));
    if args.list {
        plan.rules().iter().for_each(|rule| list(rule, &mut out));
    }
    if !args.entries.is_empty() {
        explain(args, &plan, &mut out)?;
    }
    let is_bad = args.strict && !lints.is_empty();
    print(&out, if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns how much a configuration holds: `5 limits in 1 domain`.
pub(crate) fn size(plan: &Plan) -> String {
    let (rules, domains) = (plan.rules().len(), plan.config().domains.len());
    format!("{} in {}", counted(rules as u64, "limit"), counted(domains as u64, "domain"))
}

fn print(text: &str, code: ExitCode) -> Result<ExitCode, InputError> {
    // The reader may have seen enough, as in `| head`.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(code)
}

fn list(rule: &Rule, out: &mut String) {
    let _ = writeln!(out, "  {}", said(rule));
}

/// Returns a rule in one line.
fn said(rule: &Rule) -> String {
    let limit = match rule.kind() {
        Kind::Counted { policy, .. } => format!("{} by {}", policy.quota(), policy.algorithm()),
        Kind::Unlimited => "unlimited".into(),
        Kind::Closed { .. } => "nothing passes".into(),
        Kind::PerCall => "the limit comes with each call".into(),
        Kind::Concurrency(slots) => slots.to_string(),
    };
    let mut text = match rule.name() {
        Some(name) => format!("{} ({name}): {limit}", rule.id()),
        None => format!("{}: {limit}", rule.id()),
    };
    for (is, word) in [(rule.is_shadow(), "shadow"), (rule.is_quota_mode(), "quota mode")] {
        if is {
            let _ = write!(text, ", {word}");
        }
    }
    if rule.enforce() < 100 {
        let _ = write!(text, ", enforced for {} % of keys", rule.enforce());
    }
    let _ = write!(text, "  [{}]", rule.place());
    text
}

fn explain(args: &CheckArgs, plan: &Plan, out: &mut String) -> Result<(), InputError> {
    let domains = &plan.config().domains;
    let name = match (&args.domain, domains.as_slice()) {
        (Some(name), _) => name.as_str(),
        (None, [only]) => only.name.as_str(),
        (None, _) => {
            return Err(InputError(
                "the files have several domains; name the request's domain with --domain".into(),
            ));
        }
    };
    let Some(domain) = plan.domain(name) else {
        let _ = writeln!(
            out,
            "\nthere is no domain \"{name}\": the request passes and nothing is counted"
        );
        return Ok(());
    };
    let mut entries = Vec::new();
    for entry in &args.entries {
        let (key, value) = entry.split_once('=').ok_or_else(|| {
            InputError(format!("--entry \"{entry}\" has no '='; write it as key=value"))
        })?;
        entries.push(Entry::new(key, value));
    }
    let _ = writeln!(out, "\nin domain {name}:");
    for step in domain.explain(&entries) {
        let _ = writeln!(out, "  {step}");
    }
    match domain.find(&entries) {
        None => out.push_str("no limit applies: the request passes and nothing is counted\n"),
        Some(found) => {
            for index in found.rules {
                let rule = plan.rule(*index);
                let _ = writeln!(out, "limited by {}", said(rule));
                for parent in rule.parents() {
                    let _ = writeln!(out, "  and by its parent {}", said(plan.rule(parent.rule)));
                }
            }
            if found.rules.is_empty() {
                out.push_str("no rate limit applies: a check passes and nothing is counted\n");
            }
            if let Some(index) = found.concurrency {
                let _ = writeln!(out, "an enter is limited by {}", said(plan.rule(index)));
            }
        }
    }
    Ok(())
}
