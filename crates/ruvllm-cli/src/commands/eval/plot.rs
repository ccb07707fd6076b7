//! Learning curves as an SVG picture: a panel a stream, and what controls lose beside it.

use std::fmt::Write;

use ruvllm_cli_tools::chart::escaped;

/// Colours of lines, for black and white too in their order of lightness.
const COLOURS: [&str; 8] = ["#1b4f72", "#b03a2e", "#1e8449", "#9a7d0a", "#6c3483", "#a04000", "#148f77", "#566573"];
/// Of a panel, in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 70.0;
const GAP: f64 = 64.0;

/// A panel: a line a variant.
pub struct Panel {
    pub title: String,
    /// Name and values, a fraction each.
    pub lines: Vec<(String, Vec<f64>)>,
    /// End of the horizontal axis, and its name.
    pub x_end: f64,
    pub x_name: &'static str,
}

/// Draws panels one below another.
pub fn draw(panels: &[Panel]) -> String {
    let height = panels.len() as f64 * (HEIGHT + GAP) + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 230.0
    );
    for (i, panel) in panels.iter().enumerate() {
        draw_panel(&mut svg, panel, 34.0 + i as f64 * (HEIGHT + GAP));
    }
    svg + "</svg>\n"
}

fn draw_panel(svg: &mut String, panel: &Panel, top: f64) {
    let values = || panel.lines.iter().flat_map(|line| &line.1).copied().filter(|x| x.is_finite());
    let low = values().fold(-0.01f64, f64::min);
    let high = values().fold(0.01f64, f64::max);
    let y = |value: f64| top + HEIGHT * (high - value) / (high - low);
    let mut put = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "{line}");
    };
    put(format!("<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>", top - 10.0, escaped(&panel.title)));
    for tick in ticks(low, high) {
        let (at, percent) = (y(tick), tick * 100.0);
        put(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent:+.0} %</text>",
            LEFT + WIDTH,
            if tick == 0.0 { "#000" } else { "#ddd" },
            LEFT - 6.0,
            at + 4.0,
        ));
    }
    for (i, (name, line)) in panel.lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let step = WIDTH / line.len().max(1) as f64;
        let points = line.iter().enumerate().filter(|(_, value)| value.is_finite());
        let points = points.map(|(x, &value)| format!("{:.1},{:.1}", LEFT + (x as f64 + 0.5) * step, y(value)));
        let points = points.collect::<Vec<_>>().join(" ");
        put(format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"));
        let (x, at) = (LEFT + WIDTH + 14.0, top + 12.0 + 18.0 * i as f64);
        put(format!(
            "<line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            x + 18.0,
            at - 4.0,
            at - 4.0,
            x + 24.0,
            escaped(name),
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {}</text>",
        LEFT + WIDTH,
        top + HEIGHT + 18.0,
        panel.x_end,
        panel.x_name
    ));
}

/// Returns round values within a range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| (high - low) / step <= 7.0);
    let step = step.unwrap_or(10.0);
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|&tick| tick <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_line_for_each_variant() {
        let lines = vec![("all & more".to_owned(), vec![-0.1, -0.2, f64::NAN]), ("none".to_owned(), vec![0.0; 3])];
        let panel = Panel { title: "a<b".to_owned(), lines, x_end: 3.0, x_name: "tokens" };
        let svg = draw(&[panel]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
        assert_eq!((svg.matches("<polyline").count(), svg.matches("all &amp; more").count()), (2, 1));
        assert_eq!(ticks(-0.21, 0.01), [-0.2, -0.15000000000000002, -0.1, -0.05, 0.0]);
    }
}
