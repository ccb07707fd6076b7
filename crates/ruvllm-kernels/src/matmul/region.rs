//! Products shared out among threads as one parallel region.

use std::ops::Range;

use ruvllm_cpu::{ThreadPool, share};

use super::acts::Acts;
use super::format::{BLOCK, PANEL_ROWS};
use super::stream::Stream;
use super::{GroupedProduct, Matrix};
use crate::prefetch::PrefetchPlan;

/// Address of results, to which workers write the columns of the rows they claimed.
#[derive(Clone, Copy)]
pub(super) struct Out(pub(super) *mut f32);

// SAFETY: the pointer is only used for results of claimed rows, each claimed by one worker.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

/// A product, and its units among all.
struct Part<'a> {
    matrix: &'a Matrix,
    rows: &'a [u32],
    out: Out,
    units: Range<usize>,
}

impl Part<'_> {
    /// Returns its weight bytes times its activation rows.
    fn work_bytes(&self) -> usize {
        self.matrix.weight_bytes() * self.rows.len()
    }

    fn n_panels(&self) -> usize {
        self.matrix.n_rows().div_ceil(PANEL_ROWS)
    }
}

/// Plan that shares out the panels of up to `N` matrices: in units of one or two panels, of which a worker claims a multiple of
/// `grain` at once.
pub(super) struct Plan<'a, const N: usize> {
    parts: [Option<Part<'a>>; N],
    n_threads: usize,
    n_units: usize,
    unit_rows: usize,
    grain: usize,
}

impl<'a, const N: usize> Plan<'a, N> {
    /// Shares out matrices among `n_threads` for one activation row.
    pub(super) fn of_one_row(n_threads: usize, matrices: &[&'a Matrix]) -> Plan<'a, N> {
        let mut plan = Plan::new();
        for matrix in matrices {
            plan.push(Part { matrix, rows: &[0], out: Out(std::ptr::null_mut()), units: 0..0 });
        }
        plan.share_out(n_threads);
        plan
    }

    fn new() -> Plan<'a, N> {
        Plan { parts: [const { None }; N], n_threads: 1, n_units: 0, unit_rows: PANEL_ROWS, grain: 1 }
    }

    fn push(&mut self, part: Part<'a>) {
        let free = self.parts.iter_mut().find(|place| place.is_none());
        *free.unwrap_or_else(|| panic!("matmul: more than {N} matrices")) = Some(part);
    }

    fn parts(&self) -> impl Iterator<Item = &Part<'a>> {
        self.parts.iter().map_while(Option::as_ref)
    }

    /// Shares out the parts among `n_threads`.
    fn share_out(&mut self, n_threads: usize) {
        let n_panels: usize = self.parts().map(Part::n_panels).sum();
        let n_bytes: usize = self.parts().map(Part::work_bytes).sum();
        // Two panels share an activation load; where panels are few, single ones balance better.
        self.unit_rows = PANEL_ROWS * if n_panels >= 8 * n_threads { 2 } else { 1 };
        for part in self.parts.iter_mut().map_while(Option::as_mut) {
            part.units = self.n_units..self.n_units + part.matrix.n_rows().div_ceil(self.unit_rows);
            self.n_units = part.units.end;
        }
        self.n_threads = n_threads;
        self.grain = if n_threads == 1 { self.n_units.max(1) } else { grain(self.n_units, n_bytes, n_threads) };
    }

    /// Returns the units of `worker`'s share.
    pub(super) fn share(&self, worker: usize) -> Range<usize> {
        let chunks = share(worker, self.n_threads, self.n_units.div_ceil(self.grain));
        self.n_units.min(chunks.start * self.grain)..self.n_units.min(chunks.end * self.grain)
    }

    /// Returns the address of a unit's weights; that of the last one's end for their number.
    pub(super) fn address(&self, unit: usize) -> usize {
        self.parts().find(|part| unit <= part.units.end).map_or(0, |part| self.address_in(part, unit))
    }

