//! Ratios: what is kept of a measurement. A time says little on another day, when the machine is a tenth slower; how
//! many times a kernel is faster than plain loops, and how much it takes of what the machine can give, says more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::criterion::Case;

/// The rows of kernels' tables that a case may name, in the order of columns. `scalar` is what others are measured by.
pub(super) const ISAS: [&str; 8] = ["scalar", "neon", "neon+dotprod", "neon+i8mm", "avx2", "avxvnni", "avx512", "amx"];

/// What one case comes to; each counts more as better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ratios {
    /// Times as fast as the scalar row on the same data, on one thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over_scalar: Option<f64>,
    /// Share of what the machine can do: of the read bandwidth, or of the peak of its dot products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of_machine: Option<f64>,
    /// Times as fast as the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over_peer: Option<f64>,
}

impl Ratios {
    /// Returns each ratio that was measured, with what it is called.
    pub(super) fn each(self) -> impl Iterator<Item = (&'static str, f64)> {
        let all =
            [("over scalar", self.over_scalar), ("of the machine", self.of_machine), ("over peer", self.over_peer)];
        all.into_iter().filter_map(|(name, ratio)| Some((name, ratio?)))
    }

    /// Takes those ratios of another measurement that are higher.
    pub(super) fn take_better(&mut self, other: &Ratios) {
        let Ratios { over_scalar, of_machine, over_peer } = other;
        for (mine, other) in
            [(&mut self.over_scalar, over_scalar), (&mut self.of_machine, of_machine), (&mut self.over_peer, over_peer)]
        {
            *mine = mine.map(|mine| other.map_or(mine, |other| mine.max(other)));
        }
    }
}

/// Ratios by the name of the case.
pub(super) type ByCase = BTreeMap<String, Ratios>;

/// Cases by their names.
pub(super) struct Cases<'a>(BTreeMap<&'a str, &'a Case>);

impl<'a> Cases<'a> {
    pub(super) fn new(cases: &'a [Case]) -> Cases<'a> {
        Cases(cases.iter().map(|case| (case.name.as_str(), case)).collect())
    }

    /// Iterates over them, in the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a Case> {
        self.0.values().copied()
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|case| case.rate())
    }

    /// Returns the ratios of a case.
    pub(super) fn ratios(&self, case: &Case) -> Ratios {
        Ratios { over_scalar: self.over_scalar(case), of_machine: self.of_machine(case), over_peer: None }
    }

    /// Compares rates, not times: where scalar is slow it is measured on a slice, and with eight rows for all that are
    /// more.
    fn over_scalar(&self, case: &Case) -> Option<f64> {
        isa(&case.name).filter(|isa| *isa != "scalar")?;
        let scalar = self.0.get(scalar_of(&case.name).as_str())?;
        (scalar.counts() == case.counts()).then(|| case.rate() / scalar.rate())
    }

    /// Products of a model's matrices: one row against the read bandwidth, more rows against the peak.
    fn of_machine(&self, case: &Case) -> Option<f64> {
        isa(&case.name).filter(|isa| *isa != "scalar")?;
        let parts: Vec<&str> = case.name.split('/').collect();
        let ["matmul", model, _role, _types, n, threads, isa] = parts[..] else { return None };
        if count(n, 'n')? == 1 {
            return Some(case.rate() / self.rate(&format!("matmul/{model}/read/{threads}"))?);
        }
        // Only the integer path is built on dot products of bytes; its models are those with a read bandwidth. An
        // activation of 16 bits takes two of them; where it has 8 one is enough, for kernels that tell them apart.
        self.rate(&format!("matmul/{model}/read/t1"))?;
        Some(2.0 * case.rate() / self.peak(isa)?)
    }

    /// Returns the peak of the instructions a row is built on, or for a row without one, of the best there is.
    pub(super) fn peak(&self, isa: &str) -> Option<f64> {
        let best = || ISAS.iter().rev().find_map(|isa| self.rate(&format!("machine/dot/{isa}")));
        self.rate(&format!("machine/dot/{isa}")).or_else(best)
    }
}

