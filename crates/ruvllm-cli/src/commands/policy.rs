//! `ruvllm policy`: how a server computes, as it learned it and as its operator says.

use std::time::Duration;

use clap::{Args, Subcommand};
use ruvllm_api::record::policy_json;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table, timestamp};
use ruvllm_cli_tools::values::age;
use ruvllm_cli_tools::witness_store::StoreArgs;
use ruvllm_engine::KvPolicy;
use ruvllm_learning::Consolidate;
use ruvllm_learning::autotune::{Batch, DraftLimits};
use ruvllm_router::Weighing;
use ruvllm_sona::policy::{NewPolicy, Policy, PolicyKind, PolicyLimits, PolicyStore, StoredPolicies};
use ruvllm_sona::{SonaError, now_ms};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm serve --autotune --witness ./log                a server that learns how to compute
  ruvllm policy list ./log
  ruvllm policy set ./log speculation '{\"draft_rows\":24,\"draft_tokens_max\":24}' --for 30d
  ruvllm policy set ./log router '{\"within\":0.1}' --tenant acme
  ruvllm policy retire ./log 7

They lie in the folder of 'ruvllm serve --witness'; while a server has it, ask the server (/v1/policies). What
an operator sets comes before what was learned, and a server begins with it at its next start.";

/// `ruvllm policy`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct PolicyCommand {
    #[command(subcommand)]
    command: PolicySubcommand,
}

#[derive(Debug, Subcommand)]
enum PolicySubcommand {
    /// List policies: what was learned, and what was set
    List(ListArgs),
    /// Set a policy, which comes before what was learned
    Set(SetArgs),
    /// Take a policy back: what it stood in the place of counts again
    Retire(RetireArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Of this kind only: kv, router, ewc, pattern, speculation or batch
    #[arg(long, value_name = "KIND")]
    kind: Option<PolicyKind>,
}

#[derive(Args, Debug)]
struct SetArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// What it is about: kv, speculation, batch, router or ewc
    #[arg(value_name = "KIND")]
    kind: PolicyKind,
    /// What is to be done, as JSON: "tiered", {"draft_rows": 24, "draft_tokens_max": 24}, {"prefill_tokens": 64}, or
    /// {"within": 0.1}
    #[arg(value_name = "JSON", value_parser = value)]
    value: Value,
    /// The workload it is for, as 'list' names it [default: any]
    #[arg(long, value_name = "WORKLOAD", default_value = "", hide_default_value = true)]
    context: String,
    /// Whose requests it is for [default: everybody's]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// How long it counts: 30d, 12h [default: for ever]
    #[arg(long = "for", value_name = "AGE", value_parser = age)]
    for_: Option<Duration>,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Args, Debug)]
struct RetireArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The policy's number
    #[arg(value_name = "NUMBER")]
    version: u64,
}

fn value(text: &str) -> std::result::Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("'{text}' is no JSON: {error}"))
}

fn failed(error: SonaError) -> Error {
    Error::failure(format_args!("the policies: {error}"))
}

fn open(store: &StoreArgs) -> Result<StoredPolicies> {
    let store = store.open(["there are no policies", "keeps some"])?;
    StoredPolicies::open(store, PolicyLimits::default()).map_err(failed)
}

impl PolicyCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// The store cannot be read or written, or is in use.
    pub fn run(&self) -> Result<()> {
        match &self.command {
            PolicySubcommand::List(args) => args.run(),
            PolicySubcommand::Set(args) => args.run(),
            PolicySubcommand::Retire(args) => args.run(),
        }
    }
}

impl ListArgs {
    fn run(&self) -> Result<()> {
        let mut policies = open(&self.store)?.list();
        policies.retain(|policy| self.kind.is_none_or(|kind| policy.kind == kind));
        if self.store.output.json {
            return print_json(&json!({ "policies": policies.iter().map(policy_json).collect::<Vec<_>>() }));
        }
        if policies.is_empty() {
            return print_line("there are no such policies");
        }
        let head = ["NUMBER", "KIND", "FOR", "WORKLOAD", "VALUE", "SOURCE", "SURE", "UNTIL (UTC)", "REASON"];
        let rows: Vec<Vec<String>> =
            std::iter::once(head.map(str::to_owned).to_vec()).chain(policies.iter().map(row)).collect();
        print(&table(&rows, &[0, 6]))
    }
}

