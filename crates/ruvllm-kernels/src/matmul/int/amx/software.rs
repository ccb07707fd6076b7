//! The tile instructions in plain Rust, as the Intel SDM (volume 2) describes them, for tests on any machine.

use super::tiles::{Shape, Tiles, check};

/// Eight tiles of 16 rows of 64 bytes. Reads and writes stay within the shapes; what lies outside is kept at zero.
#[derive(Default)]
pub(in super::super::super) struct Software {
    shapes: Option<[Shape; 8]>,
    tiles: [[Row; 16]; 8],
}

#[derive(Clone, Copy)]
struct Row([u8; 64]);

impl Default for Row {
    fn default() -> Row {
        Row([0; 64])
    }
}

impl Software {
    /// Returns `(rows, bytes per row)` of a tile.
    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.shapes.expect("tiles are configured before they are used")[tile];
        (shape.rows.into(), shape.row_bytes.into())
    }
}

impl Tiles for Software {
    unsafe fn configure(&mut self, shapes: &[Shape; 8]) {
        *self = Software { shapes: Some(*shapes), ..Software::default() };
    }

    unsafe fn release(&mut self) {
        *self = Software::default();
    }

    unsafe fn zero<const T: usize>(&mut self) {
        self.shape(T);
        self.tiles[T] = Default::default();
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        let (rows, row_bytes) = self.shape(T);
        self.tiles[T] = Default::default();
        for (i, row) in self.tiles[T][..rows].iter_mut().enumerate() {
            // SAFETY: the caller's rows may be read.
            unsafe { std::ptr::copy_nonoverlapping(from.add(i * stride), row.0.as_mut_ptr(), row_bytes) };
        }
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let ((m, n_bytes), (a_rows, k_bytes), (k, b_bytes)) = (self.shape(C), self.shape(A), self.shape(B));
        // What the SDM lists as causes of an invalid instruction.
        assert!(C != A && C != B && A != B, "the tiles of a product are three");
        assert!(m == a_rows && n_bytes == b_bytes && k_bytes == 4 * k, "the tiles of a product fit");
        for i in 0..m {
            let a = self.tiles[A][i].0;
            let mut sums: [i32; 16] = std::array::from_fn(|n| word(&self.tiles[C][i].0, n));
            for (j, b) in self.tiles[B][..k].iter().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate().take(n_bytes / 4) {
                    for byte in 0..4 {
                        *sum += i32::from(a[4 * j + byte] as i8) * i32::from(b.0[4 * n + byte]);
                    }
                }
            }
            for (n, sum) in sums.iter().enumerate() {
                self.tiles[C][i].0[4 * n..4 * n + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut i32, stride: usize) {
        let (rows, row_bytes) = self.shape(T);
        for (i, row) in self.tiles[T][..rows].iter().enumerate() {
            // SAFETY: the caller's rows may be written.
            unsafe { std::ptr::copy_nonoverlapping(row.0.as_ptr(), to.cast::<u8>().add(i * stride), row_bytes) };
        }
    }
}

/// Returns the integer in bytes `4n..4n + 4`.
fn word(row: &[u8; 64], n: usize) -> i32 {
    i32::from_le_bytes([row[4 * n], row[4 * n + 1], row[4 * n + 2], row[4 * n + 3]])
}

/// Tiles that take unsigned bytes for signed ones.
#[derive(Default)]
struct Wrong(Software);

impl Tiles for Wrong {
    unsafe fn configure(&mut self, shapes: &[Shape; 8]) {
        // SAFETY: the caller's promise, here and below.
        unsafe { self.0.configure(shapes) };
    }

    unsafe fn release(&mut self) {
        // SAFETY: as above.
        unsafe { self.0.release() };
    }

    unsafe fn zero<const T: usize>(&mut self) {
        // SAFETY: as above.
        unsafe { self.0.zero::<T>() };
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: as above.
        unsafe { self.0.load::<T>(from, stride) };
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let bytes = self.0.tiles[B];
        self.0.tiles[B].iter_mut().flat_map(|row| &mut row.0).for_each(|b| *b &= 0x7f);
        // SAFETY: as above.
        unsafe { self.0.dot::<C, A, B>() };
        self.0.tiles[B] = bytes;
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut i32, stride: usize) {
        // SAFETY: as above.
        unsafe { self.0.store::<T>(to, stride) };
    }
}

#[test]
fn the_check_passes_right_tiles_and_no_others() {
    assert!(check::<Software>());
    assert!(!check::<Wrong>());
}

#[test]
fn this_machines_tiles_pass_the_check() {
    // Without AMX there is nothing to ask; with it the row must be there.
    assert_eq!(super::works(), crate::Isa::Amx.is_available());
}
