//! A figure as a picture: SVG, without scripts or fonts of its own.

use std::fmt::Write as _;

use crate::report::{Curve, FigureReport, Panel, Series};

// Sizes in pixels.
const PANEL_WIDTH: f64 = 500.0;
const PLOT_WIDTH: f64 = 410.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 74.0;
/// From the axis to the legend.
const BELOW: f64 = 78.0;
const LEGEND_LINE: f64 = 18.0;
/// A letter of the title, with some air.
const TITLE_LETTER: f64 = 9.6;

/// Colours that differ in lightness, too.
const COLOURS: [&str; 6] = ["#1b3a5c", "#b5482a", "#3c7d5a", "#8a5aa8", "#c79a1e", "#4a4a4a"];

/// With more values along x than this their names are drawn vertically.
const LEVEL_NAMES_MAX: usize = 12;

/// One direction of a plot.
struct PlotScale {
    low: f64,
    high: f64,
    is_log: bool,
    length: f64,
}

impl PlotScale {
    /// How far along `value` is.
    fn at(&self, value: f64) -> f64 {
        let way = |value: f64| if self.is_log { value.max(1e-12).ln() } else { value };
        let (low, high) = (way(self.low), way(self.high));
        (way(value) - low) / (high - low) * self.length
    }
}

/// Round steps up to `high`, about six.
fn steps(high: f64) -> Vec<f64> {
    let rough = high / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(power);
    (0..=12)
        .map(|index| f64::from(index) * step)
        .take_while(|value| *value <= high * 1.001)
        .collect()
}

/// 1, 2 and 5 of each power of ten between two values.
fn log_steps(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let powers = (first..first + 8).map(|power| 10f64.powi(power));
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * power));
    all.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
}

/// Text that XML takes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// What is written at an axis.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() { "0".to_owned() } else { text.to_owned() }
}

