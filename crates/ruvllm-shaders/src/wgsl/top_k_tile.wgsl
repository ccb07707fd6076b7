// The largest of a tile of values in shared memory, by a bitonic sort. Floats are compared as whole numbers: NaN and infinities
// are then as good as other values, and no value changes on its way.
const TILE: u32 = 1024u;
// Stands where there is no value; it comes behind all others.
const NONE: u32 = 0xffffffffu;

var<workgroup> tile_keys: array<u32, TILE>;
var<workgroup> tile_ids: array<u32, TILE>;

// Returns whole numbers in the order of the floats with these bits: both zeros are one, and 0 is NaN, which is no value.
fn key_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0u;
    }
    if (magnitude == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);
}

fn put_in_tile(place: u32, id: u32, bits: u32) {
    let key = key_of(bits);
    tile_keys[place] = key;
    tile_ids[place] = select(id, NONE, key == 0u);
}

fn put_none_in_tile(place: u32) {
    tile_keys[place] = 0u;
    tile_ids[place] = NONE;
}

// Whether the first place belongs before the second: the larger value, the smaller id of equals.
fn comes_before(first: u32, second: u32) -> bool {
    let a = tile_keys[first];
    let b = tile_keys[second];
    return a > b || (a == b && tile_ids[first] < tile_ids[second]);
}

// Sorts the tile, the largest first. All lanes call it.
fn sort_tile(lane: u32) {
    workgroupBarrier();
    for (var run = 2u; run <= TILE; run *= 2u) {
        for (var apart = run / 2u; apart > 0u; apart /= 2u) {
            for (var i = lane; i < TILE / 2u; i += WG) {
                // Places that differ in one bit; runs go down and up by turns.
                let low = 2u * i - (i & (apart - 1u));
                let high = low + apart;
                let goes_down = (low & run) == 0u;
                if (comes_before(high, low) == goes_down) {
                    let key = tile_keys[low];
                    let id = tile_ids[low];
                    tile_keys[low] = tile_keys[high];
                    tile_ids[low] = tile_ids[high];
                    tile_keys[high] = key;
                    tile_ids[high] = id;
                }
            }
            workgroupBarrier();
        }
    }
}
