// Activation functions, in forms that neither cancel nor overflow to NaN.
fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// 1 / (1 + e^-x); the exponential is of a negative number.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// x / (1 + e^-2u) with u = √(2/π) (x + 0.044715 x³)
fn gelu_tanh(x: f32) -> f32 {
    // Beyond ±12 the factor is 0 or 1 in f32, and the cube could overflow.
    let c = clamp(x, -12.0, 12.0);
    return x * sigmoid(1.5957691216 * (c + 0.044715 * c * c * c));
}

// max(x, 0) - |x| Φ(-|x|), Φ(-z) = e^(-z²/2) t Q(t), t = 1 / (1 + 0.3 z); Q is a minimax fit over z <= 15.
fn gelu_erf(x: f32) -> f32 {
    let z = min(abs(x), 15.0);
    let t = 1.0 / (1.0 + 0.3 * z);
    var q = -0.020628712;
    q = q * t + 0.11246506;
    q = q * t - 0.2282854;
    q = q * t + 0.19188408;
    q = q * t - 0.07950979;
    q = q * t + 0.09620524;
    q = q * t + 0.07837212;
    q = q * t + 0.11023937;
    q = q * t + 0.11957132;
    q = q * t + 0.11968672;
    return max(x, 0.0) - z * exp(-0.5 * z * z) * t * q;
}

fn relu(x: f32) -> f32 {
    return max(x, 0.0);
}

fn relu_sqr(x: f32) -> f32 {
    return relu(x) * relu(x);
}
