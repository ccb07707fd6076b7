//! `ruvllm session`: the conversations that a server knows.

use std::time::Duration;

use clap::{Args, Subcommand};
use ruvllm_api::session::{SESSION_DIM, session_json};
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table, timestamp};
use ruvllm_cli_tools::values::age;
use ruvllm_cli_tools::witness_store::StoreArgs;
use ruvllm_router::HashedWords;
use ruvllm_sona::session::SessionIndex;
use ruvllm_sona::{SonaError, now_ms};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm session list ./log
  ruvllm session list ./log --like \"trip to Oslo\" --user ada
  ruvllm session rm ./log \"trip to Oslo\"
  ruvllm session expire ./log --older-than 30d
  ruvllm session forget ./log --tenant ann

A request that names a \"session\" is a turn of it. They lie in the folder of 'ruvllm serve --witness'; while
a server has it, ask the server (/v1/sessions).";

/// `ruvllm session`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct SessionCommand {
    #[command(subcommand)]
    command: SessionSubcommand,
}

#[derive(Debug, Subcommand)]
enum SessionSubcommand {
    /// List sessions, the latest first, or those nearest to a text
    List(ListArgs),
    /// Show a session
    Show(OneArgs),
    /// Forget a session
    Rm(OneArgs),
    /// Forget sessions that were not used for long
    Expire(ExpireArgs),
    /// Forget all sessions of a tenant, on the disk as well
    Forget(ForgetArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Of this tenant only [default: of all]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Of this user only
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Nearest first to what this text is about, by its words
    #[arg(long, value_name = "TEXT")]
    like: Option<String>,
    /// The most sessions
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

#[derive(Args, Debug)]
struct OneArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The session's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Whose it is
    #[arg(long, value_name = "NAME", default_value = ruvllm_witness::NOBODY)]
    tenant: String,
}

#[derive(Args, Debug)]
struct ExpireArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Not used for so long: 30d, 12h
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Duration,
}

#[derive(Args, Debug)]
struct ForgetArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Whose
    #[arg(long, value_name = "NAME")]
    tenant: String,
}

fn failed(error: SonaError) -> Error {
    Error::failure(format_args!("the sessions: {error}"))
}

fn open(store: &StoreArgs) -> Result<SessionIndex> {
    let store = store.open(["there are no sessions", "keeps them"])?;
    SessionIndex::open(store, SESSION_DIM).map_err(failed)
}

fn tell_removed(output: &OutputArgs, n: usize) -> Result<()> {
    match output.json {
        true => print_json(&json!({ "deleted": n })),
        false if n == 1 => print_line("1 session was forgotten"),
        false => print_line(&format!("{n} sessions were forgotten")),
    }
}

impl SessionCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// The store cannot be read or is in use, or there is no such session.
    pub fn run(&self) -> Result<()> {
        match &self.command {
            SessionSubcommand::List(args) => args.run(),
            SessionSubcommand::Show(args) => args.show(),
            SessionSubcommand::Rm(args) => args.remove(),
            SessionSubcommand::Expire(args) => {
                let before_ms = now_ms().saturating_sub(args.older_than.as_millis() as u64);
                tell_removed(&args.store.output, open(&args.store)?.expire(before_ms).map_err(failed)?)
            }
            SessionSubcommand::Forget(args) => {
                tell_removed(&args.store.output, open(&args.store)?.forget_tenant(&args.tenant).map_err(failed)?)
            }
        }
    }
}

impl ListArgs {
    fn run(&self) -> Result<()> {
        let index = open(&self.store)?;
        let tenants = self.tenant.clone().map_or_else(|| index.tenants(), |tenant| vec![tenant]);
        let query = self.like.as_deref().map(|text| HashedWords::new(SESSION_DIM).vector(text));
        if query.as_ref().is_some_and(|query| query.iter().all(|&x| x == 0.0)) {
            return Err(Error::usage("--like has no words to find sessions by"));
        }
        // Rank, tenant, name, when it was used.
        let mut found: Vec<(f64, String, String, u64)> = Vec::new();
        for tenant in tenants {
            let likeness: Option<std::collections::HashMap<String, f32>> = match &query {
                None => None,
                Some(query) => {
                    Some(index.nearest(&tenant, query, index.len(&tenant)).map_err(failed)?.into_iter().collect())
                }
            };
            let of_user = self.user.as_deref().map(|user| index.of_user(&tenant, user));
            for (name, used_ms) in index.list(&tenant) {
                let rank = match &likeness {
                    None => Some(used_ms as f64),
                    Some(likeness) => likeness.get(&name).filter(|&&likeness| likeness > 0.0).map(|&x| f64::from(x)),
                };
                let is_of_user = of_user.as_ref().is_none_or(|names| names.contains(&name));
                found.extend(rank.filter(|_| is_of_user).map(|rank| (rank, tenant.clone(), name, used_ms)));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.2.cmp(&b.2)));
        found.truncate(self.limit);
        let mut rows = vec![["NAME", "TENANT", "USER", "TURNS", "TOKENS", "USED (UTC)"].map(str::to_owned).to_vec()];
        let mut all = Vec::new();
        for (_, tenant, name, used_ms) in found {
            let Some(session) = index.recover(&tenant, &name).map_err(failed)? else { continue };
            let mut value = session_json(&name, &session, Some(used_ms));
            value["tenant"] = json!(tenant);
            all.push(value);
            let used = timestamp(used_ms / 1000).replace('T', " ").chars().take(16).collect();
            rows.push(vec![
                name,
                tenant,
                session.user,
                session.n_turns.to_string(),
                session.n_tokens.to_string(),
                used,
            ]);
        }
        match self.store.output.json {
            true => print_json(&json!({ "sessions": all })),
            false if all.is_empty() => print_line("there are no such sessions"),
            false => print(&table(&rows, &[3, 4])),
        }
    }
}

impl OneArgs {
    fn unknown(&self) -> Error {
        Error::failure(format_args!("there is no session '{}' of '{}'", self.name, self.tenant))
    }

    fn show(&self) -> Result<()> {
        let index = open(&self.store)?;
        let session = index.recover(&self.tenant, &self.name).map_err(failed)?.ok_or_else(|| self.unknown())?;
        let used_ms = index.list(&self.tenant).into_iter().find(|(name, _)| *name == self.name).map(|(_, used)| used);
        let value = session_json(&self.name, &session, used_ms);
        if self.store.output.json {
            return print_json(&value);
        }
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let rows = value.as_object().into_iter().flatten().map(|(name, value)| vec![name.clone(), text(value)]);
        print(&table(&rows.collect::<Vec<_>>(), &[]))
    }

    fn remove(&self) -> Result<()> {
        match open(&self.store)?.remove(&self.tenant, &self.name).map_err(failed)? {
            true => tell_removed(&self.store.output, 1),
            false => Err(self.unknown()),
        }
    }
}
