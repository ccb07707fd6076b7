//! Lets the addon find Node's functions where it is loaded.

fn main() {
    napi_build::setup();
}
