//! Which CPU it is, where that decides what is fast. What it can do is in [`isa`](crate::isa).

use std::sync::LazyLock;

/// The family of AMD's Zen 5, the first of theirs that computes with 512 bits at once.
pub const ZEN_5: u32 = 0x1a;

/// Returns the family of a CPU of AMD's: 0x19 for Zen 3 and Zen 4, [`ZEN_5`].
pub fn amd_family() -> Option<u32> {
    static FAMILY: LazyLock<Option<u32>> = LazyLock::new(|| {
        use std::arch::x86_64::__cpuid;
        let vendor = __cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        let signature = __cpuid(1).eax;
        (name.as_flattened() == b"AuthenticAMD").then(|| (signature >> 8 & 0xf) + (signature >> 20 & 0xff))
    });
    *FAMILY
}

/// Returns whether it is a Zen 5, or what came after it.
pub fn is_zen_5() -> bool {
    amd_family().is_some_and(|family| family >= ZEN_5)
}
