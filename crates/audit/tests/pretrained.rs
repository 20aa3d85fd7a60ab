//! Networks with their published weights: what they should see, and how far apart pictures should be.
//!
//! The weights are large and not part of the repository; where they are absent the tests say so.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use afterimage_audit::metrics::Lpips;
use afterimage_nn::zoo::EfficientnetLite;
use afterimage_nn::{DType, Device, Network, Tensor};

/// A folder of the data beside the repository, or nothing and a message.
fn data(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: no data in {folder}");
    None
}

/// A picture as planes of red, green and blue in 0..255, and its height and width.
fn planes(path: &Path) -> (Vec<f64>, [usize; 2]) {
    let picture = image::open(path).unwrap().to_rgb8();
    let size = [picture.height() as usize, picture.width() as usize];
    let colour = |c: usize| picture.pixels().map(move |pixel| f64::from(pixel.0[c])).collect::<Vec<_>>();
    ((0..3).flat_map(colour).collect(), size)
}

#[test]
fn efficientnet_sees_what_it_should() {
    let (Some(weights), Some(pictures)) = (data("efficientnet_lite0"), data("imagenet_sample224")) else { return };
    let network = Network::new(EfficientnetLite::new(&[3, 224, 224], 1000).spec()).unwrap();
    let theta = network.load(weights.join("efficientnet_lite0.f32.safetensors"), DType::F32, Device::Cpu).unwrap();
    let expected = std::fs::read_to_string(weights.join("expected_top5_imagenet_sample224.csv")).unwrap();
    let mut compared = 0;
    for line in expected.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let top: Vec<usize> = fields[2..7].iter().map(|class| class.parse().unwrap()).collect();
        let (pixels, _) = planes(&pictures.join(fields[0]));
        let scaled: Vec<f64> = pixels.iter().map(|x| (x - 127.0) / 128.0).collect();
        let x = Tensor::from_f64(&scaled, &[1, 3, 224, 224], DType::F32).unwrap();
        let logits = network.forward(&theta, &x).unwrap().to_f64_vec().unwrap();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        assert_eq!(order[..5], top, "{}", fields[0]);
        compared += 1;
    }
    assert_eq!(compared, 64);
}

#[test]
fn lpips_gives_the_published_distances() {
    let Some(folder) = data("lpips") else { return };
    let weights = folder.join("alexnet_lpips_v0.1.f32.safetensors");
    let picture =
        |name: &str| -> Vec<f64> { planes(&folder.join("golden").join(name)).0.iter().map(|x| x / 255.0).collect() };
    let lpips = Lpips::load(&weights, &[3, 64, 64]).unwrap().unwrap();
    let reference = picture("ex_ref.png");
    for (name, expected) in [("ex_p0.png", 0.721_881), ("ex_p1.png", 0.137_566), ("ex_ref.png", 0.0)] {
        let found = lpips.distance(&reference, &picture(name)).unwrap();
        assert!((found - expected).abs() < 1e-4, "{name}: {found} for {expected}");
    }
    // Grey pictures are taken as coloured ones; tables and thumbnails have no distance.
    let grey = Lpips::load(&weights, &[1, 32, 32]).unwrap().unwrap();
    assert!(grey.distance(&[0.2; 1024], &[0.9; 1024]).unwrap() > 0.0);
    assert_eq!(grey.distance(&[f64::NAN; 1024], &[0.9; 1024]), None);
    for shape in [&[3, 16, 16][..], &[30], &[2, 64, 64]] {
        assert!(Lpips::load(&weights, shape).unwrap().is_none(), "{shape:?}");
    }
}
