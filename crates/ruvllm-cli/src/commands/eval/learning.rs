//! `ruvllm eval learning`: streams of texts that are predicted and then learned, and texts that are not.
//!
//! One pass of the model serves all variants: they see the base's hidden states and logits, and the head is multiplied
//! again where a MicroLoRA changed the states.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{print_json, print_line, table};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_cli_tools::values::count;
use ruvllm_cli_tools::{check, interrupt, learning};
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, EngineError, ErrorKind, LoadOptions};
use ruvllm_learning::{
    EvaluationStream, EvaluationStreamOptions, LearnOptions, Learned, Learning, LearningOptions, WindowOptions, of_sona,
};
use serde_json::{Value, json};

use crate::commands::eval::plot::{self, Panel};
use crate::commands::eval::statistics::{Change, change, curve};

const EXAMPLES: &str = "\
Examples:
  ruvllm eval learning --stream code=./package/src --stream manual=a.txt,b.txt --control novel.txt --out learning.json

A stream is files in order, or a folder of them by name: each token is predicted before it is learned,
and the second half is scored against the model alone. Controls are read with what was learned, and
nothing is learned of them. Beside the JSON file an SVG file of the same name shows the curves.";

/// Tokens that are drawn as one point.
const POINT: usize = 1024;
/// Tokens of other text that stand before a document that is read again.
const PREFIX: usize = 200;

/// Options of `ruvllm eval learning`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LearningArgs {
    /// A stream to learn; may be given several times
    #[arg(long, value_name = "NAME=PATH[,PATH]", required = true)]
    stream: Vec<StreamArg>,
    /// A text that is not learned; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    control: Vec<PathBuf>,
    /// The most tokens of a stream
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count::<512, 10_000_000>)]
    tokens: usize,
    /// The most tokens of a control
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = count::<16, 10_000_000>)]
    control_tokens: usize,
    /// Tokens that are learned together, as those of a request are
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count::<1, 1_000_000>)]
    request: usize,
    /// Measure only this way of learning; may be given several times
    #[arg(long, value_name = "NAME", value_parser = VARIANTS.map(|variant| variant.name))]
    variant: Vec<String>,
    /// Learn by the high bits of the head, as greedy answers do
    #[arg(long, alias = "rough")]
    approx_logits: bool,
    /// Write the figures to this JSON file, and the curves to an SVG file beside it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A stream: its name, and files or folders of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StreamArg {
    name: String,
    paths: Vec<PathBuf>,
}

impl FromStr for StreamArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<StreamArg, String> {
        let (name, paths) = text.split_once('=').unwrap_or_default();
        let paths: Vec<PathBuf> = paths.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        match name.is_empty() || paths.is_empty() {
            true => Err("use NAME=FILE, NAME=FILE,FILE or NAME=FOLDER".to_owned()),
            false => Ok(StreamArg { name: name.to_owned(), paths }),
        }
    }
}

impl StreamArg {
    /// Reads the texts of its files.
    fn read(&self) -> Result<Vec<String>> {
        files(&self.paths)?.iter().map(|file| read_text(file)).collect()
    }
}

/// What is learned in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    name: &'static str,
    has_memory: bool,
    has_micro: bool,
    /// A document is predicted by what was known before it.
    is_by_text: bool,
    /// Each token is learned as if another one of the stream had stood there; what comes next is the text all the same.
    is_shuffled: bool,
}

const fn variant(name: &'static str, has_memory: bool, has_micro: bool) -> Variant {
    Variant { name, has_memory, has_micro, is_by_text: false, is_shuffled: false }
}

/// What is compared: each mechanism alone, both, what is kept from the document at hand, and what has nothing to learn.
const VARIANTS: [Variant; 7] = [
    variant("all", true, true),
    variant("memory", true, false),
    variant("micro", false, true),
    Variant { is_by_text: true, ..variant("memory, earlier files", true, false) },
    Variant { is_by_text: true, ..variant("all, earlier files", true, true) },
    Variant { is_shuffled: true, ..variant("memory, shuffled", true, false) },
    Variant { is_shuffled: true, ..variant("all, shuffled", true, true) },
];

/// A stream or another text as tokens.
struct Text {
    name: String,
    documents: Vec<Vec<u32>>,
}

