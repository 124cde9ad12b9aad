//! The examples in `docs/operate/capacity.md` are the results of its formulas for the inputs that it names.

use orderfree::limits;
use orderfree_core::protocol::{Constants, Overrides};

use super::{after, read};

const DOCUMENT: &str = "docs/operate/capacity.md";

/// Values that the text assumes.
struct Given {
    /// Lifetime, drain margin, cutoff and time between sweeps in seconds.
    l: f64,
    d: f64,
    c: f64,
    sweep: f64,
    /// Shards per key, pod and lifetime.
    s: f64,
    /// Bytes of a tally and of a shard.
    t: f64,
    b: f64,
    /// Duration of a write in seconds.
    f: f64,
    replicas: f64,
    awake_bytes: f64,
    resting_bytes: f64,
    /// CPU seconds that a row costs the nodes and an update costs the pods, in batches and alone.
    of_row: [f64; 2],
    of_update: [f64; 2],
}

struct Load {
    keys: f64,
    updates: f64,
    pods: f64,
    /// Pods that update a key.
    p: f64,
}

/// The number after a mark, which must be the same everywhere in the text.
fn number(text: &str, mark: &str) -> f64 {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let read = |part: &str| part.replace(',', "").trim_end_matches('.').parse().ok();
    let found: Vec<f64> = after(text, mark, |c| !is_part(c)).into_iter().filter_map(read).collect();
    assert!(!found.is_empty(), "{DOCUMENT} has no number behind `{mark}`");
    assert!(found.iter().all(|one| *one == found[0]), "{DOCUMENT}, `{mark}`: {found:?}");
    found[0]
}

impl Given {
    fn read(text: &str) -> Given {
        let constants = Constants::resolve(Overrides::default()).expect("the defaults");
        for (mark, same) in [
            ("*RF* | replicas | ", "*RF* = "),
            ("*t* is ", "*t* = "),
            ("the examples below assume ", "*b* = "),
        ] {
            assert_eq!(number(text, mark), number(text, same), "`{mark}` and `{same}`");
        }
        let us = |mark| number(text, mark) / 1e6;
        Given {
            l: constants.lifetime().as_secs_f64(),
            d: constants.drain_margin().as_secs_f64(),
            c: constants.cutoff().as_secs_f64(),
            sweep: constants.sweep_every().as_secs_f64(),
            s: number(text, "the defaults; *s* = "),
            t: number(text, "*t* = "),
            b: number(text, "*b* = "),
            f: number(text, "*F* = ") / 1e3,
            replicas: number(text, "*RF* = "),
            awake_bytes: number(text, "One that is awake takes about ") * 1e3,
            resting_bytes: number(text, "a key of 40 bytes takes about "),
            of_row: [us("pods together, at "), us("µs a row in batches to ")],
            of_update: [us("alone, and at "), us("µs an update in batches to ")],
        }
    }

    /// New shards per second if no mutator is evicted.
    fn births(&self, load: &Load) -> f64 {
        load.keys * load.p * self.s / (self.l - self.d)
    }

    /// How many mutators can rest by default.
    fn resting_max(&self) -> f64 {
        limits::RESTING_BYTES as f64 / self.resting_bytes
    }

    /// The maximum number of mutators is awake, and the others rest.
    fn memory(&self, mutators: f64) -> f64 {
        let awake = mutators.min(limits::MUTATORS_MAX as f64);
        awake * self.awake_bytes + (mutators - awake) * self.resting_bytes
    }

    /// The memory for resting mutators has its default, and all keys are updated equally often.
    fn births_of_few_mutators(&self, load: &Load) -> (f64, f64) {
        let h = self.resting_max() / (load.keys * load.p / load.pods);
        (h, load.keys * load.p / (self.l - self.d) + (1.0 - h) * load.updates)
    }

    /// Shards in the table.
    fn shards(&self, births: f64) -> f64 {
        births * (self.l + self.c + self.sweep / 2.0)
    }

    fn bytes(&self, load: &Load, births: f64) -> f64 {
        self.replicas * (load.keys * self.t + self.shards(births) * self.b)
    }

    fn rows_written(&self, load: &Load) -> f64 {
        load.updates.min(load.keys * load.p / self.f)
    }

    /// The columns of both tables after their inputs.
    fn columns(&self, load: &Load) -> [Vec<String>; 2] {
        let births = self.births(load);
        let (written, mutators) = (self.rows_written(load), load.keys * load.p / load.pods);
        let range = |count: f64, [least, most]: [f64; 2]| {
            format!("{} to {}", shown(count * least), shown(count * most))
        };
        let stored = vec![
            shown(births),
            shown(load.keys + self.shards(births)),
            shown_bytes(self.bytes(load, births)),
            shown(births.min(load.keys * load.pods / self.sweep)),
        ];
        let done = vec![
            shown(written),
            range(written, self.of_row),
            range(load.updates, self.of_update),
            shown(mutators),
            shown_bytes(self.memory(mutators)),
        ];
        [stored, done]
    }
}

