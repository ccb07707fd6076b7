//! The texts of all kernels: naga accepts them, and they are as their constants say.

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use ruvllm_shaders::{Kernel, METAL_PASS_INDEX, MetalKernel, Reduction};

#[test]
fn naga_accepts_every_kernel() {
    for kernel in Kernel::all() {
        let (name, source) = (kernel.name(), kernel.source());
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&source)));
        let needs = kernel.needs();
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        capabilities.set(Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER, needs.subgroups);
        capabilities.set(Capabilities::SHADER_FLOAT16, needs.f16);
        Validator::new(ValidationFlags::all(), capabilities)
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all())
            .validate(&module)
            .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&source)));
        let [entry] = &module.entry_points[..] else { panic!("{name} has not one entry point") };
        assert_eq!(entry.workgroup_size, [kernel.workgroup_len(), 1, 1], "{name}");
        assert_eq!(entry.name, "main");
    }
}

#[test]
fn names_are_unique() {
    let names: Vec<String> = Kernel::all().iter().map(Kernel::name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn every_kernel_has_a_metal_text_but_the_shared_ones() {
    for kernel in Kernel::all() {
        let name = kernel.name();
        let metal = MetalKernel::named(&name);
        assert_eq!(metal.is_none(), kernel.reduction() == Some(Reduction::Shared), "{name}");
        let Some(metal) = metal else { continue };
        assert_eq!(metal.threadgroup_len, kernel.workgroup_len(), "{name}");
        assert!(metal.source.contains(&format!("kernel void {}(", metal.entry)), "{name}");
        for (index, binding) in (0..).zip(kernel.bindings()) {
            assert!(metal.buffers.contains(&(binding.name, index)), "{name} does not use {}", binding.name);
        }
    }
}

#[test]
fn metal_indices_do_not_meet() {
    for kernel in Kernel::all() {
        assert!(kernel.bindings().len() <= METAL_PASS_INDEX, "{}", kernel.name());
    }
}

#[test]
fn shared_memory_fits_what_webgpu_grants() {
    for kernel in Kernel::all() {
        let module = naga::front::wgsl::parse_str(&kernel.source()).expect("tested above");
        let layouts = module.to_ctx();
        let bytes: u32 = (module.global_variables.iter())
            .filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup)
            .map(|(_, variable)| module.types[variable.ty].inner.size(layouts))
            .sum();
        assert!(bytes <= 16_384, "{} has {bytes} bytes of shared memory", kernel.name());
    }
}
