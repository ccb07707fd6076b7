//! Forward hooks of the native backend.

use std::sync::Arc;

use bytes::Bytes;
use ruvllm_backend::{BackendError, BackendErrorKind, ForwardHooks, InputObserver};
use ruvllm_kernels::GgmlType;
use ruvllm_kernels::matmul::Matrix;

use super::NativeBackend;
use crate::kernels::Hooks;

impl NativeBackend {
    /// Changes the hooks; none are left where there is nothing to do for them.
    fn change_hooks(&mut self, change: impl FnOnce(&mut Hooks)) {
        let mut hooks = self.compute.hooks.take().map_or_else(Hooks::default, Arc::unwrap_or_clone);
        change(&mut hooks);
        let is_used = hooks.observer.is_some() || !hooks.matrices.is_empty() || hooks.tokens.is_some();
        self.compute.hooks = is_used.then(|| Arc::new(hooks));
    }
}

impl ForwardHooks for NativeBackend {
    fn set_input_observer(&mut self, observer: Option<Arc<dyn InputObserver>>) {
        self.change_hooks(|hooks| hooks.observer = observer);
    }

    fn replace_weights(&mut self, tensor: &str, ty: GgmlType, weights: Vec<u8>) -> Result<(), BackendError> {
        let wrong = |line: String| BackendError::new(BackendErrorKind::Options, format!("tensor '{tensor}': {line}"));
        let info =
            self.file.tensor(tensor).ok_or_else(|| wrong("the model's file has none of this name".to_owned()))?;
        let (n_cols, n_rows) = (info.shape[0], info.shape[1..].iter().product::<usize>());
        let row_bytes = ty.row_bytes(n_cols).filter(|_| Matrix::supports(ty));
        let row_bytes = row_bytes.ok_or_else(|| wrong(format!("rows of {n_cols} values cannot be {ty}")))?;
        if row_bytes * n_rows != weights.len() {
            let (need, have) = (row_bytes * n_rows, weights.len());
            return Err(wrong(format!("{n_rows} rows of {n_cols} values in {ty} have {need} bytes, not {have}")));
        }
        let weights = Bytes::from(weights);
        let all = self.model.spec.linears();
        let (table, threads) = (self.compute.kernels.matmul, &self.compute.threads);
        let matrices: Vec<_> = all
            .iter()
            .filter(|linear| linear.weight.tensor == tensor)
            .map(|linear| {
                let rows = &linear.weight.rows;
                let bytes = weights.slice(rows.start * row_bytes..rows.end * row_bytes);
                (linear.id, Matrix::new(table, threads, ty, rows.len(), n_cols, bytes))
            })
            .collect();
        let is_table = self.model.spec.input.tokens.tensor == tensor;
        if matrices.is_empty() && !is_table {
            return Err(wrong("the model multiplies with none of its rows".to_owned()));
        }
        self.change_hooks(|hooks| {
            hooks.matrices.extend(matrices);
            if is_table {
                hooks.tokens = Some((ty, weights));
            }
        });
        Ok(())
    }