fn row(policy: &Policy) -> Vec<String> {
    let until = match policy.expires_ms {
        Some(at) if !policy.holds(now_ms()) => format!("expired {}", timestamp(at / 1000)),
        Some(at) => timestamp(at / 1000),
        None => "for ever".to_owned(),
    };
    vec![
        policy.version.to_string(),
        policy.kind.as_str().to_owned(),
        policy.tenant.clone().unwrap_or_else(|| "all".to_owned()),
        if policy.context.is_empty() { "any".to_owned() } else { policy.context.clone() },
        policy.value.to_string(),
        policy.source.as_str().to_owned(),
        format!("{:.2}", policy.confidence),
        until,
        policy.reason.clone(),
    ]
}

impl SetArgs {
    fn run(&self) -> Result<()> {
        let wrong = match self.kind {
            PolicyKind::Speculation => serde_json::from_value::<DraftLimits>(self.value.clone()).is_err().then_some(
                "a policy of kind speculation is {\"draft_rows\": N, \"draft_tokens_max\": N}, 0 for no guesses",
            ),
            PolicyKind::Kv => self
                .value
                .as_str()
                .is_none_or(|name| name.parse::<KvPolicy>().is_err())
                .then_some("a policy of kind kv is a name in quotes: \"f16\", \"q8\", \"tiered\""),
            PolicyKind::Router => serde_json::from_value::<Weighing>(self.value.clone())
                .ok()
                .is_none_or(|weighing| !weighing.is_sound())
                .then_some("a policy of kind router is {\"within\": 0.05} or {\"price\": 0.01}, 0 or more"),
            PolicyKind::Batch => serde_json::from_value::<Batch>(self.value.clone())
                .is_err()
                .then_some("a policy of kind batch is {\"prefill_tokens\": 64}, at least 1"),
            PolicyKind::Ewc => serde_json::from_value::<Consolidate>(self.value.clone())
                .ok()
                .is_none_or(|how| !how.is_sound())
                .then_some("a policy of kind ewc is {\"strength\": 1, \"newest\": 0.5, \"share\": 0.5, \"keep\": 1} or some of that"),
            _ => Some("a server reads policies of the kinds kv, speculation, batch, router and ewc; set one of those"),
        };
        // What nobody would read is not kept.
        let is_of_tenants = matches!(self.kind, PolicyKind::Router | PolicyKind::Ewc);
        let is_of_workloads = matches!(self.kind, PolicyKind::Speculation | PolicyKind::Kv);
        let unread = match (&self.tenant, self.context.as_str()) {
            (Some(_), _) if !is_of_tenants => {
                Some("steps are shared by all tenants: only policies of the kinds router and ewc have --tenant")
            }
            (_, context) if !context.is_empty() && !is_of_workloads => {
                Some("only policies of the kinds speculation and kv have a --context")
            }
            _ => None,
        };
        if let Some(line) = wrong.or(unread) {
            return Err(Error::usage(line));
        }
        let names = self.value.as_object().into_iter().flat_map(|fields| fields.keys());
        names.filter_map(|name| ruvllm_cli_tools::renamed::notice(name)).for_each(|line| eprintln!("{line}"));
        let policy = NewPolicy::new(self.kind, &self.context, &self.value).map_err(failed)?;
        let mut policy = policy.by_operator().because(&self.reason);
        policy.tenant.clone_from(&self.tenant);
        policy.expires_ms = self.for_.map(|age| now_ms().saturating_add(age.as_millis() as u64));
        let version = open(&self.store)?.put(policy, now_ms()).map_err(failed)?;
        match self.store.output.json {
            true => print_json(&json!({ "version": version })),
            false => print_line(&format!("policy {version} is set")),
        }
    }
}

impl RetireArgs {
    fn run(&self) -> Result<()> {
        if !open(&self.store)?.retire(self.version).map_err(failed)? {
            let line = format!("there is no policy {}; 'ruvllm policy list' shows their numbers", self.version);
            return Err(Error::failure(line));
        }
        match self.store.output.json {
            true => print_json(&json!({ "retired": self.version })),
            false => print_line(&format!("policy {} is taken back", self.version)),
        }
    }
}
