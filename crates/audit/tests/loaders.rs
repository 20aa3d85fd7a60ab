//! Files as users have them, whole and damaged.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::Write;
use std::path::Path;

use afterimage_audit::data::{Records, Source};
use image::{GrayImage, RgbImage};

fn read(path: &Path) -> Result<Records, String> {
    path.display().to_string().parse::<Source>().unwrap().read().map_err(|error| error.to_string())
}

/// The bytes of a version-1 .npy file.
fn npy(kind: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn numpy_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    fs::write(&path, npy("<f4", "(2, 3)", false, &floats(&[0.0, 0.5, 1.0, -1.0, 2.0, 3.0]))).unwrap();
    let records = read(&path).unwrap();
    assert_eq!((records.shape.as_slice(), records.labels.as_slice()), (&[3][..], &[0, 0][..]));
    assert_eq!(records.values, [0.0, 0.5, 1.0, -1.0, 2.0, 3.0]);
    // Bytes are pixels.
    fs::write(&path, npy("|u1", "(1, 1, 1, 2)", false, &[0, 255])).unwrap();
    assert_eq!(read(&path).unwrap().values, [0.0, 1.0]);
    for (bytes, part) in [
        (npy("<f4", "(2, 3)", false, &floats(&[0.0; 5])), "cannot be read"),
        (npy("<f4", "(4000000000, 4000000000)", false, &[]), "more than its"),
        (npy("<f8", "(10000000000,)", false, &[]), "more than its"),
        (npy("<f4", "(2, 2)", true, &floats(&[0.0; 4])), "column-major"),
        (npy("<c8", "(1,)", false, &[0; 8]), "cannot be read"),
        (npy("<f4", "(1000000000000, 0)", false, &[]), "is empty"),
        (npy("<f4", "()", false, &floats(&[1.0])), "single number"),
        (npy("<f4", "(1,)", false, &floats(&[f32::NAN])), "not a finite number"),
        (b"not numpy".to_vec(), "not an .npy array"),
        (Vec::new(), "not an .npy array"),
        // A header that says it has 4 GiB.
        (b"\x93NUMPY\x03\x00\xff\xff\xff\xff{'descr': '<f4'}".to_vec(), "not all there"),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = read(&path).unwrap_err();
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

fn npz(path: &Path, entries: &[(&str, Vec<u8>)]) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in entries {
        archive.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn numpy_archives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.npz");
    let x = || npy("<f4", "(2, 1)", false, &floats(&[0.25, 0.75]));
    let labels: Vec<u8> = [4_i64, 9].iter().flat_map(|label| label.to_le_bytes()).collect();
    npz(&path, &[("x.npy", x()), ("y.npy", npy("<i8", "(2,)", false, &labels))]);
    let records = read(&path).unwrap();
    assert_eq!((records.values.as_slice(), records.labels.as_slice()), (&[0.25, 0.75][..], &[4, 9][..]));
    // Bytes are pixels among samples, and numbers among labels.
    npz(&path, &[("x.npy", npy("|u1", "(2, 1)", false, &[51, 255])), ("y.npy", npy("|u1", "(2,)", false, &[3, 255]))]);
    let records = read(&path).unwrap();
    assert_eq!((records.values.as_slice(), records.labels.as_slice()), (&[0.2, 1.0][..], &[3, 255][..]));
    npz(&path, &[("images.npy", x())]);
    assert!(read(&path).unwrap_err().contains("no array `x`"));
    npz(&path, &[("x.npy", x()), ("y.npy", npy("<i8", "(1,)", false, &labels[..8]))]);
    assert!(read(&path).unwrap_err().contains("2 samples and labels of shape [1]"));
    npz(&path, &[("x.npy", x()), ("y.npy", npy("<f4", "(2,)", false, &floats(&[0.5, 1.0])))]);
    assert!(read(&path).unwrap_err().contains("whole numbers"));
    fs::write(&path, b"PK\x03\x04 but no more").unwrap();
    assert!(read(&path).unwrap_err().contains("not an .npz"));
}

#[test]
fn image_folders() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, value: u8| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(2, 3, image::Rgb([value, 0, 255])).save(&path).unwrap();
    };
    assert!(read(folder.path()).unwrap_err().contains("holds no"));
    save("dog/1.png", 51);
    save("cat/2.png", 102);
    save("cat/1.png", 153);
    fs::write(folder.path().join("cat/notes.txt"), b"not an image").unwrap();
    let records = read(folder.path()).unwrap();
    assert_eq!(records.ids, ["cat/1.png", "cat/2.png", "dog/1.png"]);
    assert_eq!((records.shape.as_slice(), records.labels.as_slice()), (&[3, 3, 2][..], &[0, 0, 1][..]));
    // Channel by channel: six red pixels, six green, six blue.
    assert!((records.values[0] - 0.6).abs() < 1e-6 && records.values[6] == 0.0 && records.values[12] == 1.0);

    let resized = records.resized([6, 4]).unwrap();
    assert_eq!((resized.shape.as_slice(), resized.values.len()), (&[3, 6, 4][..], 3 * 3 * 24));
    assert!(resized.values.iter().zip([0.6_f32; 24]).all(|(a, b)| (a - b).abs() < 1e-3));

    fs::write(folder.path().join("labels.csv"), "file,class\ndog/1.png,7\ncat/2.png,3\n").unwrap();
    let listed = read(folder.path()).unwrap();
    assert_eq!((listed.ids, listed.labels), (vec!["dog/1.png".into(), "cat/2.png".into()], vec![7, 3]));
    for (labels, part) in [
        ("file,class\nbird.png,1\n", "row 1: there is no file bird.png"),
        ("file,class\n../secret.png,1\n", "not a name inside the folder"),
        ("file,class\n/etc/passwd,1\n", "not a name inside the folder"),
        ("file,class\ndog/1.png\n", "row 1"),
    ] {
        fs::write(folder.path().join("labels.csv"), labels).unwrap();
        let message = read(folder.path()).unwrap_err();
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    fs::remove_file(folder.path().join("labels.csv")).unwrap();
    // A grey picture among coloured ones, after them and before them.
    let grey = GrayImage::from_pixel(2, 3, image::Luma([51]));
    for name in ["dog/2.png", "cat/0.png"] {
        grey.save(folder.path().join(name)).unwrap();
        let mixed = read(folder.path()).unwrap();
        let place = mixed.ids.iter().position(|id| id == name).unwrap();
        assert_eq!(mixed.shape, [3, 3, 2]);
        assert!(mixed.values[18 * place..18 * (place + 1)].iter().all(|value| (value - 0.2).abs() < 1e-6), "{name}");
        assert!((mixed.values[18] - if name == "dog/2.png" { 0.4 } else { 0.6 }).abs() < 1e-6);
    }
    GrayImage::from_pixel(3, 3, image::Luma([51])).save(folder.path().join("dog/2.png")).unwrap();
    assert!(read(folder.path()).unwrap_err().contains("bring them to one size"));
    fs::write(folder.path().join("dog/2.png"), b"\x89PNG\r\n\x1a\n and then nothing").unwrap();
    assert!(read(folder.path()).unwrap_err().contains("not a readable image"));
}

#[test]
fn grey_images_have_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    GrayImage::from_fn(3, 2, |x, y| image::Luma([(51 * (x + 3 * y)) as u8])).save(folder.path().join("a.png")).unwrap();
    let records = read(folder.path()).unwrap();
    assert_eq!(records.shape, [1, 2, 3]);
    for (index, value) in records.values.iter().enumerate() {
        assert!((value - 0.2 * index as f32).abs() < 1e-6);
    }
    let other = folder.path().join("data.unknown");
    fs::write(&other, b"?").unwrap();
    assert!(read(&other).unwrap_err().contains("of no known kind"));
    assert!(read(&folder.path().join("absent.csv")).unwrap_err().contains("cannot be opened"));
}
