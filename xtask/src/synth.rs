//! `cargo xtask synth`: GGUF files of the shapes that people run, with random weights, so that anybody can measure them without
//! a download. What such a model writes makes no sense; how fast it writes it, and in how much memory, is that of the real one.

mod blocks;
mod recipe;
mod shapes;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ruvllm_gguf::{GgufWriter, TensorData};

use blocks::Blocks;
use recipe::Recipe;
use shapes::Shape;

/// What `cargo xtask synth` makes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model whose shape it has
    #[arg(long, value_name = "NAME", value_parser = shapes::names())]
    shape: String,
    /// How its weights are quantised
    #[arg(long = "type", value_name = "TYPE", value_parser = recipe::names(), default_value = "Q4_K_M")]
    recipe: String,
    /// Seed of the weights
    #[arg(long, value_name = "S", default_value_t = 7)]
    seed: u64,
    /// Where to write [default: target/synth/SHAPE-TYPE.gguf]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Makes the file and prints where it lies.
///
/// # Errors
/// It cannot be written, or the shape's rows are no whole blocks of the type.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (shape, recipe) = (shapes::find(&args.shape), recipe::find(&args.recipe));
    let path = args.out.clone().unwrap_or_else(|| default_path(&args.shape, &args.recipe));
    if path.exists() && args.out.is_none() {
        println!("{} is there", path.display());
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let n_bytes = write(&path, shape, recipe, args.seed)?;
    println!("{}: {:.2} GB", path.display(), n_bytes as f64 / 1e9);
    Ok(())
}

fn default_path(shape: &str, recipe: &str) -> PathBuf {
    crate::shell::root().join(format!("target/synth/{shape}-{}.gguf", recipe.to_ascii_lowercase()))
}

/// Writes a model; the bytes are made while they are written.
fn write(path: &Path, shape: &Shape, recipe: &Recipe, seed: u64) -> Result<u64> {
    let mut writer = GgufWriter::new();
    metadata(&mut writer, shape, recipe)?;
    for (number, tensor) in shape.tensors().into_iter().enumerate() {
        let ty = recipe.type_of(&tensor, shape);
        let n_in = tensor.dims[0];
        let n_bytes = ty.row_bytes(n_in).map(|row| row * tensor.dims[1..].iter().product::<usize>());
        let Some(n_bytes) = n_bytes else {
            bail!("rows of {n_in} values of {} are no whole blocks of {ty}", tensor.name)
        };
        let blocks: Box<dyn Read> = match tensor.is_norm() {
            true => Box::new(blocks::ones(n_in)),
            false => Box::new(Blocks::new(ty, n_bytes, (n_in as f32).powf(-0.5), seed ^ (number as u64) << 32)),
        };
        writer.add_tensor(tensor.name, ty, &tensor.dims, TensorData::Reader(blocks))?;
    }
    Ok(writer.write_file(path)?)
}

fn metadata(writer: &mut GgufWriter<'_>, shape: &Shape, recipe: &Recipe) -> Result<()> {
    let meta = writer.metadata_mut();
    meta.set("general.architecture", shape.arch);
    meta.set("general.name", format!("{} shape, random weights", shape.name));
    meta.set("general.file_type", recipe.file_type);
    for (key, value) in shape.counts() {
        meta.set(format!("{}.{key}", shape.arch), u32::try_from(value).context("a count of a shape")?);
    }
    meta.set(format!("{}.attention.layer_norm_rms_epsilon", shape.arch), 1e-5f32);
    meta.set(format!("{}.rope.freq_base", shape.arch), shape.rope_base);
    meta.set("tokenizer.ggml.model", "gpt2");
    meta.set("tokenizer.ggml.pre", shape.pre_tokenizer);
    meta.set("tokenizer.ggml.tokens", tokens(shape.n_vocab));
    meta.set("tokenizer.ggml.token_type", token_types(shape.n_vocab));
    meta.set("tokenizer.ggml.merges", vec!["t h".to_owned()]);
    meta.set("tokenizer.ggml.bos_token_id", shape.n_vocab as u32 - 2);
    meta.set("tokenizer.ggml.eos_token_id", shape.n_vocab as u32 - 1);
    Ok(())
}

/// The 256 bytes as GPT-2 spells them, one merge, names for the rest and two control tokens.
fn tokens(n_vocab: usize) -> Vec<String> {
    let is_printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut n_other = 0;
    let byte = |byte: u32| {
        let code = if is_printable(byte) {
            byte
        } else {
            n_other += 1;
            0xff + n_other
        };
        char::from_u32(code).expect("a code of two bytes").to_string()
    };
    let mut all: Vec<String> = (0..256).map(byte).collect();
    all.push("th".to_owned());
    all.extend((all.len()..n_vocab - 2).map(|id| format!("t{id}")));
    all.extend(["<|begin|>".to_owned(), "<|end|>".to_owned()]);
    all
}

/// Usual tokens, and the two control tokens at the end.
fn token_types(n_vocab: usize) -> Vec<i32> {
    let mut types = vec![1i32; n_vocab];
    types[n_vocab - 2..].fill(3);
    types
}

#[cfg(test)]
mod tests {
    use ruvllm_gguf::{GgmlType, GgufFile};

    use super::*;

    #[test]
    fn a_small_model_is_whole_and_the_same_for_a_seed() {
        let folder = tempfile::tempdir().expect("a folder");
        let shape = Shape {
            n_layers: 2,
            n_embd: 256,
            n_ff: 512,
            n_heads: 4,
            n_kv_heads: 2,
            n_vocab: 512,
            ..*shapes::find("llama8b")
        };
        let make = |name: &str, recipe: &str, seed| {
            let path = folder.path().join(name);
            write(&path, &shape, recipe::find(recipe), seed).expect("it can be written");
            (GgufFile::open(&path).expect("it is a GGUF file"), std::fs::read(&path).expect("a file"))
        };
        let (file, bytes) = make("a.gguf", "Q4_K_M", 7);
        assert_eq!(file.tensor("blk.1.attn_q.weight").map(|tensor| tensor.ty), Some(GgmlType::Q4_K));
        assert_eq!(file.tensor("output.weight").map(|tensor| tensor.ty), Some(GgmlType::Q6_K));
        assert_eq!(make("b.gguf", "Q4_K_M", 7).1, bytes);
        assert_ne!(make("c.gguf", "Q4_K_M", 8).1, bytes);
        for recipe in recipe::names() {
            make("d.gguf", recipe, 1);
        }
    }

    #[test]
    fn bytes_are_spelled_as_gpt2_spells_them() {
        let tokens = tokens(300);
        assert_eq!((tokens.len(), &*tokens[65], &*tokens[32], &*tokens[0]), (300, "A", "\u{120}", "\u{100}"));
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 300, "each token stands once");
    }
}
