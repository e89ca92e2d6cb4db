//! A chart of a backlog that grew and was drained: rate, memory and disk, one above the other, over the same time.

use plotters::coord::Shift;
use plotters::prelude::{
    BLUE, Cartesian2d, ChartBuilder, ChartContext, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, IntoFont,
    LineSeries, PathElement, RGBColor, SVGBackend, SeriesLabelPosition, TextStyle, WHITE,
};
use plotters::style::{Color, IntoTextStyle};

use crate::samples::{Phase, Sample};

/// Of the whole chart, in pixels.
const SIZE: (u32, u32) = (1_000, 960);

/// Beyond so many seconds the time is in minutes.
const SECONDS_MAX: f64 = 300.0;

/// Room above the highest point, also for what the lines are called.
const HEADROOM: f64 = 1.3;

const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GREY: RGBColor = RGBColor(110, 110, 110);

/// What drawing may say.
type Failure = Box<dyn std::error::Error>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a panel.
struct Line {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws the samples as SVG.
///
/// # Errors
/// What the drawing says.
pub fn draw(samples: &[Sample], title: &str) -> Result<String, Failure> {
    let end = samples.iter().map(|sample| sample.seconds).fold(1.0, f64::max);
    let (unit, seconds) = if end > SECONDS_MAX { ("minutes", 60.0) } else { ("seconds", 1.0) };
    let line = |name, colour, phases: &[Phase], value: &dyn Fn(&Sample) -> Option<f64>| Line {
        name,
        colour,
        points: samples
            .iter()
            .filter(|sample| phases.contains(&sample.phase))
            .filter_map(|sample| Some((sample.seconds / seconds, value(sample)?)))
            .collect(),
    };
    let all = [Phase::Publish, Phase::Drain, Phase::GivingBack];
    let rate = |sample: &Sample| Some(sample.messages_per_second / 1e6);
    let panels = [
        (
            "million messages a second",
            vec![line("published", BLUE, &[Phase::Publish], &rate), line("drained", ORANGE, &[Phase::Drain], &rate)],
        ),
        (
            "memory of the broker, MiB",
            vec![line("resident", BLUE, &all, &|sample| Some(sample.broker_rss_bytes as f64 / f64::from(1 << 20)))],
        ),
        (
            "disk, GiB",
            vec![
                line("taken by the broker's folder", BLUE, &all, &|sample| {
                    Some(sample.disk_bytes? as f64 / f64::from(1 << 30))
                }),
                line("still owed", GREY, &all, &|sample| Some(sample.storage_bytes_live as f64 / f64::from(1 << 30))),
            ],
        ),
    ];
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(title, ("sans-serif", 22))?;
        for (area, (what, lines)) in area.split_evenly((panels.len(), 1)).iter().zip(&panels) {
            panel(area, what, unit, end / seconds, lines)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn panel(area: &Area<'_>, what: &str, unit: &str, end: f64, lines: &[Line]) -> Result<(), Failure> {
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(0.0, f64::max);
    // A panel without anything in it has a height all the same.
    let height = if highest > 0.0 { highest * HEADROOM } else { 1.0 };
    let small: TextStyle<'_> = ("sans-serif", 14).into_font().into_text_style(area);
    let mut chart = ChartBuilder::on(area)
        .caption(what, ("sans-serif", 17))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..height)?;
    chart.configure_mesh().x_desc(unit).label_style(small.clone()).light_line_style(WHITE).draw()?;
    for line in lines {
        add(&mut chart, line)?;
    }
    if lines.len() > 1 {
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).label_font(small).draw()?;
    }
    Ok(())
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn add(chart: &mut Chart<'_, '_>, line: &Line) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let style = line.colour.stroke_width(2);
    chart
        .draw_series(LineSeries::new(line.points.iter().copied(), style))?
        .label(line.name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(phase: Phase, seconds: f64, rate: f64) -> Sample {
        Sample {
            phase,
            seconds,
            messages: 1,
            messages_per_second: rate,
            broker_rss_bytes: 100 << 20,
            disk_bytes: Some(1 << 30),
            storage_bytes_live: 1 << 29,
        }
    }

    #[test]
    fn a_chart_shows_every_line_over_the_time_it_was_there() {
        let samples = [
            sample(Phase::Publish, 1.0, 1e6),
            sample(Phase::Publish, 400.0, 9e5),
            sample(Phase::Drain, 401.0, 2e6),
            sample(Phase::Drain, 600.0, 2e6),
        ];
        let svg = draw(&samples, "a backlog").unwrap();
        for word in ["a backlog", "published", "drained", "memory of the broker, MiB", "still owed", "minutes"] {
            assert!(svg.contains(word), "no `{word}` in\n{svg}");
        }
        // Two rates, one memory, two of the disk, and a legend for each of the pairs.
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 9, "{svg}");
    }

    #[test]
    fn a_run_without_a_known_disk_has_an_empty_panel_and_not_an_error() {
        let mut only = sample(Phase::Publish, 1.0, 1e6);
        (only.disk_bytes, only.storage_bytes_live) = (None, 0);
        assert!(draw(&[only], "short").unwrap().contains("seconds"));
    }
}
