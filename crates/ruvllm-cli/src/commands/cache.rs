//! `ruvllm cache`: what is kept on disk of prompts, sessions and repacked weights.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::cache::session_name;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{bytes, print, print_json, print_line, table, timestamp};
use ruvllm_cli_tools::values::age;
use ruvllm_engine::PackedWeights;
use ruvllm_kvcache::KvError;
use ruvllm_kvcache::disk::{self, Contents, DiskStore, StoreInfo, StoreOptions};
use ruvllm_learning::DraftHistoryFile;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm cache stats                       how much there is, by model
  ruvllm cache list --json                 sessions and prefixes
  ruvllm cache clear --session work        remove one session
  ruvllm cache clear --older-than 7d       remove what was not written to for a week
  ruvllm cache clear --keep-sessions       remove all computed prompts, keep the conversations

'ruvllm run' and 'ruvllm chat' keep computed prompts here, so that one that starts alike answers
at once, also after a restart, and the weights as they are computed with, so that a start takes a
fraction of the time. Removing them costs time and no answer; a session that is removed is gone.
'ruvllm serve' keeps texts here as well that drafts are made of.";

/// Options of `ruvllm cache`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CacheCommand {
    #[command(subcommand)]
    action: Action,
    /// The cache folder [default: kv in RUVLLM_HOME]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
    /// Answer with one JSON object on one line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show how much is kept, by model
    Stats,
    /// List sessions and computed prefixes
    List,
    /// Remove what is kept: everything, or what the options say
    Clear(ClearArgs),
}

#[derive(Args, Debug)]
struct ClearArgs {
    /// Remove only the session of this name; its computed prompts stay for others
    #[arg(long, value_name = "NAME", value_parser = session_name, conflicts_with_all = ["older_than", "keep_sessions"])]
    session: Option<String>,
    /// Remove only what was not written to for this long: 7d, 12h, 30m, 2w
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Remove computed prompts only
    #[arg(long)]
    keep_sessions: bool,
}

impl ClearArgs {
    /// Returns how long what is removed was not written to.
    fn age(&self) -> Duration {
        self.older_than.unwrap_or(Duration::ZERO)
    }

    fn is_old(&self, used: SystemTime) -> bool {
        used.elapsed().is_ok_and(|since| since >= self.age())
    }
}

/// What was removed.
#[derive(Debug, Default)]
struct Removed {
    bytes: u64,
    n_blocks: usize,
    sessions: Vec<String>,
    /// Repacked weights.
    packed: Vec<PackedWeights>,
    /// Texts that drafts are made of.
    drafts: Vec<DraftHistoryFile>,
}

impl CacheCommand {
    /// Shows or removes.
    ///
    /// # Errors
    /// A failure if the folder cannot be used, a store that is to be changed is in use, or there is no such session.
    pub fn run(&self, app: &App) -> Result<()> {
        let folder = self.cache_dir.clone().unwrap_or_else(|| app.settings.cache_dir());
        // A server that learns and has no cache folder keeps the texts of drafts where it keeps what it learned.
        let mut drafts = DraftHistoryFile::list(&folder);
        if self.cache_dir.is_none() {
            drafts.extend(DraftHistoryFile::list(&app.settings.learned_dir()));
        }
        match &self.action {
            Action::Stats => self.stats(&folder, &drafts),
            Action::List => self.list(&folder),
            Action::Clear(args) => self.clear(&folder, drafts, args),
        }
    }

