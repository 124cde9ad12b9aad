//! SVG plots: bars of increments per second and peer on a logarithmic scale, since they differ by orders of magnitude,
//! and lines over the number of pods.

use std::path::Path;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::figures::{Comparison, Sample, Spread, thousands};
use crate::peers::Peer;
use crate::scenario::Scenario;

/// Size of a plot in pixels, and of the margins beside its bars.
const WIDTH: u32 = 900;
const HEAD: i32 = 40;
const LABELS: i32 = 150;
const BAR: i32 = 16;
const GAP: i32 = 30;

/// The ends of the scale, in increments per second.
const SCALE: (f64, f64) = (100.0, 10_000_000.0);

struct Bar {
    peer: Peer,
    rate: Spread,
}

/// Draws the results of one mode.
///
/// # Errors
/// If the file can't be written.
pub(crate) fn draw(comparison: &Comparison, file: &Path) -> anyhow::Result<()> {
    let groups: Vec<(Scenario, Vec<Bar>)> =
        comparison.scenarios().map(|scenario| (scenario, bars(comparison, scenario))).collect();
    let rows: i32 =
        groups.iter().map(|(_, bars)| GAP + bars.iter().map(|_| BAR).sum::<i32>()).sum();
    let height = u32::try_from(HEAD + rows + GAP)?;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    let drawn = paint(&area, &comparison.mode, &groups).and_then(|()| Ok(area.present()?));
    drawn.with_context(|| format!("cannot draw {}", file.display()))
}

fn bars(comparison: &Comparison, scenario: Scenario) -> Vec<Bar> {
    let rate = |peer| Spread::of(comparison.of(scenario, peer).map(Sample::rate));
    comparison.peers(scenario).filter_map(|peer| Some(Bar { peer, rate: rate(peer)? })).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn paint(area: &Area<'_>, title: &str, groups: &[(Scenario, Vec<Bar>)]) -> anyhow::Result<()> {
    let text = |size: i32| ("sans-serif", size).into_font();
    let black = |text: FontDesc<'static>| text.color(&BLACK);
    area.fill(&WHITE)?;
    let title = format!("{title}: increments a second, logarithmic");
    area.draw_text(&title, &black(text(16)), (10, 12))?;
    let mut y = HEAD;
    for (scenario, bars) in groups {
        area.draw_text(scenario.title(), &black(text(13)), (10, y + GAP - 20))?;
        y += GAP;
        for Bar { peer, rate } in bars {
            area.draw_text(peer.name(), &black(text(12)), (30, y + 2))?;
            let end = x(rate.median);
            let bar = Rectangle::new([(LABELS, y + 1), (end, y + BAR - 2)], color(*peer).filled());
            area.draw(&bar)?;
            let middle = y + BAR / 2;
            let whisker = vec![(x(rate.least), middle), (x(rate.most), middle)];
            area.draw(&PathElement::new(whisker, BLACK))?;
            let at = (end.max(x(rate.most)) + 6, y + 2);
            area.draw_text(&thousands(rate.median), &black(text(12)), at)?;
            y += BAR;
        }
    }
    Ok(())
}

/// Draws one line per peer over a few points, from zero.
///
/// # Errors
/// If the file can't be written.
pub(crate) fn lines<const POINTS: usize>(
    title: &str,
    below: &str,
    points: &[usize; POINTS],
    lines: &[(Peer, [f64; POINTS])],
    file: &Path,
) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let all = lines.iter().flat_map(|(_, rates)| rates.iter().copied());
    let (most, last) = (1.1 * all.fold(1.0, f64::max), points[POINTS - 1] as f64);
    let area = SVGBackend::new(file, (WIDTH, WIDTH / 2)).into_drawing_area();
    let drawn = (|| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(35)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..1.1 * last, 0.0..most)?;
        let whole = |value: &f64| thousands(*value);
        chart.configure_mesh().x_desc(below).y_label_formatter(&whole).draw()?;
        for (peer, rates) in lines {
            let color = color(*peer);
            let line = points.iter().map(|point| *point as f64).zip(rates.iter().copied());
            let end = (last, rates[POINTS - 1]);
            chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(2)))?;
            chart.draw_series(line.map(|at| Circle::new(at, 3, color.filled())))?;
            let name = Text::new(peer.name(), end, ("sans-serif", 13));
            chart.draw_series([name])?;
        }
        area.present()
    })();
    drawn.map_err(|error| anyhow::anyhow!("cannot draw {}: {error}", file.display()))
}

fn color(peer: Peer) -> RGBColor {
    if peer == Peer::Ours { RGBColor(20, 110, 180) } else { RGBColor(190, 195, 200) }
}

/// The position of a rate on the scale.
fn x(rate: f64) -> i32 {
    let share = (rate / SCALE.0).ln() / (SCALE.1 / SCALE.0).ln();
    let room = f64::from(WIDTH) - f64::from(LABELS) - 80.0;
    #[allow(clippy::cast_possible_truncation, reason = "within the plot")]
    let bar = (share.clamp(0.0, 1.0) * room).round() as i32;
    LABELS + bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenfold_rate_is_the_same_step_everywhere() {
        assert_eq!(x(1.0), LABELS);
        assert_eq!(x(1e9), x(SCALE.1));
        let steps: Vec<i32> = [1e3, 1e4, 1e5, 1e6].map(x).windows(2).map(|p| p[1] - p[0]).collect();
        assert!(steps.iter().all(|step| (step - steps[0]).abs() <= 1), "{steps:?}");
    }
}