/// What a text cost, token by token, in nats: of the model alone and of each variant.
struct Nll {
    base: Vec<f32>,
    variants: Vec<(&'static Variant, Vec<f32>)>,
}

impl Nll {
    fn new(variants: &[&'static Variant]) -> Nll {
        Nll { base: Vec::new(), variants: variants.iter().map(|&variant| (variant, Vec::new())).collect() }
    }

    fn mean(&self) -> f64 {
        self.base.iter().map(|&x| f64::from(x)).sum::<f64>() / self.base.len().max(1) as f64
    }

    /// Returns the change of each variant, from a token on.
    fn changes(&self, from: usize) -> Vec<Change> {
        self.variants.iter().map(|(_, nll)| change(&self.base[from..], &nll[from..])).collect()
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.variants.iter().map(|(variant, _)| variant.name)
    }
}

/// What came of a stream.
struct Report {
    name: String,
    n_documents: usize,
    nll: Nll,
    n_entries: usize,
    /// Its first and its last document again, behind other text.
    again: Vec<(&'static str, Nll)>,
    controls: Vec<(String, Nll)>,
}

/// What every reading needs.
struct Reader<'a> {
    engine: Engine,
    learning: Learning,
    cancel: CancelToken,
    app: &'a App,
}

impl LearningArgs {
    /// Measures, prints and writes.
    ///
    /// # Errors
    /// A failure if a file cannot be read or a stream is shorter than four blocks of 256 tokens.
    pub fn run(&self, app: &App) -> Result<()> {
        let streams = self.stream.iter().map(StreamArg::read).collect::<Result<Vec<_>>>()?;
        let controls = self.control.iter().map(|path| Ok((path, read_text(path)?))).collect::<Result<Vec<_>>>()?;
        let model = app.model_file(&self.model.model);
        let (out, curves) = (self.out_file(&self.out, &model)?, self.out_file(&self.svg(), &model)?);
        check::writable_folder(&app.settings.learned_dir())?;
        let path = app.store().locate(&self.model.model, true)?;
        let mut engine = app.load(&path, &LoadOptions { n_seq_max: 1, ..self.load.options(&app.settings, None) })?;
        let encode_all = |(arg, texts): (&StreamArg, &Vec<String>)| self.stream_of(&engine, arg, texts);
        let streams = self.stream.iter().zip(&streams).map(encode_all).collect::<Result<Vec<_>>>()?;
        let control = |(path, text): &(&PathBuf, String)| self.control_of(&engine, path, text);
        let controls = controls.iter().map(control).collect::<Result<Vec<_>>>()?;
        let learning = learning::open_model(app, &mut engine, LearningOptions::default())?;
        let mut reader = Reader { engine, learning, cancel: CancelToken::default(), app };
        let _guard = interrupt::cancels(&reader.cancel);
        let mut reports = Vec::new();
        for stream in &streams {
            let report = self.measure(&mut reader, stream, &controls)?;
            if !self.output.json {
                print_line(&summary(&report))?;
            }
            reports.push(report);
        }
        let object = self.json(&reader.engine, &reports);
        if let (Some(out), Some(curves)) = (out, curves) {
            out.write_whole(format!("{object:#}\n").as_bytes())?;
            curves.write_whole(plot::draw(&panels(&reports)).as_bytes())?;
        }
        if self.output.json { print_json(&object) } else { Ok(()) }
    }

    /// Returns where the curves are drawn.
    fn svg(&self) -> Option<PathBuf> {
        self.out.as_ref().map(|out| out.with_extension("svg"))
    }

    /// Begins a file that is written at the end.
    fn out_file(&self, path: &Option<PathBuf>, model: &Option<PathBuf>) -> Result<Option<OutFile>> {
        let streams = self.stream.iter().flat_map(|stream| &stream.paths);
        let inputs: Vec<&Path> = self.control.iter().chain(streams).chain(model).map(PathBuf::as_path).collect();
        path.as_ref().map(|path| OutFile::create(path, &inputs)).transpose()
    }

    /// Turns the texts of a stream into tokens, up to the most of them.
    fn stream_of(&self, engine: &Engine, arg: &StreamArg, texts: &[String]) -> Result<Text> {
        let (mut documents, mut n_left) = (Vec::new(), self.tokens);
        for text in texts {
            let mut tokens = encode(engine, text)?;
            tokens.truncate(n_left);
            n_left -= tokens.len();
            if tokens.len() > 1 {
                documents.push(tokens);
            }
        }
        let n_tokens = self.tokens - n_left;
        if n_tokens < 1024 {
            let line = format!("the stream '{}' has {n_tokens} tokens; give it at least 1024", arg.name);
            return Err(Error::usage(line));
        }
        Ok(Text { name: arg.name.clone(), documents })
    }

    fn control_of(&self, engine: &Engine, path: &Path, text: &str) -> Result<Text> {
        let mut tokens = encode(engine, text)?;
        tokens.truncate(self.control_tokens);
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Ok(Text { name, documents: vec![tokens] })
    }