    fn stats(&self, folder: &Path, drafts: &[DraftHistoryFile]) -> Result<()> {
        let (found, packed) = (read(folder)?, PackedWeights::list(folder));
        let packed_bytes: u64 = packed.iter().map(|file| file.bytes).sum();
        let draft_bytes: u64 = drafts.iter().map(|file| file.bytes).sum();
        let total = found.iter().map(|(store, _)| store.bytes).sum::<u64>() + packed_bytes + draft_bytes;
        if self.json {
            let models: Vec<_> = found.iter().map(|(store, contents)| stats_json(store, contents)).collect();
            let packed: Vec<_> = packed.iter().map(packed_json).collect();
            let drafts: Vec<_> = drafts.iter().map(drafts_json).collect();
            return print_json(&json!({
                "folder": folder, "bytes": total, "models": models, "packed": packed, "drafts": drafts,
            }));
        }
        print_line(&format!("{} in {}", bytes(total), folder.display()))?;
        if !packed.is_empty() {
            print_line(&format!("of that {} are repacked weights ({})", bytes(packed_bytes), models(packed.len())))?;
        }
        if !drafts.is_empty() {
            print_line(&format!(
                "of that {} are earlier texts that drafts are made of ({})",
                bytes(draft_bytes),
                models(drafts.len())
            ))?;
        }
        if found.is_empty() {
            return Ok(());
        }
        let mut rows = vec![row(["MODEL", "SIZE", "BLOCKS", "PREFIXES", "SESSIONS", "WRITTEN", ""])];
        rows.extend(found.iter().map(|(store, contents)| {
            let Contents { sessions, prefixes, n_blocks } = contents;
            let [n_blocks, n_prefixes, n_sessions] = [*n_blocks, prefixes.len(), sessions.len()].map(|n| n.to_string());
            let in_use = if store.in_use { "in use" } else { "" };
            let (size, written) = (bytes(store.bytes), minute(store.used));
            row([&store.label, &size, &n_blocks, &n_prefixes, &n_sessions, &written, in_use])
        }));
        print(&table(&rows, &[1, 2, 3, 4]))
    }

    fn list(&self, folder: &Path) -> Result<()> {
        let found = read(folder)?;
        if self.json {
            let sessions = found.iter().flat_map(|(store, contents)| sessions_json(store, contents));
            let prefixes = found.iter().flat_map(|(store, contents)| prefixes_json(store, contents));
            let (sessions, prefixes): (Vec<_>, Vec<_>) = (sessions.collect(), prefixes.collect());
            return print_json(&json!({ "folder": folder, "sessions": sessions, "prefixes": prefixes }));
        }
        let (mut sessions, mut prefixes) = (Vec::new(), Vec::new());
        for (store, contents) in &found {
            sessions.extend(contents.sessions.iter().map(|session| {
                let (tokens, saved) = (session.n_tokens.to_string(), minute(session.used));
                row([&session.name, &tokens, &bytes(session.bytes), &saved, &store.label])
            }));
            prefixes.extend(contents.prefixes.iter().map(|prefix| {
                let (id, tokens) = (id(prefix), prefix.n_tokens.to_string());
                row([&id, &tokens, &bytes(prefix.bytes), &minute(prefix.written), &store.label])
            }));
        }
        if sessions.is_empty() && prefixes.is_empty() {
            return print_line(&format!("nothing is kept in {}", folder.display()));
        }
        let blocks = [("SESSION", "SAVED", sessions), ("PREFIX", "WRITTEN", prefixes)];
        let tables = blocks.into_iter().filter(|(_, _, rows)| !rows.is_empty()).map(|(name, when, rows)| {
            let head = row([name, "TOKENS", "SIZE", when, "MODEL"]);
            table(&[vec![head], rows].concat(), &[1, 2])
        });
        print(&tables.collect::<Vec<_>>().join("\n"))
    }

