//! The largest values of rows.

use ruvllm_shaders::{Extent, Kernel, Reduction, TopKParams};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

#[test]
fn largest_values_come_in_order() {
    for reduction in [Reduction::Subgroup, Reduction::Shared] {
        for (n, k) in [(1, 1), (5, 5), (1000, 1), (1000, 40)] {
            let mut random = Random::new(n as u64);
            // Few different numbers: many are equal.
            let x: Vec<f32> = (0..1 + 3 * (n + 2)).map(|_| random.below(50) as f32 - 25.0).collect();
            let params = TopKParams { n: n as u32, k: k as u32, x_offset: 1, x_stride: n as u32 + 2, count: 1 };
            let dispatch = Dispatch {
                kernel: Kernel::TopK { reduction },
                params: params.words(),
                extent: Extent { n: 1, rows: 3, slots: 1 },
                buffers: vec![x.clone().into(), vec![0u32; 3 * k].into(), vec![0.0f32; 3 * k].into()],
                pass: Pass::default(),
            };
            on_all(&dispatch, |name, written| {
                let values = floats(&written[1]);
                for row in 0..3 {
                    let x = &x[1 + row * (n + 2)..][..n];
                    let mut order: Vec<usize> = (0..n).collect();
                    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
                    for (i, index) in order.into_iter().take(k).enumerate() {
                        let at = row * k + i;
                        assert_eq!((written[0][at], values[at]), (index as u32, x[index]), "{name}: {i} of row {row}");
                    }
                }
            });
        }
    }
}