impl FigureReport {
    /// The figure as SVG.
    pub fn svg(&self) -> String {
        let title = format!("Figure {}: {}", self.figure.number(), self.title);
        let panels_width = PANEL_WIDTH * self.panels.len() as f64;
        let width = panels_width.max(TITLE_LETTER * title.chars().count() as f64);
        let margin = (width - panels_width) / 2.0;
        let lines = self.panels.iter().map(|panel| panel.curves.len()).max().unwrap_or_default();
        let legend = LEGEND_LINE * lines.div_ceil(2) as f64;
        let height = TOP + PLOT_HEIGHT + BELOW + legend + 10.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(
            &mut svg,
            (width / 2.0, 26.0),
            "middle",
            "font-size=\"15\" font-weight=\"bold\"",
            &title,
        );
        for (index, panel) in (0u32..).zip(&self.panels) {
            self.draw_panel(&mut svg, margin + f64::from(index) * PANEL_WIDTH, panel);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn scales(&self, panel: &Panel) -> (PlotScale, PlotScale) {
        let points = || panel.curves.iter().flat_map(|curve| &curve.points);
        let (first, last) = (self.ticks.first(), self.ticks.last());
        let low = first.map_or(0.0, |tick| tick.0);
        let high = last.map_or(1.0, |tick| tick.0).max(low + 1.0);
        let (low, high) = if self.x_is_log {
            (low / 1.15, high * 1.15)
        } else {
            (low - (high - low) * 0.03, high + (high - low) * 0.03)
        };
        let x = PlotScale { low, high, is_log: self.x_is_log, length: PLOT_WIDTH };
        let top = points().map(|point| point.1).fold(0.0, f64::max).max(1e-9);
        let bottom = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let (low, high) = if self.y_is_log { (bottom / 1.3, top * 1.3) } else { (0.0, top * 1.08) };
        (x, PlotScale { low, high, is_log: self.y_is_log, length: PLOT_HEIGHT })
    }

    fn draw_panel(&self, svg: &mut String, left: f64, panel: &Panel) {
        let (x, y) = self.scales(panel);
        let (left, bottom) = (left + LEFT, TOP + PLOT_HEIGHT);
        let middle = left + PLOT_WIDTH / 2.0;
        text(svg, (middle, 54.0), "middle", "font-size=\"13\"", &panel.title);
        self.draw_axes(svg, (left, bottom), &x, &y);
        for (at, name) in &self.marks {
            let across = left + x.at(*at);
            line(svg, (across, TOP), (across, bottom), "stroke=\"#999\" stroke-dasharray=\"2 4\"");
            let anchor = if x.at(*at) > PLOT_WIDTH / 2.0 { "end" } else { "start" };
            text(svg, (across - 4.0, TOP + 14.0), anchor, "fill=\"#666\" font-size=\"11\"", name);
        }
        for (index, curve) in panel.curves.iter().enumerate() {
            let place = |&(across, up): &(f64, f64)| (left + x.at(across), bottom - y.at(up));
            let points: Vec<_> = curve.points.iter().map(place).collect();
            let colour = colour(panel, index);
            let look = look(curve, colour);
            for stroke in points.chunks(self.stroke.unwrap_or(points.len()).max(1)) {
                draw_stroke(svg, stroke, &look, colour, curve.series);
            }
            let row = bottom + BELOW + LEGEND_LINE * (index / 2) as f64;
            let column = left - 40.0 + if index % 2 == 0 { 0.0 } else { 232.0 };
            line(svg, (column, row), (column + 28.0, row), &look);
            text(svg, (column + 34.0, row + 4.0), "start", "", &curve.name);
        }
    }

    fn draw_axes(
        &self,
        svg: &mut String,
        (left, bottom): (f64, f64),
        x: &PlotScale,
        y: &PlotScale,
    ) {
        let values = if y.is_log { log_steps(y.low, y.high) } else { steps(y.high) };
        for value in values {
            let up = bottom - y.at(value);
            line(svg, (left, up), (left + PLOT_WIDTH, up), "stroke=\"#e2e2e2\"");
            text(svg, (left - 8.0, up + 4.0), "end", "", &label(value));
        }
        let upright = self.ticks.len() > LEVEL_NAMES_MAX;
        for (value, name) in &self.ticks {
            let across = left + x.at(*value);
            line(svg, (across, bottom), (across, bottom + 5.0), "stroke=\"#444\"");
            if upright {
                let (down, turned) = (bottom + 10.0, across + 4.0);
                let turn = format!("transform=\"rotate(-90 {turned:.1} {down:.1})\"");
                text(svg, (turned, down), "end", &turn, name);
            } else {
                text(svg, (across, bottom + 19.0), "middle", "", name);
            }
        }
        line(svg, (left, bottom), (left + PLOT_WIDTH, bottom), "stroke=\"#444\"");
        line(svg, (left, bottom), (left, TOP), "stroke=\"#444\"");
        text(svg, (left + PLOT_WIDTH / 2.0, bottom + 54.0), "middle", "", &self.x);
        let (across, up) = (left - 48.0, TOP + PLOT_HEIGHT / 2.0);
        text(
            svg,
            (across, up),
            "middle",
            &format!("transform=\"rotate(-90 {across} {up})\""),
            &self.y,
        );
    }
}

/// Curves of the same place in their series have the same colour.
fn colour(panel: &Panel, index: usize) -> &'static str {
    let curve = &panel.curves[index];
    let groups = panel.curves.iter().filter(|other| other.series == curve.series).count();
    let before = &panel.curves[..index];
    let place = if groups > 1 {
        before.iter().filter(|other| other.series == curve.series).count()
    } else {
        match curve.series {
            Series::Thesis => 1,
            Series::Calibrated | Series::Linear => 0,
            Series::Ideal => 2,
            Series::Other => 3,
        }
    };
    COLOURS[place % COLOURS.len()]
}

fn look(curve: &Curve, colour: &str) -> String {
    let (width, dashes) = match curve.series {
        Series::Thesis => (1.5, " stroke-dasharray=\"7 4\""),
        Series::Linear => (1.0, " stroke-dasharray=\"1 4\""),
        Series::Other => (1.8, " stroke-dasharray=\"9 3 2 3\""),
        Series::Calibrated | Series::Ideal => (2.0, ""),
    };
    format!("stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}")
}

fn draw_stroke(svg: &mut String, points: &[(f64, f64)], look: &str, colour: &str, series: Series) {
    let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" {look}/>", path.join(" "));
    if series == Series::Linear {
        return;
    }
    for (x, y) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"white\" stroke=\"{colour}\" \
             stroke-width=\"1.6\"/>"
        );
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), look: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {look}/>");
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, look: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {look}>{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_cover_the_axis() {
        assert_eq!(steps(30.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(steps(0.9).len(), 5);
        assert_eq!(log_steps(0.4, 30.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!([0.0, 0.25, 20.0].map(label), ["0", "0.25", "20"]);
    }

    #[test]
    fn a_scale_puts_its_ends_at_its_ends() {
        for is_log in [false, true] {
            let scale = PlotScale { low: 2.0, high: 32.0, is_log, length: 100.0 };
            assert!(scale.at(2.0).abs() < 1e-9 && (scale.at(32.0) - 100.0).abs() < 1e-9);
        }
        let scale = PlotScale { low: 1.0, high: 16.0, is_log: true, length: 4.0 };
        assert!((scale.at(2.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn text_cannot_break_the_picture() {
        assert_eq!(escaped("a<b & c>d"), "a&lt;b &amp; c&gt;d");
    }
}
