//! CIFAR-10 binary records: one label byte, then 3 x 32 x 32 bytes.

use std::io::Read;

use super::{Records, pixel};
use crate::{AuditError, Result};

const PIXELS: usize = 3 * 32 * 32;

/// All records of a stream.
pub(super) fn parse(mut reader: impl Read, source: &str) -> Result<Records> {
    let wrong = |problem: String| AuditError::data(source, problem);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let (records, rest) = bytes.as_chunks::<{ PIXELS + 1 }>();
    if !rest.is_empty() || records.is_empty() {
        let size = PIXELS + 1;
        return Err(wrong(format!(
            "holds {} bytes, which is no whole number of {size}-byte CIFAR-10 records",
            bytes.len()
        )));
    }
    if let Some((index, record)) = records.iter().enumerate().find(|(_, record)| record[0] > 9) {
        return Err(wrong(format!("record {index} has label {}; CIFAR-10 has classes 0 to 9", record[0])));
    }
    Ok(Records {
        shape: vec![3, 32, 32],
        values: records.iter().flat_map(|record| record[1..].iter().map(|&byte| pixel(byte))).collect(),
        labels: records.iter().map(|record| usize::from(record[0])).collect(),
        ids: (0..records.len()).map(|index| index.to_string()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_damage_is_named() {
        let mut bytes = vec![255; 2 * (PIXELS + 1)];
        (bytes[0], bytes[PIXELS + 1]) = (3, 9);
        let records = parse(&bytes[..], "test").unwrap();
        assert_eq!((records.len(), records.labels.as_slice(), records.values[0]), (2, &[3, 9][..], 1.0));
        assert!(parse(&bytes[1..], "test").unwrap_err().to_string().contains("no whole number"));
        assert!(parse(&b""[..], "test").is_err());
        bytes[0] = 10;
        assert!(parse(&bytes[..], "test").unwrap_err().to_string().contains("record 0 has label 10"));
    }
}
