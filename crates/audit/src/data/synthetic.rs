//! Records made up by a rule, for checks against theory.

use afterimage_nn::Stream;

use super::Records;

/// Points on the sphere that are drawn.
const POINTS: usize = 1000;
/// Most elements of a made-up record.
pub(super) const LARGEST: usize = 8192;

/// The axes e_1, e_2, … of a space, with labels in turn: the tensor paper's data.
pub(super) fn axes(dimension: usize) -> Records {
    let count = dimension.min(POINTS);
    let value = |index: usize| f32::from(u8::from(index / dimension == index % dimension));
    records("axis", dimension, (0..count * dimension).map(value).collect())
}

/// So many points evenly spaced on the unit circle with labels in turn, the KKT paper's, and
/// then random points of the circle.
pub(super) fn circle(count: usize) -> Records {
    let mut stream = Stream::new(0, "data/circle", count as u64);
    let angle = |index: usize| match index {
        even if even < count => even as f64 / count as f64,
        _ => stream.uniform(0.0, 1.0),
    };
    let angles: Vec<f64> = (0..count + POINTS).map(angle).map(|turn| 2.0 * std::f64::consts::PI * turn).collect();
    records("point", 2, angles.iter().flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect())
}

/// Random points of length 1, always the same ones, with labels in turn.
pub(super) fn sphere(dimension: usize) -> Records {
    let mut stream = Stream::new(0, "data/sphere", dimension as u64);
    let values = (0..POINTS * dimension).map(|_| stream.normal() as f32).collect();
    let mut points = records("point", dimension, values);
    points.normalise();
    points
}

fn records(name: &str, dimension: usize, values: Vec<f32>) -> Records {
    let count = values.len() / dimension.max(1);
    Records {
        shape: vec![dimension],
        values,
        labels: (0..count).map(|index| (index + 1) % 2).collect(),
        ids: (1..=count).map(|index| format!("{name}-{index}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_axes_and_points_have_length_one() {
        let axes = axes(3);
        assert_eq!(axes.values, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!((axes.labels.as_slice(), axes.ids[2].as_str()), (&[1, 0, 1][..], "axis-3"));
        let circle = circle(4);
        assert_eq!((circle.len(), circle.labels[..4].to_vec()), (1004, vec![1, 0, 1, 0]));
        assert!((circle.values[2]).abs() < 1e-6 && (circle.values[3] - 1.0).abs() < 1e-6);
        let points = sphere(5);
        for point in points.values.chunks_exact(5) {
            assert!((point.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-6);
        }
        assert_eq!((points.len(), points.labels.len()), (1000, 1000));
    }
}
