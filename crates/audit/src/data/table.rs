//! Tables: one sample a row of a csv file with a header, one column of it the class.

use std::collections::BTreeMap;
use std::io::Read;

use super::Records;
use crate::{AuditError, Result};

/// Names of the column that is the class, as far as one has such a name; otherwise it is the last.
const CLASS: [&str; 3] = ["label", "class", "target"];

/// All rows; the column `label`, `class` or `target`, or else the last, is the class. Classes may
/// be words: they are numbered in alphabetical order.
pub(super) fn parse(reader: impl Read, source: &str) -> Result<Records> {
    let wrong = |problem: String| AuditError::data(source, problem);
    let mut table = csv::Reader::from_reader(reader);
    let header = table.headers().map_err(|error| wrong(format!("cannot be read as csv: {error}")))?.clone();
    let columns = header.len();
    if columns < 2 {
        return Err(wrong(format!("has {columns} column; at least one feature and a label are needed")));
    }
    if header.iter().all(|name| name.trim().parse::<f64>().is_ok()) {
        return Err(wrong("its first row is numbers: a header with the names of the columns is needed".into()));
    }
    let named = |class: &&str| header.iter().position(|name| name.trim().eq_ignore_ascii_case(class));
    let told = CLASS.iter().find_map(named);
    let label_column = told.unwrap_or(columns - 1);
    let (mut values, mut words) = (Vec::new(), Vec::new());
    for (row, record) in table.records().enumerate() {
        let record = record.map_err(|error| wrong(format!("row {}: {error}", row + 1)))?;
        for (column, field) in record.iter().enumerate() {
            let number = field.trim().parse::<f32>().ok().filter(|number| number.is_finite());
            let name = header.get(column).unwrap_or("?");
            if column == label_column {
                if number.is_some_and(|number| number.fract() != 0.0) {
                    let taken = match told {
                        Some(_) => String::new(),
                        None => format!(
                            "no column is called {}, so that the last is taken for the class; ",
                            CLASS.join(", ")
                        ),
                    };
                    return Err(wrong(format!(
                        "{taken}row {}, column {name}: `{}` is no class, which is a whole number or a word. Name the column of classes \
                         `label`; where there are none, add one of zeros",
                        row + 1,
                        field.trim()
                    )));
                }
                words.push(field.trim().to_owned());
                continue;
            }
            values
                .push(number.ok_or_else(|| wrong(format!("row {}, column {name}: `{field}` is no number", row + 1)))?);
        }
    }
    if words.is_empty() {
        return Err(wrong("has a header and no rows".into()));
    }
    Ok(Records {
        shape: vec![columns - 1],
        ids: (0..words.len()).map(|index| index.to_string()).collect(),
        labels: number_classes(&words),
        values,
    })
}

/// Whole numbers stay; words are numbered in alphabetical order.
pub(super) fn number_classes(words: &[String]) -> Vec<usize> {
    let numbers: Option<Vec<usize>> = words.iter().map(|word| word.parse().ok()).collect();
    numbers.unwrap_or_else(|| {
        let mut classes: BTreeMap<&str, usize> = words.iter().map(|word| (word.as_str(), 0)).collect();
        classes.values_mut().enumerate().for_each(|(index, class)| *class = index);
        words.iter().map(|word| classes[word.as_str()]).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_mistakes_are_placed() {
        let records = parse(&b"a,label,b\n1,cat,2.5\n3,ant,-4\n"[..], "test").unwrap();
        assert_eq!((records.values.as_slice(), records.labels.as_slice()), (&[1.0, 2.5, 3.0, -4.0][..], &[1, 0][..]));
        for text in ["a,b,kind\n1,2,7\n", "Class,a,b\n7,1,2\n", "a,target,b\n1,7,2\n"] {
            let records = parse(text.as_bytes(), "test").unwrap();
            let read = (records.shape.as_slice(), records.labels.as_slice(), records.values.as_slice());
            assert_eq!(read, (&[2][..], &[7][..], &[1.0, 2.0][..]), "{text}");
        }
        for (text, part) in [
            (&b"a,b\n1,2\nx,2\n"[..], "row 2, column a: `x` is no number"),
            (b"a,b\n1\n", "row 1"),
            (b"a,b\n", "no rows"),
            (b"a\n1\n", "1 column"),
            (b"1,2\n3,4\n", "first row is numbers"),
            (b"a,b\ninf,2\n", "`inf` is no number"),
            (b"kind,a,b\n1,2,0.5\n", "the last is taken for the class; row 1, column b: `0.5` is no class"),
            (b"target,b\n0.5,2\n", "row 1, column target: `0.5` is no class"),
        ] {
            let message = parse(text, "test").unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
