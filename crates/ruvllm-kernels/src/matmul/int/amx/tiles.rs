//! The six tile instructions, behind a trait, and a check of them.

use std::arch::asm;

/// Rows and bytes per row of a tile.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Shape {
    pub(super) rows: u8,
    pub(super) row_bytes: u16,
}

impl Shape {
    /// Returns the shape; up to 16 rows of up to 64 bytes, a multiple of 4.
    pub(super) fn new(rows: usize, row_bytes: usize) -> Shape {
        assert!((1..=16).contains(&rows) && row_bytes <= 64 && row_bytes.is_multiple_of(4), "no such tile");
        Shape { rows: rows as u8, row_bytes: row_bytes as u16 }
    }
}

/// Eight tile registers of a thread.
///
/// # Safety
/// All methods need the instructions, and all but `configure` need tiles configured; tile numbers are under 8.
pub(in super::super::super) trait Tiles: Default {
    /// Sets the tiles' shapes, and all to zeros: `ldtilecfg`.
    unsafe fn configure(&mut self, shapes: &[Shape; 8]);
    /// Ends the use of tiles: `tilerelease`.
    unsafe fn release(&mut self);
    /// Sets tile `T` to zeros: `tilezero`.
    unsafe fn zero<const T: usize>(&mut self);
    /// Reads tile `T`'s rows from `from` on, each `stride` bytes after the one before: `tileloadd`.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);
    /// Adds to `C[m][n]` the products `A[m][4k + i] * B[k][4n + i]` for all `k` and `i`, of signed bytes of `A` and
    /// unsigned ones of `B`: `tdpbsud`. Shapes are such that `A` has 4 bytes for each row of `B`.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Writes tile `T`'s rows from `to` on, each `stride` bytes after the one before: `tilestored`.
    unsafe fn store<const T: usize>(&mut self, to: *mut i32, stride: usize);
}

/// The machine's own tiles.
///
/// Their intrinsics are not stable. A compiler that is not told of AMX never touches tile registers, so they keep their
/// values from one assembly block to the next; the blocks are not `pure` and stay in order. The encodings were checked
/// once with a disassembler (objdump 2.40).
#[derive(Default)]
pub(in super::super::super) struct Hardware;

/// What `ldtilecfg` reads (Intel SDM, volume 1, 18.2).
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

impl Tiles for Hardware {
    #[inline]
    unsafe fn configure(&mut self, shapes: &[Shape; 8]) {
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, shape) in shapes.iter().enumerate() {
            (config.row_bytes[tile], config.rows[tile]) = (shape.row_bytes, shape.rows);
        }
        // SAFETY: reads 64 bytes; the caller knows that the instruction exists.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly)) };
    }

    #[inline]
    unsafe fn release(&mut self) {
        // SAFETY: the caller knows that the instruction exists.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }

    #[inline]
    unsafe fn zero<const T: usize>(&mut self) {
        // SAFETY: as above.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags, nomem)) };
    }

    #[inline]
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller's rows may be read.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{from} + {stride}]",
                t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    #[inline]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the caller knows that the instruction exists.
        unsafe {
            asm!(
                "tdpbsud tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nostack, preserves_flags, nomem)
            );
        }
    }

    #[inline]
    unsafe fn store<const T: usize>(&mut self, to: *mut i32, stride: usize) {
        // SAFETY: the caller's rows may be written.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm{t}",
                t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Returns whether two small products through all the instructions are what plain loops give.
pub(super) fn check<T: Tiles>() -> bool {
    // A generator of bytes (xorshift), with the extremes among them.
    let mut state = 0x9e37_79b9u32;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        [0, 0x7f, 0x80, 0x81, 0xff, state as u8, (state >> 8) as u8, (state >> 16) as u8][(state >> 24) as usize % 8]
    };
    let mut a = [[0i8; 32]; 2 * 16];
    let mut b = [[0u8; 64]; 8];
    a.as_flattened_mut().iter_mut().for_each(|a| *a = byte() as i8);
    b.as_flattened_mut().iter_mut().for_each(|b| *b = byte());
    let mut tiles = T::default();
    [(16, 32), (5, 16)].into_iter().all(|(m, k)| {
        let mut out = [[i32::MIN; 16]; 16];
        let (a_shape, c) = (Shape::new(m, k), Shape::new(m, 64));
        // SAFETY: the caller knows that the instructions exist; rows of A are 64 bytes apart, two of the array's, and
        // its second half begins 32 bytes on.
        unsafe {
            let b_shape = Shape::new(k / 4, 64);
            tiles.configure(&[a_shape, a_shape, b_shape, b_shape, c, c, c, c]);
            tiles.load::<0>(a.as_ptr().cast(), 64);
            tiles.load::<1>(a[1].as_ptr().cast(), 64);
            tiles.load::<3>(b.as_ptr().cast(), 64);
            tiles.zero::<7>();
            tiles.dot::<7, 0, 3>();
            tiles.dot::<7, 1, 3>();
            tiles.store::<7>(out.as_mut_ptr().cast(), 64);
            tiles.release();
        }
        let product = |a: &[i8; 32], n: usize| -> i32 {
            (0..k).map(|at| i32::from(a[at]) * i32::from(b[at / 4][4 * n + at % 4])).sum()
        };
        out.iter().enumerate().all(|(i, out)| {
            out.iter().enumerate().all(|(n, &out)| {
                out == if i < m { product(&a[2 * i], n) + product(&a[2 * i + 1], n) } else { i32::MIN }
            })
        })
    })
}
