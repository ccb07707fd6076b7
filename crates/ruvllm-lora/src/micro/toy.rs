//! A block for tests and measurements that are not about a block.

use super::{EachRow, FinalBlock, Inner};

/// Has as many values inside as it is told, each of the stream's in turn, of which each moves its value of the final state by its square:
/// `u[j] = x[j mod n_embd]` and what is added, `moves[i] = square·Σ(u² - x²)` over the `u` of value `i`. It computes next to nothing.
#[derive(Clone, Copy, Debug)]
pub struct Squares {
    /// Width of the stream.
    pub n_embd: usize,
    /// Values inside.
    pub n_inner: usize,
    /// Change of a square.
    pub square: f32,
    /// Size of its values.
    pub x_size: f32,
}

impl Squares {
    fn inner(&self, row: usize, x: &[f32], inner: &dyn Inner) -> Vec<f32> {
        let mut u: Vec<f32> = x.iter().copied().cycle().take(self.n_inner).collect();
        // As in a block whose products lie apart.
        let (gate, up) = u.split_at_mut(self.n_inner / 2);
        inner.add(row, x, 0, gate);
        inner.add(row, x, self.n_inner / 2, up);
        u
    }
}

impl FinalBlock for Squares {
    fn n_embd(&self) -> usize {
        self.n_embd
    }

    fn n_inner(&self) -> usize {
        self.n_inner
    }

    fn x_size(&self) -> f32 {
        self.x_size
    }

    fn forward(&self, stream: &[f32], inner: &dyn Inner, states: &mut [f32], out: &mut [f32]) {
        states.copy_from_slice(stream);
        out.fill(0.0);
        for (row, (x, out)) in stream.chunks_exact(self.n_embd).zip(out.chunks_exact_mut(self.n_embd)).enumerate() {
            for u in self.inner(row, x, inner).chunks(self.n_embd) {
                out.iter_mut().zip(u.iter().zip(x)).for_each(|(out, (u, x))| *out += self.square * (u * u - x * x));
            }
        }
    }

    fn backward(
        &self,
        stream: &[f32],
        inner: &dyn Inner,
        errors: &mut dyn FnMut(&[f32], &mut [f32]),
        each: &mut EachRow<'_>,
    ) {
        let (mut differences, mut gradients) = (vec![0.0; stream.len()], vec![0.0; stream.len()]);
        self.forward(stream, inner, &mut vec![0.0; stream.len()], &mut differences);
        errors(&differences, &mut gradients);
        for (row, (x, g)) in stream.chunks_exact(self.n_embd).zip(gradients.chunks_exact(self.n_embd)).enumerate() {
            let u = self.inner(row, x, inner);
            each(row, x, &u.iter().zip(g.iter().cycle()).map(|(u, g)| 2.0 * self.square * u * g).collect::<Vec<f32>>());
        }
    }
}
