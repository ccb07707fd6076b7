//! Golden files with other metadata.

use ruvllm_gguf::{GgufFile, GgufWriter, Metadata};
use ruvllm_testkit::Golden;

use crate::{ModelError, ModelSpec};

/// Reads the description of a golden model whose metadata were changed.
pub(crate) fn read_with(name: &str, change: impl FnOnce(&mut Metadata)) -> Result<ModelSpec, ModelError> {
    let file = GgufFile::open(&Golden::load(name).model("f32")).expect("golden models are valid");
    let mut writer = GgufWriter::from_file(&file);
    change(writer.metadata_mut());
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("memory takes all");
    ModelSpec::read(&GgufFile::from_bytes(bytes.into()).expect("only metadata were changed"), None)
}
