//! Writes the models of the tests into a folder, for `testdata/make.py`.

#[path = "../tests/it/models.rs"]
mod models;

use std::path::PathBuf;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("a folder"));
    for shape in &models::SHAPES {
        shape.write(&folder.join(format!("{}.gguf", shape.name)));
        shape.write_imatrix(&folder.join(format!("{}.imatrix", shape.name)));
    }
}
