// Adapters of rows: members[row * ADAPTERS + m] has the number of an adapter in the bank and its strength; NO_ADAPTER ends them.
// `bank` has the places of each adapter's layers, then factors (params/low_rank.rs draws them).
struct Place {
    at: u32,
    rank: u32,
    flags: u32,
}

// Number of the layer that a slot of a row goes through.
fn layer_of(row: u32, slot: u32) -> u32 {
    if ((params.flags & HAS_EXPERTS) != 0u) {
        return params.layer + experts[row * params.n_slots + slot];
    }
    return params.layer + select(0u, slot, (params.flags & SLOT_IS_EXPERT) != 0u);
}

fn place_of(adapter: u32, layer: u32) -> Place {
    let at = PLACE_WORDS * (adapter * params.n_layers + layer);
    return Place(bank[at], bank[at + 1u], bank[at + 2u]);
}

fn row_words(n: u32, flags: u32) -> u32 {
    return select((n + 1u) / 2u, n, (flags & FACTOR_F32) != 0u);
}

// Value `i` of a row of a factor that begins at word `at`.
fn factor(at: u32, i: u32, flags: u32) -> f32 {
    if ((flags & FACTOR_F32) != 0u) {
        return bitcast<f32>(bank[at + i]);
    }
    return unpack2x16float(bank[at + i / 2u])[i % 2u];
}
