//! Extremely randomised trees (Geurts, Ernst and Wehenkel 2006, doi:10.1007/s10994-006-6226-1): how hard a query is often
//! hangs on two things at once (a sum, and of long numbers), which a line through all features cannot say.

use std::ops::ControlFlow;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::{RouterError, invalid, stopped};
use crate::math::unit;
use crate::rows::Rows;
use crate::state::{Reader, Writer};

/// The share of all features that a node looks at, those that differ in it.
const LOOKED_AT: f32 = 0.3;
/// The fewest rows of a leaf.
const N_LEAF_MIN: usize = 3;
/// Nodes of saved trees: numbers up to there are exact in single precision.
const N_NODES_MAX: usize = 1 << 24;
/// Values of a saved node.
const NODE_VALUES: usize = 3;

/// A node: rows whose value is below the threshold go to the next node, the others to `right`. In a leaf `right` is 0 and
/// `at` is the place of its values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    /// The feature's number; in a leaf, that of its values.
    at: u32,
    threshold: f32,
    right: u32,
}

/// Trees whose mean is taken. Without trees it knows nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Forest {
    n_in: usize,
    n_out: usize,
    roots: Vec<u32>,
    nodes: Vec<Node>,
    /// `[n_leaves, n_out]`
    leaves: Vec<f32>,
}

impl Forest {
    /// Grows trees over the rows `learned` of inputs (`[n, n_in]`) to expect their targets (`[n, n_out]`), asking `go_on` after each.
    ///
    /// # Errors
    /// `go_on` asked to stop.
    pub(crate) fn grow(
        inputs: &Rows,
        targets: &[&[Option<f32>]],
        learned: &[usize],
        n_trees: usize,
        seed: u64,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Forest, RouterError> {
        let (n_in, n_out) = (inputs.width(), targets.first().map_or(0, |row| row.len()));
        let mut columns = vec![0.0; n_in * learned.len()];
        for (row, &i) in learned.iter().enumerate() {
            for (feature, &x) in inputs.row(i).iter().enumerate() {
                columns[feature * learned.len() + row] = x;
            }
        }
        let targets: Vec<&[Option<f32>]> = learned.iter().map(|&i| targets[i]).collect();
        let mut forest = Forest { n_in, n_out, ..Forest::default() };
        for tree in 0..n_trees {
            let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_add(tree as u64));
            let mut rows: Vec<u32> = (0..learned.len() as u32).collect();
            let mut features: Vec<u32> = (0..n_in as u32).collect();
            forest.roots.push(forest.nodes.len() as u32);
            let mut grower =
                Grower { forest: &mut forest, columns: &columns, targets: &targets, features: &mut features };
            grower.grow(&mut rows, &vec![0.5; n_out], &mut random);
            if go_on().is_break() {
                return Err(stopped());
            }
        }
        Ok(forest)
    }

    /// Adds what is expected of a row to `sums`, times `share`.
    pub(crate) fn add(&self, x: &[f32], share: f32, sums: &mut [f32]) {
        let share = share / self.roots.len().max(1) as f32;
        for &root in &self.roots {
            let mut node = self.nodes[root as usize];
            let mut place = root;
            while node.right != 0 {
                place = if x[node.at as usize] < node.threshold { place + 1 } else { node.right };
                node = self.nodes[place as usize];
            }
            let leaf = node.at as usize * self.n_out;
            crate::math::add_scaled(sums, share, &self.leaves[leaf..leaf + self.n_out]);
        }
    }

    /// Returns the number of values that were learned.
    pub(crate) fn n_parameters(&self) -> usize {
        self.nodes.len() + self.leaves.len()
    }

    /// Saves it under names that begin with `name`.
    pub(crate) fn write(&self, writer: &mut Writer, name: &str) {
        let nodes: Vec<f32> =
            self.nodes.iter().flat_map(|node| [node.at as f32, node.threshold, node.right as f32]).collect();
        let roots: Vec<f32> = self.roots.iter().map(|&root| root as f32).collect();
        writer.table(&format!("{name}.nodes"), &[self.nodes.len(), NODE_VALUES], &nodes);
        writer.table(&format!("{name}.roots"), &[roots.len(), 1], &roots);
        writer.table(&format!("{name}.leaves"), &[self.leaves.len() / self.n_out.max(1), self.n_out], &self.leaves);
    }

