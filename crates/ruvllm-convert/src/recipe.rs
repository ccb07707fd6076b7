//! Names of recipes, and the numbers that files carry for them.

use std::fmt;

use ruvllm_ggml::GgmlType;

use crate::error::ConvertError;

macro_rules! recipes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $file_type:literal, $ty:ident;)*) => {
        /// A recipe: a type that most matrices get, and others for those that suffer more from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "these are the names the field uses")]
        pub enum Recipe { $($(#[$doc])* $variant,)* }

        impl Recipe {
            /// Every recipe, from small files to large ones.
            pub const ALL: &[Recipe] = &[$(Recipe::$variant,)*];

            /// Returns the recipe's name, e.g. `Q4_K_M`.
            pub fn name(self) -> &'static str { match self { $(Recipe::$variant => $name,)* } }

            /// Returns the number in `general.file_type`.
            pub fn file_type(self) -> u32 { match self { $(Recipe::$variant => $file_type,)* } }

            /// Returns the type that most matrices get.
            pub fn default_type(self) -> GgmlType { match self { $(Recipe::$variant => GgmlType::$ty,)* } }
        }
    };
}

recipes! {
    /// Three levels in a codebook, an offset and a scale per 32; needs an importance matrix.
    IQ1_S = "IQ1_S", 24, IQ1_S;
    /// As IQ1_S, with a scale per 16; needs an importance matrix.
    IQ1_M = "IQ1_M", 31, IQ1_M;
    /// Codebook of 2 bits, a scale per 32; needs an importance matrix.
    IQ2_XXS = "IQ2_XXS", 19, IQ2_XXS;
    /// A larger codebook of 2 bits, a scale per 16; needs an importance matrix.
    IQ2_XS = "IQ2_XS", 20, IQ2_XS;
    /// IQ2_XS, with larger types for some; needs an importance matrix.
    IQ2_S = "IQ2_S", 28, IQ2_XS;
    /// IQ2_S, with larger types for some; needs an importance matrix.
    IQ2_M = "IQ2_M", 29, IQ2_S;
    /// Q2_K, without the larger types for some; needs an importance matrix.
    Q2_K_S = "Q2_K_S", 21, Q2_K;
    /// Q2_K, with larger types for attention values and the way down.
    Q2_K = "Q2_K", 10, Q2_K;
    /// Codebook of 3 bits, with IQ2_S for attention queries and keys; needs an importance matrix.
    IQ3_XXS = "IQ3_XXS", 23, IQ3_XXS;
    /// Codebooks of 3 bits, the smaller one for most; needs an importance matrix.
    IQ3_XS = "IQ3_XS", 22, IQ3_S;
    /// The larger codebook of 3 bits.
    IQ3_S = "IQ3_S", 26, IQ3_S;
    /// IQ3_S, with a larger type for attention and the first ways down.
    IQ3_M = "IQ3_M", 27, IQ3_S;
    /// Q3_K.
    Q3_K_S = "Q3_K_S", 11, Q3_K;
    /// Q3_K, with larger types for some.
    Q3_K_M = "Q3_K_M", 12, Q3_K;
    /// Q3_K, with larger types for more.
    Q3_K_L = "Q3_K_L", 13, Q3_K;
    /// Codebook of 4 bits in super-blocks.
    IQ4_XS = "IQ4_XS", 30, IQ4_XS;
    /// Codebook of 4 bits.
    IQ4_NL = "IQ4_NL", 25, IQ4_NL;
    /// 4 bits, a scale per 32.
    Q4_0 = "Q4_0", 2, Q4_0;
    /// Q4_K, with a larger type for the first layers.
    Q4_K_S = "Q4_K_S", 14, Q4_K;
    /// Q4_K, with a larger type for half of the sensitive matrices.
    Q4_K_M = "Q4_K_M", 15, Q4_K;
    /// MXFP4 for experts, Q8_0 for the rest.
    MXFP4_MOE = "MXFP4_MOE", 38, MXFP4;
    /// 4 bits, a scale and a minimum per 32.
    Q4_1 = "Q4_1", 3, Q4_1;
    /// 5 bits, a scale per 32.
    Q5_0 = "Q5_0", 8, Q5_0;
    /// Q5_K.
    Q5_K_S = "Q5_K_S", 16, Q5_K;
    /// Q5_K, with a larger type for half of the sensitive matrices.
    Q5_K_M = "Q5_K_M", 17, Q5_K;
    /// 5 bits, a scale and a minimum per 32.
    Q5_1 = "Q5_1", 9, Q5_1;
    /// Q6_K.
    Q6_K = "Q6_K", 18, Q6_K;
    /// 8 bits, a scale per 32.
    Q8_0 = "Q8_0", 7, Q8_0;
    /// IEEE halves.
    F16 = "F16", 1, F16;
    /// bfloat16.
    BF16 = "BF16", 32, BF16;
}

impl Recipe {
    /// Returns whether the recipe asks for an importance matrix, whatever the model.
    pub fn needs_importance(self) -> bool {
        use Recipe::*;
        matches!(self, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M | IQ3_XXS | IQ3_XS | Q2_K_S)
    }

    /// Finds a recipe by its name, in capital or small letters; `Q3_K`, `Q4_K` and `Q5_K` are short for the `_M` ones.
    ///
    /// # Errors
    /// There is none of this name; the line lists them.
    pub fn parse(name: &str) -> Result<Recipe, ConvertError> {
        let upper = name.to_ascii_uppercase();
        let full = match upper.as_str() {
            "Q3_K" | "Q4_K" | "Q5_K" => upper + "_M",
            _ => upper,
        };
        Recipe::ALL.iter().copied().find(|recipe| recipe.name() == full).ok_or_else(|| {
            let names: Vec<&str> = Recipe::ALL.iter().map(|recipe| recipe.name()).collect();
            ConvertError::usage(format!("no type '{}'; choose one of {}", crate::error::shown(name), names.join(", ")))
        })
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for recipe in Recipe::ALL {
            assert_eq!(Recipe::parse(recipe.name()).expect("its name"), *recipe);
        }
        assert_eq!(Recipe::parse("q4_k").expect("short for one"), Recipe::Q4_K_M);
        let line = Recipe::parse("Q9").expect_err("no such").to_string();
        assert!(line.starts_with("no type 'Q9'; choose one of IQ1_S, IQ1_M,"), "{line}");
    }
}
