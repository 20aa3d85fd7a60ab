//! What a node says beside what it reads.

use super::constant::Constant;
use super::proto::{Attribute, Node};
use crate::Sides;

type Result<T> = std::result::Result<T, String>;

/// A node's attributes by name.
pub(super) struct Attributes<'a>(pub(super) &'a Node);

impl Attributes<'_> {
    /// The value of a `Constant`, in any of the ways that it may be written.
    pub(super) fn constant(&self) -> Result<Constant> {
        let attribute = self.0.attributes.first().ok_or("holds nothing")?;
        let numbers = |numbers: Vec<f64>, whole: bool| Constant { shape: vec![numbers.len()], numbers, whole };
        match (attribute.name.as_str(), &attribute.tensor) {
            ("value", Some(tensor)) => Constant::read(tensor, None),
            ("value_int", _) => Ok(numbers(vec![attribute.int as f64], true)),
            ("value_ints", _) => Ok(numbers(attribute.ints.iter().map(|&x| x as f64).collect(), true)),
            ("value_float", _) => Ok(numbers(vec![f64::from(attribute.float)], false)),
            ("value_floats", _) => Ok(numbers(attribute.floats.iter().map(|&x| f64::from(x)).collect(), false)),
            (other, _) => Err(format!("holds `{other}`, which is no number")),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<&Attribute> {
        self.0.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.find(name).map(|attribute| attribute.int)
    }

    /// As the decimal number that was meant: 0.01, not its nearest single-precision neighbour.
    pub(super) fn float(&self, name: &str) -> Option<f64> {
        self.find(name).map(|attribute| attribute.float.to_string().parse().unwrap_or(f64::from(attribute.float)))
    }

    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.find(name).map(|attribute| attribute.ints.clone())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.find(name).map(|attribute| String::from_utf8_lossy(&attribute.text).into_owned())
    }

    pub(super) fn sides(&self, name: &str, default: usize) -> Result<Sides> {
        let wrong = |ints: &[i64]| format!("has {name} {ints:?}; two numbers, for height and width, are known");
        match self.ints(name) {
            None => Ok(default.into()),
            Some(ints) => match ints[..] {
                [height, width] => {
                    let side = |side: i64| usize::try_from(side).map_err(|_| wrong(&ints));
                    Ok(Sides([side(height)?, side(width)?]))
                }
                _ => Err(wrong(&ints)),
            },
        }
    }

    /// As many pixels before as after.
    pub(super) fn padding(&self) -> Result<Sides> {
        let pads = self.ints("pads").unwrap_or_else(|| vec![0; 4]);
        match pads[..] {
            [top, left, bottom, right] if top == bottom && left == right && top >= 0 && left >= 0 => {
                Ok(Sides([top as usize, left as usize]))
            }
            _ => Err(format!("pads by {pads:?}; as much before as after is known")),
        }
    }
}