/// Formats with three digits.
fn digits(number: f64) -> String {
    let decimals = (0..).find(|decimals| number * 10_f64.powi(*decimals) >= 99.95);
    let decimals = usize::try_from(decimals.expect("a number over zero")).expect("few");
    let text = format!("{number:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

fn scaled(number: f64, names: [&str; 4]) -> String {
    let units = [1e9, 1e6, 1e3, 1.0].into_iter().zip(names);
    let fits = |(unit, _): &(f64, &str)| number >= 0.9995 * unit || *unit == 1.0;
    let (unit, name) = units.into_iter().find(fits).expect("the last one");
    format!("{}{name}", digits(number / unit))
}

/// `5.88 m`.
fn shown(number: f64) -> String {
    scaled(number, [" bn", " m", " k", ""])
}

fn shown_bytes(number: f64) -> String {
    scaled(number, [" GB", " MB", " kB", " B"])
}

/// `5.88 m`, `2 of 16`, `1, hashed`.
fn amount(text: &str) -> f64 {
    let (number, rest) = text.split_once([' ', ',']).unwrap_or((text, ""));
    let number: f64 =
        number.parse().unwrap_or_else(|_| panic!("{DOCUMENT}: {text} is not an amount"));
    match rest {
        "k" => number * 1e3,
        "m" => number * 1e6,
        "bn" => number * 1e9,
        _ => number,
    }
}

/// The text with its lines joined, and the examples by their letters: the input cells of the first table.
fn examples() -> (String, String, Vec<Vec<String>>) {
    let text = read(DOCUMENT);
    let section = after(&text, "\n## Examples\n", |_| false)[0].split("\n## ").next();
    let section = section.expect("a section").to_owned();
    let inputs = section.lines().filter_map(|line| {
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
        let is_example = cells.len() == 11 && cells[1].len() == 1;
        is_example.then(|| cells[1..6].to_vec())
    });
    let inputs: Vec<_> = inputs.collect();
    (text.split_whitespace().collect::<Vec<_>>().join(" "), section, inputs)
}

fn load(cells: &[String]) -> Load {
    let [keys, updates, pods, p] = [1, 2, 3, 4].map(|index: usize| amount(&cells[index]));
    Load { keys, updates, pods, p }
}

#[test]
fn the_examples_are_what_the_formulas_give() {
    let (text, section, inputs) = examples();
    let given = Given::read(&text);
    assert!(inputs.len() > 5, "{inputs:?}");
    let mut lines: [Vec<String>; 2] = Default::default();
    for cells in inputs {
        let columns = given.columns(&load(&cells));
        let [stored, done] = columns;
        lines[0].push(format!("| {} | {} |", cells.join(" | "), stored.join(" | ")));
        lines[1].push(format!("| {} | {} |", cells[0], done.join(" | ")));
    }
    for table in lines.map(|lines| lines.join("\n")) {
        assert!(section.contains(&table), "{DOCUMENT} should have:\n{table}");
    }
}

/// The results of an example with the default memory, and of those that need more.
#[test]
fn the_price_of_too_few_mutators_is_what_the_formulas_give() {
    let (text, _, inputs) = examples();
    let given = Given::read(&text);
    let example = load(inputs.iter().find(|cells| cells[0] == "E").expect("an example"));
    let (h, births) = given.births_of_few_mutators(&example);
    let rows = example.keys + given.shards(births);
    let says = format!(
        "Example E with the default has *h* = {}: {} births per second, {} rows, {} rows merged by a \
         read of a key, and {}.",
        digits(h),
        shown(births),
        shown(rows),
        shown(rows / example.keys),
        shown_bytes(given.bytes(&example, births))
    );
    assert!(text.contains(&says), "{DOCUMENT} should say: {says}");
    let default = number(&text, "bounds those awake, ");
    assert_eq!(default, limits::MUTATORS_MAX as f64);
    let bytes = shown_bytes(default * given.awake_bytes);
    assert!(text.contains(&format!("by default, which is {bytes}:")), "{bytes}");
    let mib = limits::RESTING_BYTES / 1024 / 1024;
    let says = format!("{mib} MiB by default, which is {} counters.", shown(given.resting_max()));
    assert!(text.contains(&says), "{says}");
    let large = limits::LARGE_STATES_BYTES_EACH as f64;
    assert_eq!(number(&text, "with large ones share up to ") * 1e3, large);
}
