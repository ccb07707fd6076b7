//! Kernel packs of this person: their folder, the record of what was decided about them, and packs that quantise.

use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_convert::RowQuantizer;
use ruvllm_kernels::GgmlType;
use ruvllm_packs::{Op, PackError, PackErrorKind, PackFolder, PackKernel, PackPool};
use ruvllm_sona::witness::{Event, LogOptions, WitnessLog};
use ruvllm_witness::{ANCHOR_FILE, NOBODY, WitnessOptions, open_store};

use crate::app::App;
use crate::error::{Error, Result};

/// Least speed, as a multiple of native's, of a pack that is used unasked.
const FASTER: f64 = 1.05;

impl From<PackError> for Error {
    fn from(error: PackError) -> Error {
        match error.kind() {
            PackErrorKind::Unknown => Error::usage(error),
            _ => Error::failure(error),
        }
    }
}

/// Returns the folder of packs.
pub fn folder(app: &App) -> PathBuf {
    app.settings.home.join("packs")
}

/// Opens the folder of packs.
pub fn open(app: &App) -> Result<PackFolder> {
    Ok(PackFolder::open(&folder(app))?)
}

/// Puts a decision on record, in the witness log of the packs' folder.
///
/// # Errors
/// The log cannot be written: then nothing is decided without a record.
pub fn record(app: &App, what: String) -> Result<()> {
    let folder = folder(app).join("witness");
    let options = WitnessOptions { folder: folder.clone(), ..WitnessOptions::default() };
    let store = open_store(&options).map_err(Error::failure)?;
    let failed = |error| Error::failure(format_args!("the record of packs: {error}"));
    let options = LogOptions { anchor: Some(folder.join(ANCHOR_FILE)), ..LogOptions::default() };
    let log = WitnessLog::start(store, options).map_err(failed)?;
    log.record(NOBODY, Event::Pack { what });
    log.flush().map(drop).map_err(failed)
}

/// Packs that quantise rows: a named one, or those that were measured to be faster than native.
#[derive(Debug)]
struct Quantizers(Vec<Quantizer>);

#[derive(Debug)]
struct Quantizer {
    pool: PackPool,
    types: Vec<GgmlType>,
}

impl RowQuantizer for Quantizers {
    fn quantize(&self, ty: GgmlType, row: &[f32], out: &mut [u8]) -> std::result::Result<bool, String> {
        let Some(found) = self.0.iter().find(|one| one.types.contains(&ty)) else { return Ok(false) };
        let name = &found.pool.manifest().name;
        let quantized = found.pool.with(|pack| pack.quantize(ty, row, out));
        quantized.map(|()| true).map_err(|error| format!("the pack {name}: {error}"))
    }
}

/// Returns the packs that quantise rows, if there are any.
///
/// # Errors
/// The named pack is not there, cannot be used, or quantises nothing.
pub fn row_quantizer(app: &App, named: Option<&str>) -> Result<Option<Arc<dyn RowQuantizer>>> {
    let packs = open(app)?;
    let mut quantizers = Vec::new();
    for installed in packs.packs() {
        let is_named = named == Some(installed.name.as_str());
        let is_fast = |ty: &GgmlType| {
            let kernel = PackKernel { op: Op::Quantize, ty: Some(*ty) };
            installed.speed.get(&kernel.to_string()).is_some_and(|speed| *speed > FASTER)
        };
        if named.is_some() && !is_named || named.is_none() && !GgmlType::ALL.iter().any(is_fast) {
            continue;
        }
        let pool = match packs.pool(&installed.name) {
            Ok(pool) => pool,
            // A pack that nobody asked for is left out with a line.
            Err(error) if !is_named => {
                app.ui.warn(&format!("the pack {} is not used: {error}", installed.name));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let types = pool.manifest().kernels.get(&Op::Quantize).into_iter().flatten().map(|ty| ty.0);
        let types: Vec<GgmlType> = types.filter(|ty| is_named || is_fast(ty)).collect();
        if is_named && types.is_empty() {
            return Err(Error::usage(format_args!("the pack {} quantises nothing", installed.name)));
        }
        quantizers.push(Quantizer { pool, types });
    }
    if let (Some(name), true) = (named, quantizers.is_empty()) {
        return Err(Error::usage(format_args!("no pack '{name}'; 'ruvllm packs list' names all")));
    }
    Ok((!quantizers.is_empty()).then(|| Arc::new(Quantizers(quantizers)) as Arc<dyn RowQuantizer>))
}
