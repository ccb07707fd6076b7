//! Curves as SVG: enough to see a table at a glance.

use std::fmt::Write;
use std::path::Path;

use crate::error::{Error, Result};

const COLOURS: [&str; 6] = ["#1b6ca8", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#555555"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 56.0;

/// A named line through points.
pub struct Line {
    /// Its name.
    pub name: String,
    /// `(x, y)`; one alone is a dot.
    pub points: Vec<(f64, f64)>,
}

/// Names of the axes.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The axis from left to right.
    pub x: &'a str,
    /// The axis from bottom to top.
    pub y: &'a str,
}

/// Writes lines over common axes.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, axes: Axes<'_>, lines: &[Line]) -> Result<()> {
    let Axes { x: x_name, y: y_name } = axes;
    let all = lines.iter().flat_map(|line| &line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let values = all.clone().map(of).filter(|value| value.is_finite());
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low < high { (low, high) } else { (low.min(0.0), low.max(0.0) + 1.0) }
    };
    let ((x_low, x_high), (y_low, y_high)) = (bounds(|point| point.0), bounds(|point| point.1));
    let x = |value: f64| MARGIN + (value - x_low) / (x_high - x_low) * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - (value - y_low) / (y_high - y_low) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (at_x, at_y) = (x_low + share * (x_high - x_low), y_low + share * (y_high - y_low));
        let (px, py) = (x(at_x), y(at_y));
        let _ = writeln!(
            svg,
            "<path d=\"M{MARGIN} {py:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{at_y:.3}</text>\
             <text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at_x:.2}</text>",
            WIDTH - MARGIN,
            MARGIN - 6.0,
            py + 4.0,
            HEIGHT - MARGIN + 18.0
        );
    }
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<String> = line.points.iter().map(|&(a, b)| format!("{:.1},{:.1}", x(a), y(b))).collect();
        if let [(px, py)] = line.points[..] {
            let _ = writeln!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", x(px), y(py));
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            MARGIN + 12.0,
            MARGIN + 16.0 * (i as f64 + 1.0),
            escaped(&line.name)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"12\" y=\"24\">{}</text>\n</svg>",
        WIDTH / 2.0,
        HEIGHT - 12.0,
        escaped(x_name),
        escaped(y_name)
    );
    std::fs::write(path, svg).map_err(|error| Error::io("write", path, &error))
}

/// Returns text as SVG has it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
