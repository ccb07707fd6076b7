//! Adding up squared inputs while a model reads a text.

use std::collections::BTreeMap;

use ruvllm_gguf::TensorInfo;

use super::sums::{ImportanceSums, TensorSums};

/// Collector of squared inputs, to be told what the linear layers of a model are multiplied with. The sums of a window of text
/// are in double precision, and are added to others in single precision: a run that was broken off between windows comes to the
/// same bits as one that was not.
#[derive(Debug, Default)]
pub struct ImatrixCollector {
    entries: BTreeMap<String, Entry>,
    /// By number of the linear layer; none for later parts of a fused matrix, which read the same.
    targets: Vec<Option<Target>>,
}

/// Sums of a tensor in the window at hand.
#[derive(Debug)]
struct Entry {
    n_columns: usize,
    sums: Vec<f64>,
    counts: Vec<u64>,
}

/// Matrix of a tensor.
#[derive(Clone, Debug)]
struct Target {
    tensor: String,
    /// Its number among those of a tensor of experts.
    matrix: usize,
}

impl ImatrixCollector {
    /// Takes a linear layer, by its number: it multiplies with rows of a tensor, from `first_row` on (experts behind each other).
    pub fn watch(&mut self, linear: usize, tensor: &TensorInfo, first_row: usize) {
        let n_columns = tensor.shape[0];
        let n_rows = tensor.shape.get(1).copied().unwrap_or(1).max(1);
        let n_matrices = tensor.shape.get(2..).unwrap_or_default().iter().product::<usize>().max(1);
        if self.targets.len() <= linear {
            self.targets.resize(linear + 1, None);
        }
        let is_start = first_row.is_multiple_of(n_rows) && first_row / n_rows < n_matrices;
        self.targets[linear] = is_start.then(|| Target { tensor: tensor.name.clone(), matrix: first_row / n_rows });
        self.entries.entry(tensor.name.clone()).or_insert_with(|| Entry {
            n_columns,
            sums: vec![0.0; n_columns * n_matrices],
            counts: vec![0; n_matrices],
        });
    }

    /// Adds rows that a linear layer is multiplied with: `[n, n_columns]`. Others than those that are watched are passed over.
    pub fn add(&mut self, linear: usize, x: &[f32]) {
        let Some(Target { tensor, matrix }) = self.targets.get(linear).and_then(Option::as_ref) else { return };
        let Some(Entry { n_columns, sums, counts }) = self.entries.get_mut(tensor) else { return };
        let sums = &mut sums[matrix * *n_columns..][..*n_columns];
        for row in x.chunks_exact(*n_columns) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
        }
        counts[*matrix] += (x.len() / *n_columns) as u64;
    }

    /// Ends a window: adds what was told to `sums`, of which it is one chunk more, and begins anew.
    pub fn finish_window(&mut self, sums: &mut ImportanceSums) {
        for (name, entry) in &mut self.entries {
            let new = TensorSums {
                sums: entry.sums.iter().map(|&x| x as f32).collect(),
                counts: entry.counts.iter().map(|&n| n as f32).collect(),
            };
            sums.add(name, &new);
            clear(entry);
        }
        sums.n_chunks += 1;
    }

    /// Forgets a window that was not read to its end.
    pub fn drop_window(&mut self) {
        self.entries.values_mut().for_each(clear);
    }
}

fn clear(entry: &mut Entry) {
    entry.sums.fill(0.0);
    entry.counts.fill(0);
}
