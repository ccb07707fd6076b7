//! Steps in a basis.

use super::*;

/// Directions of planes turned by an angle: value `i` goes with value `i + n/2`.
fn turned_planes(n: usize, angle: f64) -> Basis {
    let mut directions = vec![0.0; n * n];
    for i in 0..n / 2 {
        let j = i + n / 2;
        (directions[i * n + i], directions[i * n + j]) = (angle.cos(), angle.sin());
        (directions[j * n + i], directions[j * n + j]) = (-angle.sin(), angle.cos());
    }
    Basis::new(n, &directions, Isa::best()).expect("a basis")
}

#[test]
fn steps_in_a_basis_are_steps_along_its_directions() {
    let (n, rank, angle) = (40, 3, 0.6f64);
    let plain = MicroLora::new(n, rank, 1.0, 5).expect("a rank");
    let micro = plain.clone().in_basis(Arc::new(turned_planes(n, angle))).expect("a width");
    let gradient = |seed: usize| of(noise(rank * n, seed), noise(rank * n, seed + 9));
    let near = |x: &MicroLora, y: &MicroLora| {
        let (x, y) = (&x.state, &y.state);
        assert_eq!(x.a, y.a);
        assert!(x.b.iter().zip(&y.b).all(|(x, y)| (x - y).abs() < 2e-3), "{:?}\n{:?}", x.b, y.b);
    };
    // A step of a plain rule is the same in every basis, and what stays of values does not depend on it.
    let options = UpdateOptions { decay: 0.5, ..UpdateOptions::sgd(0.1) };
    let (mut a, mut b) = (micro.clone(), plain.clone());
    for seed in 0..3 {
        assert!(a.update(&mut gradient(seed), &options) && b.update(&mut gradient(seed), &options));
    }
    near(&a, &b);
    // The first step of Adagrad has the length of the rate: along each direction, here.
    let (mut found, mut one) = (micro.clone(), gradient(1));
    let rule = UpdateOptions { rule: Rule::Adagrad, rate: 0.1, clip: 100.0, decay: 0.0 };
    assert!(found.update(&mut one, &rule));
    let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
    for row in 0..rank {
        for i in 0..n / 2 {
            let (i, j) = (row * n + i, row * n + i + n / 2);
            let (x, y) = (cos * one.state.b[i] + sin * one.state.b[j], cos * one.state.b[j] - sin * one.state.b[i]);
            let (x, y) = (-0.1 * x.signum(), -0.1 * y.signum());
            let (of_i, of_j) = (cos * x - sin * y, sin * x + cos * y);
            assert!(
                (found.state.b[i] - of_i).abs() < 1e-3 && (found.state.b[j] - of_j).abs() < 1e-3,
                "row {row}, value {i}"
            );
        }
    }
    // Turned beforehand or not, and one step after the other or all at once.
    let (mut prepared, mut all) = (micro.clone(), micro.clone());
    let mut early = gradient(1);
    micro.prepare(&mut early);
    assert!(prepared.update(&mut early, &rule) && prepared == found);
    assert!(found.update(&mut gradient(2), &rule));
    assert_eq!(all.update_all(&mut [gradient(1), gradient(2)], &rule), 2);
    near(&all, &found);
    assert_eq!(all.state.moments, found.state.moments);
}

#[test]
fn a_mean_of_turned_gradients_is_the_turned_mean() {
    let n = 24;
    let micro = MicroLora::new(n, 2, 1.0, 5).and_then(|micro| micro.in_basis(Arc::new(turned_planes(n, 0.3))));
    let micro = micro.expect("a basis");
    let merged = |mut all: Vec<Gradient>| {
        Gradient::merge(&mut all, 1);
        all.remove(0)
    };
    let of_b = |seed: usize| of(vec![0.0; 2 * n], noise(2 * n, seed));
    let turned = |seed: usize| {
        let mut gradient = of_b(seed);
        micro.prepare(&mut gradient);
        gradient
    };
    let mut expected = merged((1..4).map(of_b).collect());
    assert!(expected.state.turned.is_empty());
    micro.prepare(&mut expected);
    assert!(merged(vec![of_b(1), turned(2)]).state.turned.is_empty(), "one is turned, the other is not");
    let found = merged((1..4).map(turned).collect());
    assert_eq!(found.state.b, expected.state.b);
    assert!(found.state.turned.iter().zip(&expected.state.turned).all(|(x, y)| (x - y).abs() < 1e-5));
}

#[test]
fn a_basis_is_read_as_it_was_written_and_damage_is_told() {
    let basis = turned_planes(24, 0.3);
    let bytes = basis.snapshot();
    assert_eq!(Basis::restore(&bytes, Isa::best()).expect("a snapshot"), basis);
    for cut in [0, 7, 8, 15, 16, bytes.len() - 2, bytes.len() - 1] {
        assert!(Basis::restore(&bytes[..cut], Isa::best()).is_err(), "{cut} bytes");
    }
    assert!(Basis::restore(&[&bytes[..], &[0; 2]].concat(), Isa::best()).is_err());
    for width in [0u64, 25, u64::MAX] {
        let mut other = bytes.clone();
        other[8..16].copy_from_slice(&width.to_le_bytes());
        assert!(Basis::restore(&other, Isa::best()).is_err(), "{width} values");
    }
    let mut endless = bytes;
    endless[16..18].copy_from_slice(&f16::INFINITY.to_le_bytes());
    assert!(Basis::restore(&endless, Isa::best()).is_err());
    assert!(Basis::new(3, &[0.0; 8], Isa::best()).is_err() && Basis::new(1, &[f64::NAN], Isa::best()).is_err());
    let micro = MicroLora::new(23, 2, 1.0, 5).expect("a rank");
    assert!(micro.in_basis(Arc::new(basis)).is_err());
}
