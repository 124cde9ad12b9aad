//! The results of programs with a damaged file, and a table of them.

use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of findings that are printed per run.
const TOLD_MAX: usize = 4;

/// Maximum bytes of a finding.
const TOLD_BYTES_MAX: usize = 400;

/// How a run ended, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A wrong value, a missing one, or one of a key that was never written.
    Wrong,
    /// A panic, even one that was caught, or the end by a signal.
    Panic,
    /// The program neither ends nor does its work, but says that all is well.
    Stuck,
    /// The program ended without a sentence that names the file.
    Unclear,
    /// The program ended with a sentence that names the file.
    Refused,
    /// Some keys can't be read and are named. All others are right.
    SomeKeys,
    /// Everything is right.
    Right,
}

impl Class {
    /// From the best class to the worst.
    const COLUMNS: [Class; 7] = [
        Class::Refused,
        Class::Right,
        Class::SomeKeys,
        Class::Wrong,
        Class::Panic,
        Class::Stuck,
        Class::Unclear,
    ];

    pub(crate) fn is_bad(self) -> bool {
        self <= Class::Unclear
    }

    fn title(self) -> &'static str {
        match self {
            Class::Refused => "refused",
            Class::Right => "right",
            Class::SomeKeys => "error for some keys",
            Class::Wrong => "WRONG",
            Class::Panic => "PANIC",
            Class::Stuck => "STUCK",
            Class::Unclear => "UNCLEAR",
        }
    }
}

/// The findings of one run.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    told: Vec<(Class, String)>,
    bad: usize,
}

impl Seen {
    pub(crate) fn note(&mut self, class: Class, what: impl fmt::Display) {
        self.bad += usize::from(class.is_bad());
        let mut what = what.to_string();
        if what.len() > TOLD_BYTES_MAX {
            let end = (0..=TOLD_BYTES_MAX).rfind(|&at| what.is_char_boundary(at));
            what.truncate(end.unwrap_or_default());
            what.push('…');
        }
        // The first finding of each class says most.
        let same = self.told.iter().filter(|(known, _)| *known == class).count();
        if same < TOLD_MAX {
            self.told.push((class, what));
        }
    }

    pub(crate) fn wrong(&mut self, what: impl fmt::Display) {
        self.note(Class::Wrong, what);
    }

    pub(crate) fn class(&self) -> Class {
        self.told.iter().map(|(class, _)| *class).min().unwrap_or(Class::Right)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.class().title())?;
        if self.bad > 1 {
            write!(f, " ({} times)", self.bad)?;
        }
        let mut told: Vec<_> = self.told.iter().collect();
        told.sort_by_key(|(class, _)| *class);
        for (class, what) in told {
            write!(f, "\n    {}: {}", class.title(), what.trim_end().replace('\n', "\n    | "))?;
        }
        Ok(())
    }
}

/// How many runs of each tool ended in each class.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<&'static str, BTreeMap<Class, usize>>);

impl Table {
    pub(crate) fn count(&mut self, tool: &'static str, class: Class) {
        *self.0.entry(tool).or_default().entry(class).or_default() += 1;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = Class::COLUMNS.map(Class::title);
        writeln!(f, "| | {} |", titles.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(titles.len()))?;
        for (tool, counts) in &self.0 {
            let count = |class| counts.get(&class).copied().unwrap_or_default().to_string();
            writeln!(f, "| {tool} | {} |", Class::COLUMNS.map(count).join(" | "))?;
        }
        Ok(())
    }
}