    /// Returns the address of the weights of a part's unit, or of the part's end.
    fn address_in(&self, part: &Part<'_>, unit: usize) -> usize {
        let n_panels = part.n_panels().max(1);
        let panel = ((unit - part.units.start) * self.unit_rows / PANEL_ROWS).min(n_panels);
        part.matrix.bytes().as_ptr() as usize + part.matrix.weight_bytes() / n_panels * panel
    }

    /// Returns where a worker that has claimed some units reads on after the part at `index`: the next part, where its share
    /// goes on there; else what follows its share, or what it took of another's.
    fn stream(&self, index: usize, claim: &Range<usize>, worker: usize, next: Option<usize>) -> Stream<'static> {
        let own = self.share(worker);
        let end = if own.contains(&claim.start) { own.end } else { claim.end };
        match [index, index + 1].map(|index| self.parts.get(index).and_then(Option::as_ref)) {
            [Some(part), Some(following)] if end > part.units.end => {
                Stream::until(self.address_in(part, part.units.end), self.address_in(following, following.units.start))
            }
            _ => next.map_or(Stream::straight(), |next| Stream::until(self.address(end), next)),
        }
    }
}

/// Multiplies up to `N` matrices, each with its rows of `x`, while memory of `prefetch` is prefetched.
///
/// # Panics
/// If there are more, a row does not exist, or a shape is not the matrix's.
pub(super) fn multiply<'a, const N: usize>(
    threads: &ThreadPool,
    x: &Acts,
    products: impl IntoIterator<Item = GroupedProduct<'a>>,
    prefetch: Option<&PrefetchPlan>,
) {
    let mut plan = Plan::<N>::new();
    for GroupedProduct { matrix, rows, out } in products {
        assert!(rows.iter().all(|&row| (row as usize) < x.n()), "matmul: a row is not among the {} held", x.n());
        matrix.check(x, rows.len(), out);
        if !rows.is_empty() {
            plan.push(Part { matrix, rows, out: Out(out.as_mut_ptr()), units: 0..0 });
        }
    }
    let n_bytes: usize = plan.parts().map(Part::work_bytes).sum();
    plan.share_out(if n_bytes < SHORT_BYTES { threads.n_present() } else { threads.n_threads() });
    let work = |claim: Range<usize>, worker: usize| {
        if worker > 0 && claim.start == plan.share(worker).start {
            x.prefetch();
        }
        let n_steps = claim.len() * (plan.unit_rows / PANEL_ROWS) * (x.k() / BLOCK);
        let cursor = prefetch.and_then(|prefetch| prefetch.cursor(&claim, plan.n_units, n_steps));
        for (index, part) in plan.parts().enumerate() {
            let (start, end) = (claim.start.max(part.units.start), claim.end.min(part.units.end));
            if start < end {
                let first = (start - part.units.start) * plan.unit_rows;
                let w_rows = first..part.matrix.n_rows().min(first + (end - start) * plan.unit_rows);
                let stream = plan.stream(index, &claim, worker, threads.next_start(worker)).with(cursor.as_ref());
                // SAFETY: `check` compared the results with the shapes, and this claim's columns are this worker's alone.
                unsafe { part.matrix.multiply(w_rows, x, part.rows, part.out.0, stream) };
            }
        }
    };
    match plan.n_threads {
        _ if plan.n_units == 0 => {}
        1 => work(0..plan.n_units, 0),
        _ => threads.for_each(plan.n_units, plan.grain, &work),
    }
}

/// Work that takes one thread less than a millisecond or so, in weight bytes times activation rows.
const SHORT_BYTES: usize = 32 * 1024 * 1024;

/// Work that is worth a claim, in weight bytes times activation rows: a claim costs some 50 ns.
const CLAIM_BYTES: usize = 32 * 1024;

/// Returns how many units a worker claims at least: a 16th of its share, which is fine enough for unequal threads and
/// coarse enough for straight streams, but not much less than [`CLAIM_BYTES`] of work, and at most its share.
fn grain(n_units: usize, work_bytes: usize, n_threads: usize) -> usize {
    let smallest = (CLAIM_BYTES * n_units + work_bytes / 2) / work_bytes.max(1);
    (n_units / (16 * n_threads)).max(smallest).clamp(1, n_units.div_ceil(n_threads).max(1))
}