    fn clear(&self, folder: &Path, drafts: Vec<DraftHistoryFile>, args: &ClearArgs) -> Result<()> {
        let (mut removed, mut refused) = (Removed::default(), None);
        let found = read(folder)?;
        if let Some(name) = &args.session {
            let has = |contents: &Contents| contents.sessions.iter().any(|session| session.name == *name);
            if !found.iter().any(|(_, contents)| has(contents)) {
                let line = format!("there is no session '{name}' in {}; see 'ruvllm cache list'", folder.display());
                return Err(Error::failure(line));
            }
            for (store, _) in found.iter().filter(|(_, contents)| has(contents)) {
                if open(folder, store)?.delete_session(name).map_err(failed)? {
                    removed.sessions.push(name.clone());
                }
            }
        } else {
            for (store, contents) in &found {
                // What others use stays; what can go goes, and the error comes after it.
                match clear_one(folder, store, contents, args) {
                    Ok(gone) => removed.add(gone),
                    Err(error) => refused = Some(error),
                }
            }
            let is_meant = |file: &PackedWeights| !args.keep_sessions && args.is_old(file.used);
            for file in PackedWeights::list(folder).into_iter().filter(is_meant) {
                match file.remove() {
                    Ok(()) => removed.packed.push(file),
                    Err(error) => refused = Some(Error::io("remove", &file.path, &error)),
                }
            }
            for file in drafts.into_iter().filter(|file| !args.keep_sessions && args.is_old(file.used)) {
                match file.remove() {
                    Ok(()) => removed.drafts.push(file),
                    Err(error) => refused = Some(Error::failure(error)),
                }
            }
        }
        if self.json && refused.is_none() {
            let Removed { bytes, n_blocks, sessions, packed, drafts } = &removed;
            let n_bytes = bytes + removed.packed_bytes() + removed.draft_bytes();
            let packed: Vec<_> = packed.iter().map(packed_json).collect();
            let drafts: Vec<_> = drafts.iter().map(drafts_json).collect();
            print_json(&json!({
                "folder": folder, "bytes": n_bytes, "blocks": n_blocks, "sessions": sessions, "packed": packed,
                "drafts": drafts,
            }))?;
        } else if !self.json {
            print_line(&removed.line(folder))?;
        }
        refused.map_or(Ok(()), Err)
    }
}

/// Removes of one store what the options say.
fn clear_one(folder: &Path, store: &StoreInfo, contents: &Contents, args: &ClearArgs) -> Result<Removed> {
    let names = |contents: &Contents| contents.sessions.iter().map(|session| session.name.clone()).collect::<Vec<_>>();
    if args.is_old(store.used) && (!args.keep_sessions || contents.sessions.is_empty()) {
        let bytes = disk::remove(folder, &store.identity).map_err(failed)?;
        return Ok(Removed { bytes, n_blocks: contents.n_blocks, sessions: names(contents), ..Removed::default() });
    }
    let open = open(folder, store)?;
    if !args.keep_sessions {
        open.expire_sessions(args.age()).map_err(failed)?;
    }
    open.expire_blocks(args.age()).map_err(failed)?;
    let stats = open.stats();
    let left: Vec<String> = open.sessions().into_iter().map(|session| session.name).collect();
    let sessions = names(contents).into_iter().filter(|name| !left.contains(name)).collect();
    let n_blocks = contents.n_blocks.saturating_sub(stats.n_blocks);
    let bytes = store.bytes.saturating_sub(stats.bytes);
    Ok(Removed { bytes, n_blocks, sessions, ..Removed::default() })
}

impl Removed {
    fn add(&mut self, other: Removed) {
        self.bytes += other.bytes;
        self.n_blocks += other.n_blocks;
        self.sessions.extend(other.sessions);
        self.packed.extend(other.packed);
        self.drafts.extend(other.drafts);
    }

    fn packed_bytes(&self) -> u64 {
        self.packed.iter().map(|file| file.bytes).sum()
    }

    fn draft_bytes(&self) -> u64 {
        self.drafts.iter().map(|file| file.bytes).sum()
    }

