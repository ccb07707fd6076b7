//! `ruvllm eval embedding`: what embeddings are good for, on texts with a label.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::routing::{EmbedderArgs, embed_all};
use ruvllm_router::Rows;
use serde::Deserialize;
use serde_json::json;

/// The places of a search that count.
const N_PLACES: usize = 10;

/// Options of `ruvllm eval embedding`.
#[derive(Args, Debug)]
pub(super) struct EmbeddingArgs {
    /// Texts, one {"text", "label"} a line: those of one label belong together
    #[arg(value_name = "FILE")]
    texts: PathBuf,
    /// Embeddings of the same texts by another program, one {"embedding"} a line: how near ours are to them
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    embedder: EmbedderArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Deserialize)]
struct Labelled {
    text: String,
    #[serde(default)]
    label: String,
}

#[derive(Deserialize)]
struct Embedded {
    embedding: Vec<f32>,
}

fn read<T: for<'a> Deserialize<'a>>(path: &std::path::Path) -> Result<Vec<T>> {
    let text = ruvllm_cli_tools::text_files::read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| Error::failure(format_args!("{} line {}: {e}", path.display(), i + 1)))
    };
    lines.map(parse).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// What searching for each text among the others finds: the mean reciprocal rank of the first of its label, and the
/// normalised discounted gain of the first places (Järvelin & Kekäläinen 2002).
fn search(rows: &Rows, labels: &[String]) -> (f64, f64, usize) {
    let (mut mrr, mut ndcg, mut n_asked) = (0.0, 0.0, 0);
    for i in 0..rows.len() {
        let n_right = labels.iter().enumerate().filter(|(j, label)| *j != i && **label == labels[i]).count();
        if n_right == 0 {
            continue;
        }
        let mut others: Vec<(f64, usize)> =
            (0..rows.len()).filter(|&j| j != i).map(|j| (cosine(rows.row(i), rows.row(j)), j)).collect();
        others.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let is_right = |&(_, j): &(f64, usize)| labels[j] == labels[i];
        mrr += others.iter().position(is_right).map_or(0.0, |at| 1.0 / (at as f64 + 1.0));
        let gain = |at: usize| 1.0 / (at as f64 + 2.0).log2();
        let found: f64 =
            others.iter().take(N_PLACES).enumerate().filter(|(_, o)| is_right(o)).map(|(at, _)| gain(at)).sum();
        ndcg += found / (0..n_right.min(N_PLACES)).map(gain).sum::<f64>();
        n_asked += 1;
    }
    let n = n_asked.max(1) as f64;
    (mrr / n, ndcg / n, n_asked)
}

/// How well labels are clusters: the share of texts whose nearest centre of a label is their own, and the mean silhouette
/// (Rousseeuw 1987) by cosine distance.
fn clusters(rows: &Rows, labels: &[String]) -> (f64, f64) {
    let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    labels.iter().enumerate().for_each(|(i, label)| members.entry(label).or_default().push(i));
    let centre = |of: &[usize]| {
        let mut sum = vec![0.0f32; rows.width()];
        of.iter().for_each(|&i| sum.iter_mut().zip(rows.row(i)).for_each(|(sum, x)| *sum += x));
        sum
    };
    let centres: Vec<(&str, Vec<f32>)> = members.iter().map(|(label, of)| (*label, centre(of))).collect();
    let (mut n_own, mut silhouette) = (0, 0.0);
    for (i, label) in labels.iter().enumerate() {
        let near = |a: &&(&str, Vec<f32>), b: &&(&str, Vec<f32>)| {
            cosine(&a.1, rows.row(i)).total_cmp(&cosine(&b.1, rows.row(i)))
        };
        n_own += usize::from(centres.iter().max_by(near).is_some_and(|(own, _)| own == label));
        let distance = |of: &[usize]| {
            let others: Vec<f64> =
                of.iter().filter(|&&j| j != i).map(|&j| 1.0 - cosine(rows.row(i), rows.row(j))).collect();
            others.iter().sum::<f64>() / others.len().max(1) as f64
        };
        let own = distance(&members[label.as_str()]);
        let other =
            members.iter().filter(|(name, _)| *name != label).map(|(_, of)| distance(of)).fold(f64::INFINITY, f64::min);
        if members[label.as_str()].len() > 1 && other.is_finite() && own.max(other) > 0.0 {
            silhouette += (other - own) / own.max(other);
        }
    }
    let n = labels.len().max(1) as f64;
    (n_own as f64 / n, silhouette / n)
}

