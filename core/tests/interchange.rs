//! For the same items, sketches of Python's DataSketches are the same as ours, as far as formats allow.
//! The fixtures were written by `interchange/interchange.py write interchange/fixtures`.

use std::fs;
use std::path::{Path, PathBuf};

use datasketches::cpc::CpcSketch;
use datasketches::hash::value::raw_bytes;
use datasketches::theta::CompactThetaSketch;
use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{Audience, Crdt, Distinct, Effect, Sketch, SketchOp};

/// The parts of a fixture's name.
struct Fixture {
    path: PathBuf,
    family: String,
    form: String,
    n: i64,
    lg_k: u16,
    image: Vec<u8>,
}

impl Fixture {
    fn items(&self) -> Vec<Item> {
        (0..self.n)
            .map(|number| match &*self.form {
                "strings" => Item::text(&format!("item-{number}")).expect("an item"),
                _ => Item::Number(number),
            })
            .collect()
    }

    fn of_items<C: Crdt<Op = SketchOp<C>>>(&self) -> C {
        let mut state = C::with_precision(self.lg_k);
        for items in self.items().chunks(1_000) {
            state.apply(&SketchOp::Add { items: items.to_vec() }).expect("items");
        }
        state
    }

    /// Merging a foreign sketch into an empty one, or into ours, gives ours.
    fn check_merge<C: Sketch + Crdt<Op = SketchOp<C>>>(&self) {
        let theirs = SketchOp::Merge { sketch: C::import(&self.image).expect("a sketch").into() };
        let (ours, mut merged) = (self.of_items::<C>(), C::with_precision(self.lg_k));
        merged.apply(&theirs).expect("a merge");
        assert_eq!(merged, ours, "{}", self.path.display());
        assert_eq!(merged.apply(&theirs), Ok(Effect::Unchanged), "{}", self.path.display());
    }
}

fn fixtures(family: &str) -> Vec<Fixture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interchange/fixtures");
    let of_family = |path: PathBuf| {
        let stem = path.file_stem()?.to_str()?.to_owned();
        let parts: Vec<&str> = stem.split('-').collect();
        let [of, form, n, lg_k] = parts[..] else { return None };
        let (n, lg_k) = (n.parse().ok()?, lg_k.parse().ok()?);
        let image = fs::read(&path).ok()?;
        let fixture =
            Fixture { path, family: of.to_owned(), form: form.to_owned(), n, lg_k, image };
        (of == family).then_some(fixture)
    };
    let entries = fs::read_dir(directory).expect("the fixtures");
    entries.filter_map(|entry| of_family(entry.expect("a file").path())).collect()
}

#[test]
fn cpc_sketches_of_python_are_ours() {
    let fixtures = fixtures("cpc");
    assert_eq!(fixtures.len(), 10);
    for fixture in fixtures {
        fixture.check_merge::<Distinct>();
        // Without a merge, Python keeps the state of the HIP estimator, and so does the library: the bytes
        // are the same, including estimates.
        let lg_k = u8::try_from(fixture.lg_k).expect("a precision");
        let mut sketch = CpcSketch::new(lg_k).expect("a sketch");
        for item in fixture.items() {
            match item {
                Item::Number(number) => sketch.update(number),
                Item::Text(text) => sketch.update(raw_bytes::from_str(&text)),
            }
        }
        assert_eq!(sketch.serialize(), fixture.image, "{}", fixture.path.display());
    }
}

#[test]
fn theta_sketches_of_python_are_ours() {
    let fixtures = fixtures("theta");
    assert_eq!(fixtures.len(), 8);
    for fixture in fixtures {
        fixture.check_merge::<Audience>();
        // Sketches of strings were trimmed to k hashes, as ours always are.
        if fixture.form == "strings" && fixture.n > 0 {
            let ours = fixture.of_items::<Audience>().to_datasketches();
            let compact = CompactThetaSketch::deserialize(&ours).expect("our own");
            let theirs = &fixture.image;
            assert_eq!(&compact.serialize_compressed(), theirs, "{}", fixture.path.display());
        }
    }
}

/// Writes our sketches of the fixtures' items for Python to read: with `interchange.py read` on the directory
/// `interchange` in the target directory's `tmp`.
#[test]
fn ours_are_written_for_python() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interchange");
    fs::create_dir_all(&directory).expect("a directory");
    for fixture in fixtures("cpc").into_iter().chain(fixtures("theta")) {
        let image = match &*fixture.family {
            "cpc" => fixture.of_items::<Distinct>().to_datasketches(),
            _ => fixture.of_items::<Audience>().to_datasketches(),
        };
        let name = fixture.path.file_name().expect("a name");
        fs::write(directory.join(name), image).expect("a file");
    }
}
