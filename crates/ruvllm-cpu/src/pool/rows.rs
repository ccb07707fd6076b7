//! Parallel regions that write disjoint rows or columns of buffers: safe, because the pool hands out each once.

use std::marker::PhantomData;
use std::ops::Range;

use super::{SharedSlice, ThreadPool};

/// Buffer `[n_rows, n_columns, column_len]` whose columns are shared out: a worker has the same columns of every row.
#[derive(Debug)]
pub struct ByColumn<'a, T> {
    /// The whole buffer.
    pub values: &'a mut [T],
    /// Values of a column in one row.
    pub column_len: usize,
}

/// Consecutive columns of every row of a buffer, which one worker has.
#[derive(Debug)]
pub struct ColumnsMut<'a, T> {
    buffer: &'a SharedSlice<'a, T>,
    /// Values from one row to the next.
    stride: usize,
    /// Place of the first column in a row, and the length of all of them.
    first: usize,
    len: usize,
    /// It is sent and shared as what it writes would be.
    columns: PhantomData<&'a mut [T]>,
}

impl<T> ColumnsMut<'_, T> {
    fn range(&self, row: usize) -> Range<usize> {
        let start = row * self.stride + self.first;
        start..start + self.len
    }

    /// Returns the columns in one row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, row: usize) -> &[T] {
        // SAFETY: no other worker has these columns, and `&self` keeps this one from writing them.
        unsafe { self.buffer.slice(self.range(row)) }
    }

    /// Returns the columns in one row, to be written.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        // SAFETY: no other worker has these columns, and `&mut self` is this one's only access.
        unsafe { self.buffer.slice(self.range(row)) }
    }

    /// Copies the columns from row `from` to row `to`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn copy_row(&mut self, from: usize, to: usize)
    where
        T: Copy,
    {
        if from != to {
            // SAFETY: as in `row_mut`; the two rows do not overlap.
            let (from, to) = unsafe { (self.buffer.slice(self.range(from)), self.buffer.slice(self.range(to))) };
            to.copy_from_slice(from);
        }
    }
}

impl ThreadPool {
    /// Runs `f(row, rows)` for each of `n` rows, `grain` or more on a worker at a time; `rows` has that row of every buffer.
    /// A buffer's rows are equally long parts of it.
    ///
    /// # Panics
    /// If a buffer is not `n` equal rows, and as [`ThreadPool::for_each`] does.
    #[inline]
    pub fn for_each_row_mut<T: Send, const N: usize>(
        &self,
        n: usize,
        grain: usize,
        buffers: [&mut [T]; N],
        f: impl Fn(usize, [&mut [T]; N]) + Sync,
    ) {
        let buffers = buffers.map(|values| {
            let width = values.len() / n.max(1);
            assert_eq!(values.len(), n * width, "{} values are not {n} equal rows", values.len());
            (SharedSlice::new(values), width)
        });
        self.for_each(n, grain, &|rows, _| {
            for row in rows {
                let parts = buffers.each_ref().map(|(values, width)| {
                    // SAFETY: `for_each` hands out each row once, and rows do not overlap.
                    unsafe { values.slice(row * width..(row + 1) * width) }
                });
                f(row, parts);
            }
        });
    }

    /// Runs `f(columns, buffers)` for ranges of the `n` columns, `grain` or more on a worker at a time; it gets those columns
    /// of every buffer. The buffers may have different numbers of rows, and columns of different length.
    ///
    /// # Panics
    /// If a buffer is not whole rows of `n` columns, and as [`ThreadPool::for_each`] does.
    #[inline]
    pub fn for_each_columns_mut<T: Send, const N: usize>(
        &self,
        n: usize,
        grain: usize,
        buffers: [ByColumn<'_, T>; N],
        f: impl Fn(Range<usize>, [ColumnsMut<'_, T>; N]) + Sync,
    ) {
        let buffers = buffers.map(|ByColumn { values, column_len }| {
            let stride = n * column_len;
            let is_whole = if stride == 0 { values.is_empty() } else { values.len().is_multiple_of(stride) };
            assert!(is_whole, "{} values are not rows of {n} columns of {column_len}", values.len());
            (SharedSlice::new(values), column_len, stride)
        });
        self.for_each(n, grain, &|columns, _| {
            // `for_each` hands out each column once, so that the parts of two workers do not overlap.
            let parts = buffers.each_ref().map(|(buffer, column_len, stride)| ColumnsMut {
                buffer,
                stride: *stride,
                first: columns.start * column_len,
                len: columns.len() * column_len,
                columns: PhantomData,
            });
            f(columns, parts);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_several_buffers_come_once() {
        for n_threads in [1, 3] {
            let threads = ThreadPool::new(n_threads);
            for n in [0, 1, 7, 64] {
                let (mut a, mut b) = (vec![0; n * 3], vec![0; n * 5]);
                threads.for_each_row_mut(n, 2, [&mut a, &mut b], |row, [a, b]| {
                    a.iter_mut().for_each(|x| *x += row + 1);
                    b.iter_mut().for_each(|x| *x += a[0]);
                });
                assert!(a.iter().enumerate().all(|(i, &x)| x == i / 3 + 1), "{a:?}");
                assert!(b.iter().enumerate().all(|(i, &x)| x == i / 5 + 1), "{b:?}");
            }
        }
    }

    #[test]
    fn columns_come_once_in_every_row() {
        for n_threads in [1, 3] {
            let (threads, n) = (ThreadPool::new(n_threads), 21);
            // Four rows of columns of one value, and one row of columns of five.
            let (mut narrow, mut wide) = (vec![0; 4 * n], vec![0; 5 * n]);
            let buffers = [
                ByColumn { values: &mut narrow[..], column_len: 1 },
                ByColumn { values: &mut wide[..], column_len: 5 },
            ];
            threads.for_each_columns_mut(n, 4, buffers, |columns, [mut narrow, mut wide]| {
                for row in 0..3 {
                    narrow
                        .row_mut(row)
                        .iter_mut()
                        .zip(columns.clone())
                        .for_each(|(x, column)| *x += 100 * row + column);
                }
                narrow.copy_row(2, 3);
                narrow.copy_row(1, 1);
                assert_eq!(narrow.row(3), narrow.row(2));
                wide.row_mut(0)
                    .chunks_mut(5)
                    .zip(columns)
                    .for_each(|(x, column)| x.iter_mut().for_each(|x| *x += column));
            });
            let expected = |i: usize| 100 * (i / n).min(2) + i % n;
            assert!(narrow.iter().enumerate().all(|(i, &x)| x == expected(i)), "{narrow:?}");
            assert!(wide.iter().enumerate().all(|(i, &x)| x == i / 5), "{wide:?}");
        }
    }

    #[test]
    #[should_panic(expected = "7 values are not 2 equal rows")]
    fn rows_are_equally_long() {
        ThreadPool::new(1).for_each_row_mut(2, 1, [&mut [0; 7][..]], |_, _| {});
    }

    #[test]
    #[should_panic(expected = "7 values are not rows of 3 columns of 1")]
    fn columns_are_whole() {
        let buffer = ByColumn { values: &mut [0; 7][..], column_len: 1 };
        ThreadPool::new(1).for_each_columns_mut(3, 1, [buffer], |_, _| {});
    }

    #[test]
    #[should_panic(expected = "range 6..9 of a shared slice of 6")]
    fn rows_that_are_not_there_are_refused() {
        let buffer = ByColumn { values: &mut [0; 6][..], column_len: 1 };
        ThreadPool::new(1).for_each_columns_mut(3, 3, [buffer], |_, [columns]| _ = columns.row(2));
    }
}
