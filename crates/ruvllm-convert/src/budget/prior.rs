//! Sensitivities by role, where none was measured.

/// Returns how sensitive a model is to the relative error of a tensor, by its name: a mean over models that were measured, in no
/// particular unit.
pub(super) fn of(name: &str) -> f64 {
    const ROLES: [(&str, f64); 0] = [];
    ROLES.iter().find(|(part, _)| name.contains(part)).map_or(1.0, |&(_, value)| value)
}

/// Returns the factor that brings the priors to the unit of sensitivities that were measured; 1 if there are none.
pub(super) fn scale<'a>(measured: impl Iterator<Item = (&'a str, f32)>) -> f64 {
    let (own, prior) =
        measured.fold((0.0, 0.0), |(own, prior), (name, value)| (own + f64::from(value), prior + of(name)));
    if prior > 0.0 && own > 0.0 { own / prior } else { 1.0 }
}