    fn restore_weights(&mut self) {
        self.change_hooks(|hooks| (hooks.matrices, hooks.tokens) = Default::default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
    use ruvllm_testkit::Golden;

    use super::*;
    use crate::load::LoadOptions;

    /// Rows that each linear layer was given.
    #[derive(Default)]
    struct Kept(Mutex<BTreeMap<usize, Vec<f32>>>);

    impl InputObserver for Kept {
        fn input(&self, linear: usize, x: &[f32]) {
            self.0.lock().expect("nobody panics with it").entry(linear).or_default().extend(x);
        }
    }

    fn load(golden: &Golden) -> NativeBackend {
        let options = LoadOptions { prefix_cache: false, n_threads: 2, ..LoadOptions::default() };
        NativeBackend::load(&golden.model("f32"), &options, &mut |_| {}).expect("it loads")
    }

    /// Bits of all logits.
    fn logits(model: &mut NativeBackend, tokens: &[u32]) -> Vec<u32> {
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a free sequence");
        let states = model.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits");
        let bits = states.logits.iter().map(|x| x.to_bits()).collect();
        model.close(seq);
        bits
    }

    #[test]
    fn observers_are_told_every_product_and_change_nothing() {
        for name in ["llama-a", "qwen3moe-a", "deepseek2-b", "falcon-h1-a", "lfm2-a"] {
            let golden = Golden::load(name);
            let mut model = load(&golden);
            let expected = logits(&mut model, &golden.tokens);
            let kept = Arc::new(Kept::default());
            model.set_input_observer(Some(kept.clone()));
            assert_eq!(logits(&mut model, &golden.tokens), expected, "{name}");
            model.set_input_observer(None);
            assert!(model.compute.hooks.is_none());
            let kept = std::mem::take(&mut *kept.0.lock().expect("nobody panics with it"));
            assert_eq!(logits(&mut model, &golden.tokens), expected, "{name}");
            let n_tokens = golden.tokens.len();
            for linear in model.model.spec.linears() {
                let n_rows = kept.get(&linear.id).map_or(0, |rows| rows.len() / linear.n_in());
                // Experts see some of the rows only.
                let is_right = if linear.name.contains("_exps") { n_rows <= n_tokens } else { n_rows == n_tokens };
                assert!(is_right, "{name}: {} was given {n_rows} of {n_tokens} rows", linear.name);
            }
        }
    }

    #[test]
    fn inputs_are_those_of_the_first_product() {
        let golden = Golden::load("llama-a");
        let mut model = load(&golden);
        let kept = Arc::new(Kept::default());
        model.set_input_observer(Some(kept.clone()));
        logits(&mut model, &golden.tokens);
        let file = Arc::clone(model.file());
        let values = |name: &str| -> Vec<f32> {
            let tensor = file.tensor(name).expect("the model has it");
            file.data(tensor).as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
        };
        let (tokens, weight) = (values("token_embd.weight"), values("blk.0.attn_norm.weight"));
        let eps =
            file.metadata().f32("llama.attention.layer_norm_rms_epsilon").expect("a number").expect("it is there");
        let (n, kept) = (weight.len(), kept.0.lock().expect("nobody panics with it"));
        for (row, &token) in kept[&0].chunks_exact(n).zip(&golden.tokens) {
            let x = &tokens[token as usize * n..][..n];
            let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / n as f64;
            for ((&x, &w), &got) in x.iter().zip(&weight).zip(row) {
                let expected = f64::from(x) / (square + f64::from(eps)).sqrt() * f64::from(w);
                assert!((expected - f64::from(got)).abs() < 1e-5, "{expected} and {got}");
            }
        }
    }

    #[test]
    fn other_weights_are_computed_with_until_they_are_taken_back() {
        for (name, tensors) in [
            ("llama-a", &["blk.1.ffn_down.weight", "token_embd.weight", "output.weight"][..]),
            ("gemma3-a", &["token_embd.weight"]),
            ("phi3-a", &["blk.0.attn_qkv.weight"]),
            ("qwen3moe-a", &["blk.0.ffn_up_exps.weight"]),
        ] {
            let golden = Golden::load(name);
            let mut model = load(&golden);
            let expected = logits(&mut model, &golden.tokens);
            for tensor in tensors {
                let Some(info) = model.file().tensor(tensor) else { panic!("{name} has no {tensor}") };
                let (ty, data) = (info.ty, model.file().data(info).to_vec());
                model.replace_weights(tensor, ty, data.clone()).expect("weights of its size");
                assert_eq!(logits(&mut model, &golden.tokens), expected, "{name}: the same weights");
                let half = data.as_chunks().0.iter().flat_map(|&x| (0.5 * f32::from_le_bytes(x)).to_le_bytes());
                model.replace_weights(tensor, ty, half.collect()).expect("weights of its size");
                assert_ne!(logits(&mut model, &golden.tokens), expected, "{name}: half of {tensor}");
                model.restore_weights();
                assert_eq!(logits(&mut model, &golden.tokens), expected, "{name}: taken back");
            }
        }
    }

    #[test]
    fn weights_that_do_not_fit_cost_one_line() {
        let mut model = load(&Golden::load("llama-a"));
        let mut check = |tensor: &str, ty: GgmlType, n_bytes: usize, part: &str| {
            let error = model.replace_weights(tensor, ty, vec![0; n_bytes]).expect_err("it does not fit").to_string();
            assert!(error.contains(part) && error.contains(tensor), "{error}");
        };
        check("no.weight", GgmlType::F32, 4, "has none of this name");
        check("blk.0.attn_q.weight", GgmlType::F32, 4, "have 16384 bytes, not 4");
        check("blk.0.attn_q.weight", GgmlType::Q4_K, 4, "cannot be Q4_K");
        check("blk.0.attn_norm.weight", GgmlType::F32, 256, "multiplies with none");
    }
}
