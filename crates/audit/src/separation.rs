//! How well the attacker's own confidence tells members from others: of damaged samples, each candidate belongs to
//! one of them, and its owner knows which were trained on.

use serde::{Deserialize, Serialize};

/// The receiver operating characteristic of a confidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Separation {
    /// The chance that a member is given more confidence than another record; half where both have the same.
    pub auc: f64,
    /// Share of members that have more confidence than every other record.
    pub above_all: f64,
    /// Shares of others and of members that have at least so much, by falling confidence: from (0, 0) to (1, 1).
    pub curve: Vec<[f64; 2]>,
}

impl Separation {
    /// Of each candidate's confidence, and the places of the members among candidates; `None` if there is nobody to
    /// tell apart, or a place is none.
    ///
    /// ```
    /// use afterimage_audit::Separation;
    /// let told = Separation::of(&[0.9, 0.2, 0.8, 0.3], &[0, 3]).unwrap();
    /// assert_eq!((told.auc, told.above_all), (0.75, 0.5));
    /// assert_eq!(told.curve, [[0.0, 0.0], [0.0, 0.5], [0.5, 0.5], [0.5, 1.0], [1.0, 1.0]]);
    /// ```
    pub fn of(confidence: &[f64], members: &[usize]) -> Option<Self> {
        let mut member = vec![false; confidence.len()];
        for &place in members {
            *member.get_mut(place)? = true;
        }
        let count = member.iter().filter(|member| **member).count();
        let others = confidence.len() - count;
        if count == 0 || others == 0 {
            return None;
        }
        let mut order: Vec<usize> = (0..confidence.len()).collect();
        order.sort_by(|&a, &b| confidence[b].total_cmp(&confidence[a]));
        let (mut curve, mut auc) = (vec![[0.0, 0.0]], 0.0);
        let (mut seen, mut found) = (0, 0);
        // Those that are alike are passed at once, along a slope.
        for level in order.chunk_by(|&a, &b| confidence[a] == confidence[b]) {
            let own = level.iter().filter(|&&place| member[place]).count();
            let (before, width) = (found, level.len() - own);
            (seen, found) = (seen + width, found + own);
            auc += width as f64 * (before + found) as f64 / 2.0;
            curve.push([seen as f64 / others as f64, found as f64 / count as f64]);
        }
        let above_all = curve.iter().filter(|point| point[0] == 0.0).map(|point| point[1]).fold(0.0, f64::max);
        Some(Self { auc: auc / (others * count) as f64, above_all, curve })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The area is the share of pairs in which the member comes first.
    #[test]
    fn the_area_counts_pairs() {
        let confidence = [0.1, 0.7, 0.7, 0.4, 0.9, 0.4, 0.2];
        let members = [1, 3, 4];
        let told = Separation::of(&confidence, &members).unwrap();
        let (mut wins, mut pairs) = (0.0, 0.0);
        for &a in &members {
            for b in (0..confidence.len()).filter(|b| !members.contains(b)) {
                pairs += 1.0;
                wins += match confidence[a].total_cmp(&confidence[b]) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                };
            }
        }
        assert!((told.auc - wins / pairs).abs() < 1e-15, "{}", told.auc);
        // The area under the curve itself, by trapezoids.
        let under: f64 = told.curve.windows(2).map(|w| (w[1][0] - w[0][0]) * (w[0][1] + w[1][1]) / 2.0).sum();
        assert!((told.auc - under).abs() < 1e-15);
        assert_eq!(told.curve.last(), Some(&[1.0, 1.0]));
    }

    #[test]
    fn nobody_to_tell_apart_is_no_curve() {
        assert_eq!(Separation::of(&[0.5, 0.5], &[]), None);
        assert_eq!(Separation::of(&[0.5, 0.5], &[0, 1]), None);
        assert_eq!(Separation::of(&[0.5, 0.5], &[7]), None);
        let alike = Separation::of(&[0.5, 0.5, 0.5], &[0]).unwrap();
        assert_eq!((alike.auc, alike.above_all), (0.5, 0.0));
    }
}
