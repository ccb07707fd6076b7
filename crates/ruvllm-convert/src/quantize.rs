//! Writing a model file in smaller types.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::{ControlFlow, Range};
use std::path::Path;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter, Metadata, TensorData, TensorInfo};

use crate::budget::{Assignment, assign};
use crate::error::{ConvertError, ConvertErrorKind};
use crate::options::{QuantizeOptions, RowQuantizer};
use crate::plan::{PlannedTensor, check_importance, plan};
use crate::recipe::Recipe;
use crate::rows::Rows;
use crate::space;

/// Values that are quantised between two writes.
const SLAB_VALUES: usize = 1 << 22;

/// Version of the block formats that files name (`general.quantization_version`).
const QUANTIZATION_VERSION: u32 = 2;

/// Longest text of a path or data set in a file's metadata, in bytes.
const TEXT_BYTES_MAX: usize = 127;

/// Progress of [`quantize`], told a few times a second; work ends when the callback breaks.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeProgress<'a> {
    /// Name of the tensor that is written, or measured.
    pub tensor: &'a str,
    /// Type that it has.
    pub from: GgmlType,
    /// Type that it gets.
    pub to: GgmlType,
    /// Bytes of tensors that were read.
    pub done_bytes: u64,
    /// Bytes of all tensors of the source.
    pub total_bytes: u64,
}

/// Outcome of [`quantize`]: sizes, types, and tensors that are not as one may expect.
#[derive(Clone, Debug)]
pub struct QuantizeSummary {
    /// Size of the source in bytes.
    pub input_bytes: u64,
    /// Size of the output in bytes.
    pub output_bytes: u64,
    /// Bytes of the output's tensors.
    pub tensor_bytes: u64,
    /// Values of all tensors.
    pub n_values: u64,
    /// Tensors of the output by type, by number of tensors.
    pub types: Vec<(GgmlType, usize)>,
    /// Tensors whose rows were too odd for the type they should get, with the one they got.
    pub fallbacks: Vec<(String, GgmlType)>,
    /// Quantised tensors that the importance matrix does not know.
    pub without_importance: Vec<String>,
    /// Mean divergence of the predictions from the source's that a budget's types are expected to have, in nats, where the
    /// sensitivities of all tensors were measured.
    pub expected_kl: Option<f64>,
}

impl QuantizeSummary {
    /// Returns the bits of the tensors per value.
    pub fn bits_per_weight(&self) -> f64 {
        self.tensor_bytes as f64 * 8.0 / self.n_values.max(1) as f64
    }

