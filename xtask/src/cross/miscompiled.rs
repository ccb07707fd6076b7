//! Finds what the compiler of WebAssembly is known to get wrong.
//!
//! LLVM 22 makes one number of 32 or 64 comparisons of bytes, as in `bytes.iter().any(|&byte| byte == 7)`, and shifts 16 by
//! that number instead of the number by 16 (llvm/llvm-project#190358). The condition then holds where it should not. Nothing of
//! it shows but in the instructions.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use wasmparser::{Operator, Parser, Payload};

/// Refuses a module in which a function has the wrong instructions.
///
/// # Errors
/// There is such a function, or the file is no module.
pub(crate) fn check(module: &Path) -> Result<()> {
    let bytes = fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let found = find(&bytes).with_context(|| format!("{} is no module", module.display()))?;
    if let Some(at) = found {
        bail!(
            "{}: LLVM made wrong code at byte {at:#x} (llvm/llvm-project#190358); write the condition over 32 or 64 bytes \
             that is there (`llvm-objdump -d`) another way",
            module.display()
        );
    }
    Ok(())
}

/// Returns where the first wrong shift lies.
fn find(module: &[u8]) -> wasmparser::Result<Option<usize>> {
    for payload in Parser::new(0).parse_all(module) {
        let Payload::CodeSectionEntry(body) = payload? else { continue };
        let mut n_matched = 0;
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            let (operator, at) = operators.read_with_offset()?;
            n_matched = match (n_matched, operator) {
                (_, Operator::I8x16Bitmask) => 1,
                (1, Operator::I64ExtendI32U) => 1,
                (1, Operator::I32Const { value: 16 } | Operator::I64Const { value: 16 }) => 2,
                (2, Operator::I32Add | Operator::I64Add) => 3,
                (3, Operator::I32Shl | Operator::I64Shl) => return Ok(Some(at)),
                _ => 0,
            };
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module of one function with these instructions, which makes a number of the comparisons `$mask`.
    fn module(instructions: &str) -> Vec<u8> {
        let mask = "(i8x16.bitmask (local.get 0))";
        let instructions = instructions.replace("$mask", mask);
        wat::parse_str(format!("(module (func (param v128) (result i32) {instructions}))")).expect("a module")
    }

    #[test]
    fn a_shift_by_the_number_is_found_and_one_of_the_number_is_not() {
        let wrong = module("(i32.shl (i32.const 16) (i32.add $mask (i32.const 16)))");
        let right = module("(i32.add (i32.shl $mask (i32.const 16)) $mask)");
        assert_eq!(find(&wrong).expect("a module"), Some(wrong.len() - 2));
        assert_eq!(find(&right).expect("a module"), None);
        assert!(find(&wrong[..wrong.len() - 3]).is_err());
    }
}
