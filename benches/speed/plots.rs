//! The curves as SVG.

use std::path::{Path, PathBuf};

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::report::{Curve, Curves};
use crate::{Outcome, ROOT};

const SIZE: (u32, u32) = (760, 440);

struct Plot<'a> {
    file: PathBuf,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// Whether x is logarithmic. The y axis always begins at zero.
    logarithmic: bool,
    curves: &'a [Curve],
}

/// Draws into docs/plots, or into target/bench/plots if the run was partial.
pub fn draw(curves: &Curves, partial: bool) -> Outcome<()> {
    let root = Path::new(ROOT);
    let dir = root.join(if partial { "target/bench/plots" } else { "docs/plots" });
    std::fs::create_dir_all(&dir)?;
    let plot = |file: &str, title, x, y, logarithmic, curves| {
        Plot { file: dir.join(file), title, x, y, logarithmic, curves }.draw()
    };
    plot("hand-off.svg", "Hand-off, p50", "waiters", "µs", true, &curves.hand_off)?;
    plot(
        "throughput.svg",
        "Lock and unlock, a name for each task",
        "tasks",
        "pairs a second",
        true,
        &curves.throughput,
    )?;
    plot("fairness.svg", "16 tasks, holds of 1 ms", "task, by what it got", "holds", false, &curves.fairness)?;
    plot("waiting.svg", "Cost of waiting for one name", "waiters", "% of a core", true, &curves.waiting)
}

impl Plot<'_> {
    fn draw(&self) -> Outcome<()> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::MIN, f64::max);
        let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::MAX, f64::min);
        if points().next().is_none() {
            return Ok(());
        }
        let root = SVGBackend::new(&self.file, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root);
        chart.caption(self.title, ("sans-serif", 18)).margin(14);
        chart.x_label_area_size(44).y_label_area_size(72);
        let (x, y) = (least(|point| point.0)..most(|point| point.0) * 1.02, most(|point| point.1) * 1.1);
        if self.logarithmic {
            self.lines(chart.build_cartesian_2d(x.log_scale(), 0.0..y)?)?;
        } else {
            self.lines(chart.build_cartesian_2d(x, 0.0..y)?)?;
        }
        Ok(root.present()?)
    }

    fn lines<'a, X, Y>(&self, mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>) -> Outcome<()>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart.configure_mesh().x_desc(self.x).y_desc(self.y).light_line_style(TRANSPARENT).draw()?;
        for (index, curve) in self.curves.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let drawn = chart.draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?;
            drawn
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
            chart.draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
        Ok(())
    }
}