    /// Reads what [`Forest::write`] wrote, so that every walk through it ends.
    pub(crate) fn read(reader: &Reader, name: &str, n_in: usize, n_out: usize) -> Result<Forest, RouterError> {
        let nodes = reader.rows(&format!("{name}.nodes"), NODE_VALUES)?;
        let roots = reader.rows(&format!("{name}.roots"), 1)?;
        let leaves = reader.rows(&format!("{name}.leaves"), n_out)?;
        let (n_nodes, n_leaves) = (nodes.len() / NODE_VALUES, leaves.len() / n_out);
        let whole = |x: f32, n: usize| (x >= 0.0 && x.fract() == 0.0 && (x as usize) < n).then_some(x as u32);
        let node = |(i, node): (usize, &[f32])| {
            let right = whole(node[2], n_nodes)?;
            let at = whole(node[0], if right == 0 { n_leaves } else { n_in })?;
            // Both ways lead further down the list.
            (right == 0 || right as usize > i + 1).then_some(Node { at, threshold: node[1], right })
        };
        let nodes: Option<Vec<Node>> = nodes.chunks_exact(NODE_VALUES).enumerate().map(node).collect();
        let roots: Option<Vec<u32>> = roots.iter().map(|&root| whole(root, n_nodes)).collect();
        match nodes.zip(roots) {
            Some((nodes, roots)) if n_nodes <= N_NODES_MAX => Ok(Forest { n_in, n_out, roots, nodes, leaves }),
            _ => Err(invalid(format!("the trees {name} of a saved state lead nowhere"))),
        }
    }
}

/// What is known of some rows: of each output how many know it, and the sum.
#[derive(Clone, Default)]
struct Sums(Vec<(f32, f32)>);

impl Sums {
    fn clear(&mut self, n_out: usize) {
        self.0.clear();
        self.0.resize(n_out, (0.0, 0.0));
    }

    fn add(&mut self, targets: &[Option<f32>]) {
        for ((n, sum), target) in self.0.iter_mut().zip(targets) {
            if let Some(target) = target {
                (*n, *sum) = (*n + 1.0, *sum + target);
            }
        }
    }

    /// The squares that means of these rows explain, and those of the rest of `all`.
    fn explained(&self, all: &Sums) -> f32 {
        let square = |n: f32, sum: f32| if n > 0.0 { sum * sum / n } else { 0.0 };
        let of_both =
            |(own, all): (&(f32, f32), &(f32, f32))| square(own.0, own.1) + square(all.0 - own.0, all.1 - own.1);
        self.0.iter().zip(&all.0).map(of_both).sum()
    }

    /// Means, or what is expected without any rows.
    fn means(&self, expected: &[f32]) -> Vec<f32> {
        let mean = |(&(n, sum), &expected): (&(f32, f32), &f32)| if n > 0.0 { sum / n } else { expected };
        self.0.iter().zip(expected).map(mean).collect()
    }
}

struct Grower<'a> {
    forest: &'a mut Forest,
    /// `[n_in, n]`
    columns: &'a [f32],
    targets: &'a [&'a [Option<f32>]],
    /// All features, in an order that is drawn anew at each node.
    features: &'a mut [u32],
}