    fn line(&self, folder: &Path) -> String {
        let Removed { bytes: n_bytes, n_blocks, sessions, packed, drafts } = self;
        let parts = [
            (*n_blocks > 0).then(|| format!("{n_blocks} blocks of 16 tokens ({})", bytes(*n_bytes))),
            (!packed.is_empty())
                .then(|| format!("the repacked weights of {} ({})", models(packed.len()), bytes(self.packed_bytes()))),
            (!drafts.is_empty())
                .then(|| format!("the texts for drafts of {} ({})", models(drafts.len()), bytes(self.draft_bytes()))),
            match &sessions[..] {
                [] => None,
                [one] => Some(format!("session {one}")),
                many => Some(format!("{} sessions: {}", many.len(), many.join(", "))),
            },
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match &parts[..] {
            [] => format!("nothing to remove in {}", folder.display()),
            parts => format!("removed {}", parts.join(" and ")),
        }
    }
}

fn models(n: usize) -> String {
    if n == 1 { "1 model".to_owned() } else { format!("{n} models") }
}

/// Returns the stores of the folder with what they hold.
fn read(folder: &Path) -> Result<Vec<(StoreInfo, Contents)>> {
    let stores = disk::stores(folder).map_err(failed)?.into_iter();
    let with_contents = |store: StoreInfo| Ok((disk::contents(folder, &store.identity)?, store));
    let found: std::result::Result<Vec<_>, KvError> = stores.map(with_contents).collect();
    Ok(found.map_err(failed)?.into_iter().map(|(contents, store)| (store, contents)).collect())
}

/// Opens a store to remove something from it, whatever its size.
fn open(folder: &Path, store: &StoreInfo) -> Result<DiskStore> {
    let options = StoreOptions { label: store.label.clone(), max_bytes: 1 << 50, ..StoreOptions::new(store.identity) };
    DiskStore::open(folder, options).map_err(failed)
}

fn failed(error: KvError) -> Error {
    Error::failure(error)
}

fn stats_json(store: &StoreInfo, contents: &Contents) -> Value {
    json!({
        "model": store.label,
        "bytes": store.bytes,
        "blocks": contents.n_blocks,
        "prefixes": contents.prefixes.len(),
        "sessions": contents.sessions.len(),
        "written_at": timestamp(unix_s(store.used)),
        "in_use": store.in_use,
    })
}

fn packed_json(file: &PackedWeights) -> Value {
    json!({ "path": file.path, "bytes": file.bytes, "used_at": timestamp(unix_s(file.used)) })
}

fn drafts_json(file: &DraftHistoryFile) -> Value {
    json!({ "path": file.path, "bytes": file.bytes, "used_at": timestamp(unix_s(file.used)) })
}

fn sessions_json(store: &StoreInfo, contents: &Contents) -> impl Iterator<Item = Value> {
    contents.sessions.iter().map(|session| {
        json!({
            "name": session.name,
            "model": store.label,
            "tokens": session.n_tokens,
            "bytes": session.bytes,
            "created_at": timestamp(unix_s(session.created)),
            "saved_at": timestamp(unix_s(session.used)),
        })
    })
}

fn prefixes_json(store: &StoreInfo, contents: &Contents) -> impl Iterator<Item = Value> {
    contents.prefixes.iter().map(|prefix| {
        json!({
            "id": id(prefix),
            "model": store.label,
            "tokens": prefix.n_tokens,
            "bytes": prefix.bytes,
            "written_at": timestamp(unix_s(prefix.written)),
        })
    })
}

/// Returns a short name of a prefix.
fn id(prefix: &disk::StoredPrefix) -> String {
    format!("{:?}", prefix.key).chars().take(12).collect()
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns a time to the minute, in UTC.
fn minute(time: SystemTime) -> String {
    timestamp(unix_s(time)).replace('T', " ").chars().take(16).collect()
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_is_said_in_a_line() {
        let line = |n_blocks, sessions: &[&str]| {
            let sessions = sessions.iter().map(|&name| name.to_owned()).collect();
            Removed { bytes: 2_500_000, n_blocks, sessions, ..Removed::default() }.line(Path::new("/kv"))
        };
        assert_eq!(line(0, &[]), "nothing to remove in /kv");
        assert_eq!(line(7, &[]), "removed 7 blocks of 16 tokens (2.5 MB)");
        assert_eq!(line(0, &["a"]), "removed session a");
        assert_eq!(line(7, &["a", "b"]), "removed 7 blocks of 16 tokens (2.5 MB) and 2 sessions: a, b");
        let packed = |bytes| PackedWeights { path: "/kv/packed/a".into(), bytes, used: UNIX_EPOCH };
        let removed = Removed { packed: vec![packed(2_000_000)], ..Removed::default() };
        assert_eq!(removed.line(Path::new("/kv")), "removed the repacked weights of 1 model (2.0 MB)");
        let removed = Removed { packed: vec![packed(1), packed(999_999)], n_blocks: 1, bytes: 1_000, ..removed };
        let expected = "removed 1 blocks of 16 tokens (1.0 kB) and the repacked weights of 2 models (1.0 MB)";
        assert_eq!(removed.line(Path::new("/kv")), expected);
    }
}
