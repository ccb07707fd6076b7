//! `ruvllm push`: publish a model or an adapter on the Hugging Face hub.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_hub::{Publication, PublishOptions, PublishedFile, Pushed, push};
use serde_json::{Value, json};

/// The most bytes of a table.
const TABLE_BYTES_MAX: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  ruvllm push model-q4.gguf hf:me/my-model-GGUF --dry-run
  ruvllm push model-q4.gguf hf:me/my-model-GGUF --private --table perplexity.json
  ruvllm push ./my-adapter hf:me/my-adapter          a folder as PEFT writes it

The token is taken from HF_TOKEN, the file that HF_TOKEN_PATH names, or the one that 'hf auth login'
writes. A push that was cut off goes on where it was. The model card is made from what the files
say, unless the folder or the repository has one by hand.";

/// Options of `ruvllm push`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PushArgs {
    /// A GGUF file, the first of several, or a folder
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The repository, which is made if it is not there: hf:owner/name, perhaps with @branch
    #[arg(value_name = "REPOSITORY")]
    target: String,
    /// Show what would be sent, and ask nobody
    #[arg(long)]
    dry_run: bool,
    /// Make the repository private, if it has to be made
    #[arg(long)]
    private: bool,
    /// Message of the commit
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Figures for the model card: what 'ruvllm perplexity --json' answered
    #[arg(long, value_name = "FILE.json")]
    table: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

impl PushArgs {
    /// Publishes, or shows what would be published.
    ///
    /// # Errors
    /// A usage error for a target that is none or without a token, a failure if something cannot be read or sent.
    pub fn run(&self, app: &App) -> Result<()> {
        let options = PublishOptions {
            target: self.target.clone(),
            is_private: self.private,
            message: self.message.clone(),
            table: self.table.as_deref().map(read_table).transpose()?,
        };
        let publication = Publication::prepare(&self.path, &options, &app.ui)?;
        if self.dry_run {
            return if self.output.json { plan_json(&publication) } else { plan_text(&publication) };
        }
        let repo = publication.repo.clone();
        let pushed = push(publication, &app.settings.hub, &app.settings.uploads_dir(), &app.ui)?;
        if self.output.json { pushed_json(&repo, &pushed) } else { pushed_text(&repo, &pushed) }
    }
}

fn read_table(path: &Path) -> Result<Value> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(TABLE_BYTES_MAX + 1).read_to_end(&mut text));
    read.map_err(|error| Error::io("read", path, &error))?;
    if text.len() as u64 > TABLE_BYTES_MAX {
        return Err(Error::usage(format_args!("{} has more than {TABLE_BYTES_MAX} bytes", path.display())));
    }
    serde_json::from_slice(&text).map_err(|error| Error::usage(format_args!("{} is no JSON: {error}", path.display())))
}

fn plan_text(publication: &Publication) -> Result<()> {
    let Publication { repo, revision, message, is_private, .. } = publication;
    let kind = if *is_private { "private, if it has to be made" } else { "public, if it has to be made" };
    let mut text = format!("nothing is sent: this is what would be\n\nrepository  {repo} ({kind})\n");
    text += &format!("branch      {revision}\nmessage     {message}\n\n");
    let mut rows = vec![["FILE", "SIZE", "SHA-256", "FROM"].map(str::to_owned).to_vec()];
    rows.extend(publication.files.iter().map(|file| {
        let from = file.path.as_ref().map_or_else(|| "made".to_owned(), |path| path.display().to_string());
        vec![file.name.clone(), bytes(file.n_bytes), file.sha256.clone(), from]
    }));
    text += &table(&rows, &[1]);
    for PublishedFile { name, text: content, .. } in &publication.files {
        if let Some(content) = content {
            text += &format!("\n--- {name}\n{content}");
        }
    }
    print(&text)
}

fn plan_json(publication: &Publication) -> Result<()> {
    let Publication { repo, revision, message, is_private, files, .. } = publication;
    let files = files.iter().map(|file| {
        let (name, path, text) = (&file.name, &file.path, &file.text);
        json!({ "name": name, "bytes": file.n_bytes, "sha256": file.sha256, "path": path, "text": text })
    });
    print_json(&json!({
        "dry_run": true,
        "repository": repo,
        "branch": revision,
        "private": is_private,
        "message": message,
        "files": files.collect::<Vec<_>>(),
    }))
}

fn pushed_text(repo: &str, pushed: &Pushed) -> Result<()> {
    let mut text = String::new();
    for file in &pushed.files {
        let how = match file.sent_bytes {
            0 if file.n_bytes > 0 => "was there already".to_owned(),
            sent if sent < file.n_bytes => {
                format!("{} of {} sent, the rest was there", bytes(sent), bytes(file.n_bytes))
            }
            sent => format!("{} sent", bytes(sent)),
        };
        text += &format!("{}: {how}\n", file.name);
    }
    if pushed.kept_card {
        text += "README.md: left as it is, since it was written by hand\n";
    }
    print(&format!("{text}published in {repo}: {}\n", pushed.commit_url))
}

fn pushed_json(repo: &str, pushed: &Pushed) -> Result<()> {
    let files = pushed
        .files
        .iter()
        .map(|file| json!({ "name": file.name, "bytes": file.n_bytes, "sent_bytes": file.sent_bytes }));
    print_json(&json!({
        "repository": repo,
        "commit": pushed.commit,
        "url": pushed.commit_url,
        "kept_card": pushed.kept_card,
        "files": files.collect::<Vec<_>>(),
    }))
}