    fn new(file: &GgufFile, planned: &[PlannedTensor<'_>]) -> QuantizeSummary {
        let mut types: Vec<(GgmlType, usize)> = Vec::new();
        for tensor in planned {
            match types.iter_mut().find(|(ty, _)| *ty == tensor.ty) {
                Some((_, n)) => *n += 1,
                None => types.push((tensor.ty, 1)),
            }
        }
        types.sort_by_key(|&(ty, n)| (std::cmp::Reverse(n), ty));
        let name = |tensor: &PlannedTensor<'_>| tensor.info.name.clone();
        let odd = |tensor: &PlannedTensor<'_>| tensor.instead_of.map(|_| (name(tensor), tensor.ty));
        QuantizeSummary {
            input_bytes: file.total_bytes(),
            output_bytes: 0,
            tensor_bytes: planned.iter().map(|tensor| tensor.n_bytes() as u64).sum(),
            n_values: planned.iter().map(|tensor| tensor.info.n_elements() as u64).sum(),
            types,
            fallbacks: planned.iter().filter_map(odd).collect(),
            without_importance: planned.iter().filter(|tensor| tensor.is_unknown).map(name).collect(),
            expected_kl: None,
        }
    }
}

/// Writes the model of `input` to `output` with its matrices quantised.
///
/// The output appears under its name when it is whole and on the disk, and takes the place of a file of that name. In memory
/// there are some rows at a time, whatever the size of the model.
///
/// # Errors
/// Before anything slow: the output is the input, the model is in several files, it is quantised already, the disk is too full,
/// importance is missing or belongs to another model. Later: `progress` breaks it off, values that are not finite, and files that cannot be read or written.
pub fn quantize(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeSummary, ConvertError> {
    space::check_output(input, output)?;
    let file = GgufFile::open(input)?;
    if file.n_parts() > 1 {
        let line = format!("the model is in {} files; join them into one first", file.n_parts());
        return Err(ConvertError::unsupported(line).at(input));
    }
    let assignment = chosen(&file, options, progress).map_err(|error| error.at(input))?;
    let planned = checked_plan(&file, options, &assignment.types).map_err(|error| error.at(input))?;
    let mut summary = QuantizeSummary::new(&file, &planned);
    summary.expected_kl = assignment.expected_kl;
    space::check(output, summary.tensor_bytes)?;
    let run = Run {
        file: &file,
        n_threads: options.n_threads(),
        is_closest: options.budget.is_some(),
        row_quantizer: options.row_quantizer.as_deref(),
        state: RefCell::new(State { progress, done_bytes: 0, error: None }),
    };
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = metadata(file.metadata(), options, &planned);
    for tensor in &planned {
        let data = match tensor.is_kept() {
            true => TensorData::reader(run.copy(tensor)),
            false => TensorData::reader(run.stream(tensor)),
        };
        writer.add_tensor(&*tensor.info.name, tensor.ty, &tensor.info.shape, data)?;
    }
    let written = writer.write_file(output);
    if let Some(error) = run.state.into_inner().error {
        return Err(error.at(input));
    }
    summary.output_bytes = written?;
    // A source that was cut short meanwhile read as zeros.
    if let Err(error) = file.check() {
        let _ = std::fs::remove_file(output);
        return Err(error.into());
    }
    Ok(summary)
}

/// Returns the bytes of the tensors that [`quantize`] makes of a file by a recipe.
///
/// # Errors
/// It would refuse the file.
pub(crate) fn planned_bytes(file: &GgufFile, options: &QuantizeOptions) -> Result<u64, ConvertError> {
    let planned = checked_plan(file, options, &BTreeMap::new())?;
    Ok(planned.iter().map(|tensor| tensor.n_bytes() as u64).sum())
}

/// Plans the output's tensors, and checks that each has the importance that its type needs.
fn checked_plan<'a>(
    file: &'a GgufFile,
    options: &'a QuantizeOptions,
    assigned: &BTreeMap<String, GgmlType>,
) -> Result<Vec<PlannedTensor<'a>>, ConvertError> {
    let planned = plan(file, options, assigned)?;
    planned.iter().try_for_each(|tensor| check_importance(tensor, options.recipe))?;
    Ok(planned)
}

/// Chooses the types of a budget, if there is one.
///
/// # Errors
/// The model cannot be quantised, which is found before what is slow; or not to this size.
fn chosen(
    file: &GgufFile,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<Assignment, ConvertError> {
    let Some(budget) = options.budget else { return Ok(Assignment::default()) };
    plan(file, options, &BTreeMap::new())?;
    assign(file, options, budget, &mut |info: &TensorInfo| {
        let total_bytes = file.tensor_bytes();
        progress(QuantizeProgress { tensor: &info.name, from: info.ty, to: info.ty, done_bytes: 0, total_bytes })
    })
}

/// Returns the number for files of a budget: that of the recipe whose type most weights have.
fn file_type(planned: &[PlannedTensor<'_>]) -> u32 {
    let n_values =
        |ty| planned.iter().filter(|tensor| tensor.ty == ty).map(|tensor| tensor.info.n_elements()).sum::<usize>();
    // Of several recipes of a type the last, which gives some tensors more.
    let most = Recipe::ALL.iter().max_by_key(|recipe| n_values(recipe.default_type()));
    most.map_or(Recipe::Q4_K_M.file_type(), |recipe| recipe.file_type())
}

/// Returns the metadata of the output: that of the source, and what it was quantised with, in llama.cpp's order.
fn metadata(source: &Metadata, options: &QuantizeOptions, planned: &[PlannedTensor<'_>]) -> Metadata {
    let mut metadata = source.clone();
    ["split.no", "split.count", "split.tensors.count"].iter().for_each(|key| drop(metadata.remove(key)));
    let mut set = |key: &str, value: ruvllm_gguf::Value| {
        metadata.remove(key);
        metadata.set(key, value);
    };
    set("general.quantization_version", QUANTIZATION_VERSION.into());
    let file_type = options.budget.map_or(options.recipe.file_type(), |_| file_type(planned));
    set("general.file_type", file_type.into());
    if let Some(imatrix) = &options.imatrix {
        set("quantize.imatrix.file", cut(&imatrix.file).into());
        if let Some(dataset) = &imatrix.dataset {
            set("quantize.imatrix.dataset", cut(dataset).into());
        }
        set("quantize.imatrix.entries_count", (imatrix.n_tensors() as u32).into());
        if imatrix.n_chunks > 0 {
            set("quantize.imatrix.chunks_count", imatrix.n_chunks.into());
        }
    }
    metadata
}

/// The start of a text that metadata has room for.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// A file while it is written.
struct Run<'a> {
    file: &'a GgufFile,
    n_threads: usize,
    /// Blocks need not be the reference's.
    is_closest: bool,
    row_quantizer: Option<&'a dyn RowQuantizer>,
    state: RefCell<State<'a>>,
}

struct State<'a> {
    progress: &'a mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    done_bytes: u64,
    /// The first error of a tensor; writing stops at it.
    error: Option<ConvertError>,
}

impl State<'_> {
    /// Keeps an error and returns one that stops the writer.
    fn fail(&mut self, error: ConvertError) -> io::Error {
        self.error = Some(error);
        io::Error::other("stopped")
    }
}