    fn measure(&self, reader: &mut Reader<'_>, stream: &Text, controls: &[Text]) -> Result<Report> {
        let variants = self.variants();
        let mut courses = variants.iter().map(|variant| self.course(reader, variant)).collect::<Result<Vec<_>>>()?;
        let all = stream.documents.concat();
        // A fixed walk that comes to every token once where the stride shares no factor with their number.
        let shuffled: Vec<u32> = (0..all.len()).map(|i| all[(i * 7919 + 13) % all.len()]).collect();
        let (mut nll, mut n_read) = (Nll::new(&variants), 0);
        let bar = reader.app.ui.steps_bar("learning", all.len() as u64).of(&stream.name);
        for document in &stream.documents {
            let taught = &shuffled[n_read..n_read + document.len()];
            reader.read(document, Some(taught), 0, &mut courses, &mut nll, &|n| bar.inc(n))?;
            courses.iter_mut().for_each(EvaluationStream::end_text);
            n_read += document.len();
        }
        bar.finish_and_clear();
        let mut report = Report {
            name: stream.name.clone(),
            n_documents: stream.documents.len(),
            nll,
            n_entries: courses.iter().map(|course| course.learned().datastore().len()).max().unwrap_or_default(),
            again: Vec::new(),
            controls: Vec::new(),
        };
        let bar = reader.app.ui.steps_bar("controls", controls.len() as u64 + 2).of(format!("of {}", stream.name));
        let last = stream.documents.len() - 1;
        for (name, document) in [("first", &stream.documents[0]), ("last", &stream.documents[last])] {
            let prefix = &controls[0].documents[0];
            let prefix = &prefix[..prefix.len().min(PREFIX)];
            let text = [prefix, document].concat();
            report.again.push((name, reader.control(&variants, &courses, &text, prefix.len())?));
            bar.inc(1);
        }
        for control in controls {
            let nll = reader.control(&variants, &courses, &control.documents[0], 0)?;
            report.controls.push((control.name.clone(), nll));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(report)
    }

    /// Returns the ways that are asked for: all if none is named.
    fn variants(&self) -> Vec<&'static Variant> {
        let is_wanted =
            |variant: &&Variant| self.variant.is_empty() || self.variant.iter().any(|name| name == variant.name);
        VARIANTS.iter().filter(is_wanted).collect()
    }

    fn course(&self, reader: &Reader<'_>, variant: &Variant) -> Result<EvaluationStream> {
        let all = reader.learning.options().learn;
        let learn = LearnOptions {
            datastore: all.datastore.filter(|_| variant.has_memory),
            micro: all.micro.filter(|_| variant.has_micro),
            ..all
        };
        let calibration = std::sync::Arc::clone(reader.learning.calibration());
        let learned = Learned::new(calibration, learn, reader.engine.compute()).map_err(of_sona)?;
        let (is_by_text, is_approx) = (variant.is_by_text, self.approx_logits);
        let options = EvaluationStreamOptions {
            n_request: self.request,
            is_by_text,
            is_approx,
            ..EvaluationStreamOptions::default()
        };
        Ok(EvaluationStream::new(learned, options))
    }

    fn json(&self, engine: &Engine, reports: &[Report]) -> Value {
        let streams = reports.iter().map(|report| {
            let half = report.nll.base.len() / 2;
            let curves = report.nll.variants.iter();
            let curves = curves.map(|(way, nll)| (way.name.to_owned(), json!(curve(&report.nll.base, nll, POINT))));
            let again = report
                .again
                .iter()
                .map(|(name, nll)| json!({ "document": name, "tokens": nll.base.len(), "changes": changes(nll, 0) }));
            let controls = report.controls.iter().map(|(name, nll)| {
                json!({ "name": name, "tokens": nll.base.len(), "nll": nll.mean(), "changes": changes(nll, 0) })
            });
            json!({
                "name": report.name,
                "documents": report.n_documents,
                "tokens": report.nll.base.len(),
                "entries": report.n_entries,
                "nll": report.nll.mean(),
                "second_half": changes(&report.nll, half),
                "whole": changes(&report.nll, 0),
                "curves": curves.collect::<serde_json::Map<_, _>>(),
                "again": again.collect::<Vec<_>>(),
                "controls": controls.collect::<Vec<_>>(),
            })
        });
        json!({
            "model": engine.info().name,
            "request_tokens": self.request,
            "window_tokens": WindowOptions::default().n_window.min(engine.info().n_ctx),
            "streams": streams.collect::<Vec<_>>(),
        })
    }
}

impl Reader<'_> {
    /// Reads a document, and appends the nats of its tokens from `from` on.
    fn read(
        &mut self,
        tokens: &[u32],
        shuffled: Option<&[u32]>,
        from: usize,
        courses: &mut [EvaluationStream],
        nll: &mut Nll,
        on_rows: &dyn Fn(u64),
    ) -> Result<()> {
        let (isa, head, cancel) = (self.engine.compute().isa, self.learning.head(), &self.cancel);
        let read =
            ruvllm_learning::read_text(&mut self.engine, tokens, &WindowOptions::default(), &mut |engine, shown| {
                let n = shown.rows.next.len();
                let kept = from.saturating_sub(shown.first).min(n);
                nll.base.extend(shown.rows.nll(isa).skip(kept));
                for (course, (variant, nll)) in courses.iter_mut().zip(&mut nll.variants) {
                    if cancel.is_cancelled() {
                        return Err(EngineError::new(ErrorKind::Cancelled, "the measurement was stopped"));
                    }
                    let taught = shuffled.filter(|_| variant.is_shuffled);
                    let taught = taught.map(|taught| &taught[shown.first..shown.first + n]);
                    course.read(engine, shown.rows, taught, head)?;
                    nll.extend(course.take_nll().into_iter().skip(kept));
                }
                on_rows(n as u64);
                Ok(())
            });
        Ok(read?)
    }