impl Grower<'_> {
    /// Grows what is below some rows; `expected` is what is expected of them so far.
    fn grow(&mut self, rows: &mut [u32], expected: &[f32], random: &mut ChaCha8Rng) {
        let n_out = self.forest.n_out;
        let mut all = Sums::default();
        all.clear(n_out);
        rows.iter().for_each(|&row| all.add(self.targets[row as usize]));
        let means = all.means(expected);
        let place = self.forest.nodes.len();
        let Some((feature, threshold)) = self.split(rows, &all, random) else {
            let at = (self.forest.leaves.len() / n_out) as u32;
            self.forest.nodes.push(Node { at, threshold: 0.0, right: 0 });
            self.forest.leaves.extend(means);
            return;
        };
        self.forest.nodes.push(Node { at: feature, threshold, right: 0 });
        let column = self.column(feature);
        let mut n_left = 0;
        for i in 0..rows.len() {
            if column[rows[i] as usize] < threshold {
                rows.swap(i, n_left);
                n_left += 1;
            }
        }
        let (left, right) = rows.split_at_mut(n_left);
        self.grow(left, &means, random);
        self.forest.nodes[place].right = self.forest.nodes.len() as u32;
        self.grow(right, &means, random);
    }

    fn column(&self, feature: u32) -> &[f32] {
        let n = self.targets.len();
        &self.columns[feature as usize * n..][..n]
    }

    /// Returns the best of some random ways to divide rows: one threshold for each of some features.
    fn split(&mut self, rows: &[u32], all: &Sums, random: &mut ChaCha8Rng) -> Option<(u32, f32)> {
        if rows.len() < 2 * N_LEAF_MIN
            || rows.iter().all(|&row| self.targets[row as usize] == self.targets[rows[0] as usize])
        {
            return None;
        }
        let n_in = self.features.len();
        let mut n_to_look = (LOOKED_AT * n_in as f32).ceil() as usize;
        let (mut best, mut most, mut left) = (None, f32::NEG_INFINITY, Sums::default());
        for i in 0..n_in {
            self.features.swap(i, i + (random.next_u64() % (n_in - i) as u64) as usize);
            let feature = self.features[i];
            let column = self.column(feature);
            let values = rows.iter().map(|&row| column[row as usize]);
            let (low, high) =
                values.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
            // Equal values cannot be divided, and do not count as looked at.
            let threshold = high - unit(random) * (high - low);
            if threshold.partial_cmp(&low).is_none_or(|order| order.is_le()) {
                continue;
            }
            left.clear(self.forest.n_out);
            let mut n_below = 0;
            for &row in rows.iter().filter(|&&row| column[row as usize] < threshold) {
                left.add(self.targets[row as usize]);
                n_below += 1;
            }
            let explained = left.explained(all);
            if n_below >= N_LEAF_MIN && rows.len() - n_below >= N_LEAF_MIN && explained > most {
                (best, most) = (Some((feature, threshold)), explained);
            }
            n_to_look -= 1;
            if n_to_look == 0 {
                break;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two outputs of four values: one hangs on two of them at once, the other on one, and is known of every third row only.
    fn grown() -> Forest {
        let (mut inputs, mut targets) = (Rows::new(4), Vec::new());
        for i in 0..400u16 {
            let x = [0, 1, 2, 3].map(|bit| f32::from((i >> bit) & 1));
            inputs.push(&x).unwrap();
            targets.push([Some(f32::from(x[0] != x[1])), (i % 3 == 0).then_some(x[2])]);
        }
        let targets: Vec<&[Option<f32>]> = targets.iter().map(|row| &row[..]).collect();
        let learned: Vec<usize> = (0..300).collect();
        Forest::grow(&inputs, &targets, &learned, 20, 7, &mut || ControlFlow::Continue(())).unwrap()
    }

    fn expected(forest: &Forest, x: [f32; 4]) -> [f32; 2] {
        let mut sums = [0.0; 2];
        forest.add(&x, 1.0, &mut sums);
        sums
    }

    #[test]
    fn what_hangs_on_two_values_at_once_is_found() {
        let forest = grown();
        for (x, found) in
            [([0.0; 4], [0.0, 0.0]), ([1.0, 0.0, 1.0, 0.0], [1.0, 1.0]), ([1.0, 1.0, 0.0, 1.0], [0.0, 0.0])]
        {
            let told = expected(&forest, x);
            assert!(told.iter().zip(found).all(|(a, b)| (a - b).abs() < 0.1), "{x:?}: {told:?}");
        }
        assert_eq!(forest, grown());
        assert_eq!(expected(&Forest::default(), [1.0; 4]), [0.0; 2]);
    }

    #[test]
    fn trees_come_back_and_those_that_lead_nowhere_do_not() {
        let forest = grown();
        let read = |forest: &Forest| {
            let mut writer = Writer::default();
            forest.write(&mut writer, "f");
            let bytes = writer.finish(&json!({ "kind": "trees", "version": 1 }));
            Forest::read(&Reader::new(&bytes, "trees").unwrap(), "f", 4, 2)
        };
        assert_eq!(read(&forest).unwrap(), forest);
        let n_nodes = forest.nodes.len() as u32;
        let wrong = |change: &dyn Fn(&mut Forest)| {
            let mut forest = forest.clone();
            change(&mut forest);
            read(&forest).unwrap_err().to_string()
        };
        let inner = forest.nodes.iter().position(|node| node.right != 0).unwrap();
        // Both ways the same, out of the list, to a feature or a leaf that is not there, from nowhere.
        for line in [
            wrong(&|forest| forest.nodes[inner].right = inner as u32 + 1),
            wrong(&|forest| forest.nodes[inner].right = n_nodes),
            wrong(&|forest| forest.nodes[inner].at = 4),
            wrong(&|forest| forest.nodes.last_mut().unwrap().at = n_nodes),
            wrong(&|forest| forest.roots[0] = n_nodes),
        ] {
            assert!(line.contains("lead nowhere"), "{line}");
        }
    }
}