impl<'a> Run<'a> {
    /// Tells that some bytes of a tensor were read, and lets go of them.
    ///
    /// # Errors
    /// The caller has enough.
    fn read(&self, tensor: &PlannedTensor<'_>, range: Range<usize>) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.done_bytes += range.len() as u64;
        let (done_bytes, total_bytes) = (state.done_bytes, self.file.tensor_bytes());
        let PlannedTensor { info, ty, .. } = tensor;
        let progress = QuantizeProgress { tensor: &info.name, from: info.ty, to: *ty, done_bytes, total_bytes };
        let is_over = (state.progress)(progress).is_break();
        self.file.release(info, range);
        match is_over {
            true => Err(state.fail(ConvertError::new(ConvertErrorKind::Cancelled, "cancelled"))),
            false => Ok(()),
        }
    }

    /// Bytes of a tensor as they are.
    fn copy<'r>(&'r self, tensor: &'r PlannedTensor<'a>) -> impl Read + 'r {
        let source = self.file.data(tensor.info);
        let (mut at, mut told) = (0, 0);
        FromFn(move |out: &mut [u8]| {
            let n = out.len().min(source.len() - at);
            out[..n].copy_from_slice(&source[at..at + n]);
            at += n;
            if at - told >= SLAB_VALUES || at == source.len() && at > told {
                self.read(tensor, told..at)?;
                told = at;
            }
            Ok(n)
        })
    }

    /// Bytes of a tensor's quantised rows.
    fn stream<'r>(&'r self, tensor: &'r PlannedTensor<'a>) -> impl Read + 'r {
        let rows = Rows::new(tensor, self.file.data(tensor.info));
        let rows = rows.closest(self.is_closest).quantized_by(self.row_quantizer);
        let n_at_once = (SLAB_VALUES / rows.n_columns()).max(1);
        let (mut next, mut slab, mut at) = (0, Vec::new(), 0);
        FromFn(move |out: &mut [u8]| {
            if at == slab.len() && next < rows.n_rows() {
                let range = next..rows.n_rows().min(next + n_at_once);
                if let Err(error) = rows.quantize(range.clone(), &mut slab, self.n_threads) {
                    return Err(self.state.borrow_mut().fail(error.of_tensor(&tensor.info.name)));
                }
                self.read(tensor, rows.source_range(&range))?;
                (next, at) = (range.end, 0);
            }
            let n = out.len().min(slab.len() - at);
            out[..n].copy_from_slice(&slab[at..at + n]);
            at += n;
            Ok(n)
        })
    }
}

/// A stream of a function that fills buffers.
struct FromFn<F>(F);

impl<F: FnMut(&mut [u8]) -> io::Result<usize>> Read for FromFn<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (self.0)(out)
    }
}