    /// Reads a text with what was learned, and learns nothing.
    fn control(
        &mut self,
        variants: &[&'static Variant],
        courses: &[EvaluationStream],
        tokens: &[u32],
        from: usize,
    ) -> Result<Nll> {
        let (mut frozen, mut nll): (Vec<EvaluationStream>, Nll) =
            (courses.iter().map(EvaluationStream::frozen).collect(), Nll::new(variants));
        self.read(tokens, None, from, &mut frozen, &mut nll, &|_| {})?;
        Ok(nll)
    }
}

/// Returns the change of each variant with its interval, by name.
fn changes(nll: &Nll, from: usize) -> Value {
    let pairs = nll.names().zip(nll.changes(from)).map(|(name, Change { mean, low, high })| {
        (name.to_owned(), json!({ "change": mean, "low": low, "high": high }))
    });
    Value::Object(pairs.collect())
}

/// Returns the table of a stream.
fn summary(report: &Report) -> String {
    let percent = |x: f64| format!("{:+.2} %", 100.0 * x);
    let half = report.nll.base.len() / 2;
    let mut rows = vec![["", "second half", "95 %", "first again", "last again"].map(str::to_owned).to_vec()];
    rows[0].extend(report.controls.iter().map(|(name, _)| name.clone()));
    for (i, (name, all)) in report.nll.names().zip(report.nll.changes(half)).enumerate() {
        let mut row =
            vec![name.to_owned(), percent(all.mean), format!("{:+.1} to {:+.1}", 100.0 * all.low, 100.0 * all.high)];
        row.extend(report.again.iter().map(|(_, nll)| percent(nll.changes(0)[i].mean)));
        row.extend(report.controls.iter().map(|(_, nll)| percent(nll.changes(0)[i].mean)));
        rows.push(row);
    }
    let right: Vec<usize> = (1..rows[0].len()).collect();
    let (name, n, n_documents, nll) = (&report.name, report.nll.base.len(), report.n_documents, report.nll.mean());
    format!(
        "{name}: {n} tokens, {n_documents} documents, {nll:.4} nats a token by the model alone\n{}",
        table(&rows, &right)
    )
}

fn panels(reports: &[Report]) -> Vec<Panel> {
    let panel = |report: &Report| Panel {
        title: format!("{}: change of nats a token against the model alone", report.name),
        lines: report
            .nll
            .variants
            .iter()
            .map(|(variant, nll)| (variant.name.to_owned(), curve(&report.nll.base, nll, POINT)))
            .collect(),
        x_end: report.nll.base.len() as f64,
        x_name: "tokens",
    };
    reports.iter().map(panel).collect()
}

fn encode(engine: &Engine, text: &str) -> Result<Vec<u32>> {
    Ok(engine.tokenizer()?.encode(text, EncodeOptions::default())?)
}

/// Returns files, and those of folders in order of their names.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| Error::io("read", path, &error))?;
        let mut inside = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("read", path, &error))?.path();
            if entry.is_file() {
                inside.push(entry);
            }
        }
        inside.sort();
        all.extend(inside);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_a_name_and_files() {
        let of = |text: &str| text.parse::<StreamArg>().map(|arg| (arg.name, arg.paths.len()));
        assert_eq!(of("code=a.py,b.py"), Ok(("code".to_owned(), 2)));
        assert!(of("code=").is_err() && of("=a").is_err() && of("a.py").is_err());
    }
}