/// Returns the ratios of every case that has one.
pub(super) fn of_kernels(cases: &[Case]) -> ByCase {
    let cases = Cases::new(cases);
    let ratios = cases.iter().map(|case| (case.name.clone(), cases.ratios(case)));
    ratios.filter(|(_, ratios)| *ratios != Ratios::default()).collect()
}

/// Whether a case measures what the machine can do, and no kernel.
pub(super) fn is_machine(name: &str) -> bool {
    name.starts_with("machine/") || (name.starts_with("matmul/") && name.contains("/read/"))
}

/// Returns the part of a case's name that is one of [`ISAS`].
pub(super) fn isa(name: &str) -> Option<&'static str> {
    name.split('/').find_map(|part| ISAS.into_iter().find(|isa| *isa == part))
}

/// Returns the number of a part like `n512` or `t2`.
pub(super) fn count(part: &str, letter: char) -> Option<u64> {
    part.strip_prefix(letter)?.parse().ok()
}

/// Returns the name of the scalar case that a case is held against: one thread, at most eight rows.
pub(super) fn scalar_of(name: &str) -> String {
    let isa = isa(name);
    let scalar = |part| match part {
        part if Some(part) == isa => "scalar",
        part if count(part, 't').is_some() => "t1",
        part if count(part, 'n').is_some_and(|n| n > 8) => "n8",
        part => part,
    };
    name.split('/').map(scalar).collect::<Vec<_>>().join("/")
}

/// Returns the geometric mean, or `None` of nothing.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::super::criterion::Throughput;
    use super::*;

    fn case(name: &str, median_ns: f64, throughput: Option<Throughput>) -> Case {
        Case { name: name.to_owned(), median_ns, throughput }
    }

    #[test]
    fn products_are_held_against_scalar_and_machine() {
        let (bytes, madds) = (|n| Some(Throughput::Bytes(n)), |n| Some(Throughput::Elements(n)));
        let cases = [
            case("matmul/qwen/read/t2", 10.0, bytes(400)), // 40 GB/s
            case("matmul/qwen/read/t1", 10.0, bytes(300)),
            case("machine/dot/avx512", 1.0, madds(400)), // 400 G/s
            case("matmul/qwen/o/Q5_0/n1/t2/avx512", 10.0, bytes(360)),
            case("matmul/qwen/o/Q5_0/n1/t1/scalar", 20.0, bytes(8)), // on a slice
            case("matmul/qwen/o/Q5_0/n512/t1/avx512", 10.0, madds(1000)),
            case("matmul/qwen/o/Q5_0/n512/t1/amx", 10.0, madds(2000)),
            case("matmul/qwen/o/Q5_0/n8/t1/scalar", 10.0, madds(20)),
            case("matmul/float/F16/n8/t1/avx512", 10.0, madds(1000)),
            case("norm/rms/576/scalar", 100.0, None),
            case("norm/rms/576/avx2", 20.0, None),
            case("pack/Q4_1", 20.0, None),
        ];
        let expected = [
            ("matmul/qwen/o/Q5_0/n1/t2/avx512", Some(90.0), Some(0.9)),
            ("matmul/qwen/o/Q5_0/n512/t1/amx", Some(100.0), Some(1.0)),
            ("matmul/qwen/o/Q5_0/n512/t1/avx512", Some(50.0), Some(0.5)),
            ("norm/rms/576/avx2", Some(5.0), None),
        ];
        let expected = expected.map(|(name, over_scalar, of_machine)| {
            (name.to_owned(), Ratios { over_scalar, of_machine, over_peer: None })
        });
        assert!(of_kernels(&cases).into_iter().eq(expected), "{:?}", of_kernels(&cases));
    }

    #[test]
    fn ratios_keep_what_was_measured() {
        let ratios = Ratios { over_scalar: Some(2.0), ..Ratios::default() };
        assert_eq!(serde_json::to_string(&ratios).expect("numbers are JSON"), r#"{"over_scalar":2.0}"#);
        assert!(ratios.each().eq([("over scalar", 2.0)]));
        let mut better = ratios;
        better.take_better(&Ratios { over_scalar: Some(3.0), of_machine: Some(0.5), over_peer: None });
        assert_eq!(better, Ratios { over_scalar: Some(3.0), ..ratios });
    }
}
