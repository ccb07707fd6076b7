//! MicroLoRAs inside the last block.

use super::*;

/// Values that have less to do with each other than those of `noise`.
fn drawn(n: usize, seed: u64) -> Vec<f32> {
    Factors::drawn(1, n, 1, 1.0, seed).a
}

fn squares(n_embd: usize, n_inner: usize) -> Arc<Squares> {
    Arc::new(Squares { n_embd, n_inner, square: 0.5, x_size: 0.5 })
}

/// One that has learned behind the model and inside its last block.
fn inside(block: &Arc<Squares>, rank: usize, seed: u64) -> MicroLora {
    let micro = MicroLora::new(block.n_embd, rank, 0.8, 5)
        .and_then(|micro| micro.inside(Arc::clone(block) as Arc<dyn FinalBlock>));
    let mut micro = micro.expect("a width");
    for (i, values) in micro.values_mut().enumerate().filter(|(i, _)| i % 2 == 1) {
        let learned = drawn(values.len(), seed + i as u64);
        values.iter_mut().zip(learned).for_each(|(x, y)| *x = 0.2 * y);
    }
    micro
}

#[test]
fn gradients_inside_a_block_are_finite_differences() {
    let (n, n_vocab, target) = (20, 30, 17);
    let block = squares(n, 12);
    let (hidden, stream, head) = (drawn(3 * n, 1), drawn(3 * n, 7), Head(drawn(n_vocab * n, 2), n));
    let rows = StateRows { hidden: &hidden, stream: &stream };
    let mut micro = inside(&block, 2, 9);
    let loss = |micro: &MicroLora| -> (f64, Vec<Vec<(u32, f32)>>) {
        let mut changed = vec![0.0; hidden.len()];
        micro.forward(rows, &mut changed);
        let of = |h: &[f32]| {
            let logits: Vec<f64> = head.0.chunks_exact(n).map(|w| f64::from(dot(w, h))).collect();
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            let p = logits.iter().enumerate().map(|(i, x)| (i as u32, (x.exp() / sum) as f32)).collect::<Vec<_>>();
            (sum.ln() - logits[target], p)
        };
        let (losses, p): (Vec<f64>, Vec<_>) = changed.chunks_exact(n).map(of).unzip();
        (losses.iter().sum(), p)
    };
    let (mut gradient, mut row, (_, p)) = (micro.gradient_buffer(), vec![0.0; n], loss(&micro));
    let mut errors = |_: &[f32], g: &mut [f32]| {
        p.iter().zip(g.chunks_exact_mut(n)).for_each(|(p, g)| of_state(p, target as u32, &head, g, &mut row));
    };
    micro.learn(&micro, rows, &mut errors, &mut gradient, 1.0);
    let found: Vec<Vec<f32>> = gradient.values().map(<[f32]>::to_vec).collect();
    assert_eq!(found.len(), 4);
    for (part, found) in found.iter().enumerate() {
        let largest = found.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        assert!(largest > 1e-2, "part {part} has a gradient");
        for (i, &found) in found.iter().enumerate().step_by(3) {
            let at = |step: f32| {
                let mut moved = micro.clone();
                moved.values_mut().nth(part).expect("a part")[i] += step;
                loss(&moved).0
            };
            // Of the fourth order: states are of 32 bits.
            let h = 1e-2;
            let expected = (8.0 * (at(h) - at(-h)) - at(2.0 * h) + at(-2.0 * h)) / (12.0 * f64::from(h));
            let bound = 1e-2 * f64::from(largest);
            assert!((f64::from(found) - expected).abs() < bound, "part {part}, {i}: {found} for {expected}");
        }
    }
    // A step against it makes the loss smaller, and it goes on from a snapshot to the bit once it has its block.
    let (before, options) = (loss(&micro).0, UpdateOptions::sgd(0.02));
    assert!(micro.update(&mut gradient, &options) && loss(&micro).0 < before - 1e-3);
    let again = MicroLora::restore(&micro.snapshot()).expect("a snapshot");
    assert!(!again.is_inside());
    let again = again.inside(block).expect("the block");
    assert_eq!((loss(&again).0.to_bits(), again), (loss(&micro).0.to_bits(), micro.clone()));
    assert!(micro.clone().inside(squares(n, 10)).is_err() && micro.clone().inside(squares(24, 12)).is_err());
    assert!(micro.export("micro", n_vocab, &head).is_err());
}

#[test]
fn what_sits_inside_a_block_is_merged_and_bounded_with_the_rest() {
    let n = 20;
    let block = squares(n, 12);
    let (one, two) = (inside(&block, 2, 9), inside(&block, 2, 11));
    let (hidden, stream) = (drawn(2 * n, 1), drawn(2 * n, 7));
    let rows = StateRows { hidden: &hidden, stream: &stream };
    let change = |micro: &MicroLora| -> Vec<f32> {
        let mut changed = vec![0.0; 2 * n];
        micro.forward(rows, &mut changed);
        changed.iter().zip(&hidden).map(|(x, h)| x - h).collect()
    };
    let near = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-4);
    // Rows of several in one pass are rows of each, whatever part of its change is made.
    let (whole, half) = (change(&one), one.weakened(0.5));
    assert!(near(&change(&half), &whole.iter().map(|x| 0.5 * x).collect::<Vec<_>>()));
    let mut mixed = vec![0.0; 2 * n];
    MicroLora::forward_each(&[(&half, 1), (&two, 1)], rows, &mut mixed);
    let mut expected = vec![0.0; 2 * n];
    half.forward(rows.row(0, n), &mut expected[..n]);
    two.forward(rows.row(1, n), &mut expected[n..]);
    assert_eq!(mixed, expected);
    // Merged into a base it changes the same; the base of one that had no inside gets one.
    let plain = MicroLora::new(n, 2, 0.8, 5).expect("a rank");
    for mut base in
        [one.empty_base(8).expect("a rank"), plain.empty_base(8).expect("a rank").inside(block).expect("a width")]
    {
        base.absorb(1.0, &one, 1.0).expect("one width");
        assert!(near(&change(&base), &whole));
        let mut faded = one.clone();
        faded.fade(0.0);
        assert!(near(&change(&faded.beside(&base).expect("one width")), &whole));
    }
    let bare = plain.empty_base(8).expect("a rank");
    assert_eq!(change(&one.beside(&bare).expect("one width")), whole);
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let share = length(&whole[..n]) / length(&hidden[..n]);
    let bound = change(&one.clone().within(0.25 * share).expect("a share"));
    assert!(near(&bound[..n], &whole[..n].iter().map(|x| 0.25 * x).collect::<Vec<_>>()));
}
