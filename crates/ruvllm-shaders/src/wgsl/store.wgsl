// Stores a product: with the bias, if there is one, and on top of what is there, if asked.
fn store(at: u32, out: u32, product: f32) {
    var value = product;
    if ((params.flags & HAS_BIAS) != 0u) {
        value += bias[params.bias_offset + out];
    }
    if ((params.flags & ACCUMULATE) != 0u) {
        value += y[at];
    }
    y[at] = value;
}