impl EmbeddingArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let texts: Vec<Labelled> = read(&self.texts)?;
        let reference: Option<Vec<Embedded>> = self.reference.as_deref().map(read).transpose()?;
        if let Some((path, others)) =
            self.reference.as_ref().zip(reference.as_ref()).filter(|(_, o)| o.len() != texts.len())
        {
            let (n, m) = (texts.len(), others.len());
            return Err(Error::failure(format_args!("{}: {m} embeddings for {n} texts", path.display())));
        }
        let embedder = self.embedder.name(app)?;
        let mut rows = Rows::new(embedder.dim());
        let all = texts.iter().map(|text| text.text.as_str());
        embed_all(app, &embedder, all, &mut |vector| rows.push(&vector).map_err(Error::failure))?;
        let mut report = json!({ "n": texts.len(), "dim": embedder.dim() });
        if let Some((path, others)) = self.reference.as_ref().zip(reference) {
            if others.iter().any(|other| other.embedding.len() != rows.width()) {
                let (n, m, width) = (rows.len(), others.len(), rows.width());
                let line =
                    format!("{}: {m} embeddings for {n} texts of {width} values, or of another width", path.display());
                return Err(Error::failure(line));
            }
            let cosines: Vec<f64> =
                rows.iter().zip(&others).map(|(own, other)| cosine(own, &other.embedding)).collect();
            report["cosine_min"] = json!(cosines.iter().copied().fold(f64::INFINITY, f64::min));
            report["cosine_mean"] = json!(cosines.iter().sum::<f64>() / cosines.len().max(1) as f64);
        }
        let labels: Vec<String> = texts.into_iter().map(|text| text.label).collect();
        if labels.iter().any(|label| *label != labels[0]) {
            let bar = app.ui.spinner("searching");
            let ((mrr, ndcg, n_asked), (purity, silhouette)) = (search(&rows, &labels), clusters(&rows, &labels));
            bar.finish_and_clear();
            report["search"] = json!({ "n": n_asked, "mrr": mrr, "ndcg_10": ndcg });
            report["clusters"] = json!({ "purity": purity, "silhouette": silhouette });
        }
        if self.output.json {
            return print_json(&report);
        }
        let shown = |pointer: &str, name: &str| {
            report.pointer(pointer).and_then(serde_json::Value::as_f64).map(|x| format!("{name} {x:.4}"))
        };
        let all = [
            shown("/cosine_min", "least cosine with the reference"),
            shown("/search/mrr", "MRR"),
            shown("/search/ndcg_10", "NDCG@10"),
            shown("/clusters/purity", "nearest centre is its own"),
            shown("/clusters/silhouette", "silhouette"),
        ];
        print_line(&format!("{} texts", labels.len()))?;
        all.into_iter().flatten().try_for_each(|line| print_line(&line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(all: &[[f32; 2]]) -> Rows {
        let mut rows = Rows::new(2);
        all.iter().for_each(|row| rows.push(row).expect("it fits"));
        rows
    }

    #[test]
    fn what_lies_together_is_found_together() {
        let labels = ["a", "a", "b", "b"].map(str::to_owned);
        let apart = rows(&[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]);
        assert_eq!(search(&apart, &labels), (1.0, 1.0, 4));
        let (purity, silhouette) = clusters(&apart, &labels);
        assert!(purity == 1.0 && silhouette > 0.9, "{silhouette}");
        let mixed = rows(&[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]);
        let (mrr, ndcg, _) = search(&mixed, &labels);
        assert!(mrr < 0.6 && ndcg < 0.7, "{mrr} {ndcg}");
        assert!(clusters(&mixed, &labels).1 < 0.0);
    }
}
