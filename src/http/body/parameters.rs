//! Query parameters. A [`Parameter`] says how one is read and described, and the struct of an endpoint, which
//! `params!` defines, lists those that the endpoint has. The refusal of unknown names, the OpenAPI document
//! and the tables in `docs/reference/http.md` follow from these structs.

use std::borrow::Cow;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use orderfree_core::crdt::item::{ITEM_BYTES_MAX, Item};
use orderfree_core::crdt::{Form, Kind, Question};
use orderfree_core::protocol::consistency::{Level, UnknownLevel};
use orderfree_core::protocol::{Durability, Key, Name};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter as Described, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Required};

use crate::http::body::schemas::{self, one_of, text};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::{GroupPath, KeyPath, KindPath, Permit, ResetPath, bad_path};
use crate::http::problem::Problem;
use crate::limits;

/// A query parameter whose value is a `T`.
pub(crate) struct Parameter<T: 'static> {
    pub(crate) name: &'static str,
    /// For the OpenAPI document and the reference page. [`Parameter::describe`] puts the kinds before it if
    /// only some have the parameter.
    pub(crate) description: &'static str,
    /// For the OpenAPI document, whose examples are about a counter: none for parameters of other kinds.
    pub(crate) example: Option<&'static str>,
    pub(crate) values: Values<T>,
    /// The value if the parameter is not given. A parameter without one is required.
    pub(crate) absent: Option<T>,
}

/// The values of a parameter.
pub(crate) enum Values<T: 'static> {
    OneOf(&'static [(&'static str, T)]),
    /// Whole numbers from 1 to `max`. The description ends with the range and the default.
    Whole {
        max: usize,
        default: usize,
        read: fn(usize) -> T,
    },
    /// Each text that `parse` takes. Its error says what is valid.
    Text {
        schema: fn() -> ObjectBuilder,
        parse: fn(&str) -> Result<T, String>,
    },
}

pub(crate) const ACK: Parameter<Durability> = Parameter {
    name: "ack",
    description: "`durable` (default): answer after the store acknowledged the write; `memory`: answer \
                  at once, and store within a second",
    example: Some("durable"),
    values: Values::OneOf(&[("durable", Durability::Stored), ("memory", Durability::Memory)]),
    absent: Some(Durability::Stored),
};

pub(crate) const CONSISTENCY: Parameter<Option<Level>> = Parameter {
    name: "consistency",
    description: "`one`, `local_one`, `local_quorum`, `quorum`, `each_quorum` or `all` (default: the server's \
                  `ORDERFREE_READ_CONSISTENCY`)",
    example: Some("local_quorum"),
    values: Values::Text {
        schema: || one_of(Level::ALL.iter().map(|level| level.name()).collect()),
        parse: |text| text.parse().map(Some).map_err(|error: UnknownLevel| error.to_string()),
    },
    absent: Some(None),
};

pub(crate) const DEFAULT: Parameter<Option<String>> = Parameter {
    name: "default",
    description: "The value of a key that does not exist, or of a merge if none of its keys exists: `empty`, or \
                  a number for `counter` and `sum`. Without it, a read or a merge returns 404, and a query \
                  `\"absent\":true`",
    example: Some("empty"),
    values: Values::Text {
        schema: || text().pattern(Some("^(empty|[+-]?[0-9]{1,18}([.][0-9]{1,18})?)$")),
        parse: |text| Ok(Some(text.to_owned())),
    },
    absent: Some(None),
};

/// Whether whole numbers are written in quotes.
pub(crate) const NUMBERS: Parameter<bool> = Parameter {
    name: "numbers",
    description: "`number` (default), or `string` to write whole numbers in quotes. Of items and of a \
                  register's value, only the numbers that JavaScript would change are in quotes",
    example: None,
    values: Values::OneOf(&[("number", false), ("string", true)]),
    absent: Some(false),
};

const QUANTILES: Parameter<Vec<f64>> = Parameter {
    name: "q",
    description: "up to 100 quantiles from 0 to 1, separated by commas",
    example: None,
    values: Values::Text {
        schema: || text().pattern(Some("^(0|0[.][0-9]{1,6}|1)(,(0|0[.][0-9]{1,6}|1)){0,99}$")),
        parse: quantiles,
    },
    absent: Some(Vec::new()),
};

const BUCKETS: Parameter<bool> = flag("buckets", "include the buckets");

const FORM: Parameter<Option<Form>> = Parameter {
    name: "as",
    description: "the format of another system, `opentelemetry` or `prometheus`",
    example: None,
    values: Values::OneOf(&[
        ("opentelemetry", Some(Form::OpenTelemetry)),
        ("prometheus", Some(Form::Prometheus)),
    ]),
    absent: Some(None),
};

const CONTAINS: Parameter<Option<Item>> = Parameter {
    name: "contains",
    description: "return whether the set contains this item, instead of all items",
    example: None,
    values: Values::Text {
        schema: || {
            // White space around the item is no part of it.
            text().min_length(Some(1)).max_length(Some(ITEM_BYTES_MAX)).pattern(Some(r"\S"))
        },
        parse: |text| {
            let item = Item::parse(text);
            item.map(Some).map_err(|error| error.to_string().replace("`item`", "the item"))
        },
    },
    absent: Some(None),
};

/// A switch. `true` and an empty value switch it on.
pub(crate) const fn flag(name: &'static str, description: &'static str) -> Parameter<bool> {
    let values = Values::OneOf(&[("", true), ("false", false), ("true", true)]);
    Parameter { name, description, example: None, values, absent: Some(false) }
}

/// The beginning of a name, or a text between names.
pub(crate) const fn name(name: &'static str, description: &'static str) -> Parameter<Option<Name>> {
    let values = Values::Text {
        schema: schemas::name_part,
        parse: |text| Name::new(text).map(Some).map_err(|error| format!("it {error}")),
    };
    Parameter { name, description, example: None, values, absent: Some(None) }
}

/// A whole number from 1 to `max`.
pub(crate) const fn whole(
    name: &'static str,
    description: &'static str,
    max: usize,
    default: usize,
) -> Parameter<usize> {
    let values = Values::Whole { max, default, read: |number| number };
    Parameter { name, description, example: None, values, absent: Some(default) }
}

/// The maximum number of entries of a page.
pub(crate) const fn limit(description: &'static str) -> Parameter<usize> {
    whole("limit", description, limits::PAGE_MAX, limits::PAGE_DEFAULT)
}

/// The place in a list where the previous page ended.
pub(crate) const fn cursor<T>(
    parse: fn(&str) -> Result<Option<T>, String>,
) -> Parameter<Option<T>> {
    Parameter {
        name: "cursor",
        description: "`next` of the previous page",
        example: None,
        values: Values::Text { schema: || text().pattern(Some("^[A-Za-z0-9_-]+$")), parse },
        absent: Some(None),
    }
}

/// Reads quantiles: numbers from 0 to 1, separated by commas.
fn quantiles(text: &str) -> Result<Vec<f64>, String> {
    let quantile = |part: &str| match part.trim().parse() {
        Ok(q) if (0.0..=1.0).contains(&q) => Ok(q),
        _ => Err(format!("{part:?} is not a number from 0 to 1")),
    };
    let quantiles: Vec<f64> = text.split(',').map(quantile).collect::<Result<_, _>>()?;
    if quantiles.len() > limits::QUANTILES_MAX {
        return Err(format!("a read returns at most {} quantiles", limits::QUANTILES_MAX));
    }
    Ok(quantiles)
}

/// The query parameters of an endpoint, or some that several endpoints have.
pub(crate) trait Params: Sized {
    fn read(given: &Given<'_>) -> Result<Self, Problem>;

    /// Calls `visit` with each parameter.
    fn each(visit: &mut dyn FnMut(&dyn Describe));

    fn names() -> Vec<&'static str> {
        let mut names = Vec::new();
        Self::each(&mut |parameter| names.push(parameter.name()));
        names
    }

    /// The descriptions for the OpenAPI document.
    fn describe() -> Vec<Described> {
        let mut described = Vec::new();
        Self::each(&mut |parameter| described.push(parameter.describe()));
        described
    }
}

/// A parameter without the type of its value.
pub(crate) trait Describe {
    fn name(&self) -> &'static str;
    fn describe(&self) -> Described;
}

/// Defines a struct of query parameters. A field is read from the [`Parameter`] that is assigned to it. The
/// type of a field without one is itself [`Params`].
macro_rules! params {
    (@read $given:ident, $type:ty) => { <$type as Params>::read($given)? };
    (@read $given:ident, $type:ty, $parameter:expr) => { $parameter.read($given)? };
    (@each $visit:ident, $type:ty) => { <$type as Params>::each($visit) };
    (@each $visit:ident, $type:ty, $parameter:expr) => { $visit(&$parameter) };
    ($(#[$meta:meta])* struct $name:ident {
        $($field:ident: $type:ty $(= $parameter:expr)?,)+
    }) => {
        $(#[$meta])*
        pub(crate) struct $name { $(pub(crate) $field: $type,)+ }

        const _: () = {
            use utoipa::IntoParams;
            use utoipa::openapi::path::{Parameter as Described, ParameterIn};
            use $crate::http::body::parameters::{Describe, Given, Params};
            use $crate::http::problem::Problem;

            impl Params for $name {
                fn read(given: &Given<'_>) -> Result<$name, Problem> {
                    Ok($name { $($field: params!(@read given, $type $(, $parameter)?),)+ })
                }

                fn each(visit: &mut dyn FnMut(&dyn Describe)) {
                    $(params!(@each visit, $type $(, $parameter)?);)+
                }
            }

            impl IntoParams for $name {
                fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
                    <$name as Params>::describe()
                }
            }
        };
    };
}
pub(crate) use params;

params! {
    /// How values are shown if the endpoint takes no questions.
    struct NumbersParams {
        as_digits: bool = NUMBERS,
    }
}

params! {
    /// What a read shows of a value, and how.
    #[derive(Debug, Clone, Default)]
    struct ValueParams {
        as_digits: bool = NUMBERS,
        quantiles: Vec<f64> = QUANTILES,
        buckets: bool = BUCKETS,
        form: Option<Form> = FORM,
        contains: Option<Item> = CONTAINS,
        of_some_kinds: OfSomeKinds,
    }
}

impl ValueParams {
    /// The default, with this format of numbers.
    pub(crate) fn of_numbers(as_digits: bool) -> ValueParams {
        ValueParams { as_digits, ..ValueParams::default() }
    }

    /// Checks that one of these kinds has each given parameter. In a query of several kinds, a parameter does not
    /// change the values of kinds that do not have it.
    pub(crate) fn check(&self, kinds: &[Kind]) -> Result<(), Problem> {
        let Some(kind) = kinds.first() else { return Ok(()) };
        let has = |name| kinds.iter().any(|kind| kind.about().parameters.contains(name));
        match self.of_some_kinds.0.iter().find(|name| !has(name)) {
            None => Ok(()),
            Some(name) => Err(bad_query(format!(
                "Kind {kind} has no parameter {name}; these kinds have it: {}.",
                kinds_with(name).join(", ")
            ))),
        }
    }

    /// The question to the state of this key. Without a key there are no tokens in the value.
    pub(crate) fn question(&self, key: Option<&Key>) -> Question {
        Question {
            key: key.cloned(),
            quantiles: self.quantiles.clone(),
            buckets: self.buckets,
            form: self.form,
            contains: self.contains.clone(),
        }
    }
}

/// The names of those parameters in the request that only some kinds have, for [`ValueParams::check`]. It reads
/// no parameter itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfSomeKinds(Vec<&'static str>);

impl Params for OfSomeKinds {
    fn read(given: &Given<'_>) -> Result<OfSomeKinds, Problem> {
        let of_some_kinds = Kind::ALL.iter().flat_map(|kind| kind.about().parameters);
        Ok(OfSomeKinds(of_some_kinds.copied().filter(|name| given.get(name).is_some()).collect()))
    }

    fn each(_: &mut dyn FnMut(&dyn Describe)) {}
}

/// The kinds whose reads have this parameter, if it is one that only some kinds have.
fn kinds_with(name: &str) -> Vec<&'static str> {
    let has = |kind: &&Kind| kind.about().parameters.contains(&name);
    Kind::ALL.iter().filter(has).map(|kind| kind.name()).collect()
}

/// For endpoints without query parameters.
pub(crate) struct NoParams;

impl Params for NoParams {
    fn read(_: &Given<'_>) -> Result<NoParams, Problem> {
        Ok(NoParams)
    }

    fn each(_: &mut dyn FnMut(&dyn Describe)) {}
}

impl<T: Clone + PartialEq> Parameter<T> {
    pub(crate) fn read(self, given: &Given<'_>) -> Result<T, Problem> {
        match (given.get(self.name), self.absent) {
            (Some(text), _) => self.values.parse(text).map_err(|rule| refuse(self.name, &rule)),
            (None, Some(absent)) => Ok(absent),
            (None, None) => {
                let rule = format!("it is required ({})", self.description);
                Err(refuse(self.name, &rule))
            }
        }
    }
}

impl<T: Clone + PartialEq> Describe for Parameter<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> Described {
        let required = if self.absent.is_some() { Required::False } else { Required::True };
        let kinds: Vec<String> =
            kinds_with(self.name).into_iter().map(|kind| format!("`{kind}`")).collect();
        let mut description = match &kinds[..] {
            [] => self.description.to_owned(),
            kinds => format!("{}: {}", kinds.join(", "), self.description),
        };
        if let Values::Whole { max, default, .. } = self.values {
            description.push_str(&format!(", 1 to {max} (default: {default})"));
        }
        ParameterBuilder::new()
            .name(self.name)
            .parameter_in(ParameterIn::Query)
            .required(required)
            .description(Some(description))
            .schema(Some(self.values.schema(self.absent.as_ref())))
            .example(self.example.map(Value::from))
            .build()
    }
}

impl<T: Clone + PartialEq> Values<T> {
    fn parse(&self, text: &str) -> Result<T, String> {
        match self {
            Values::Text { parse, .. } => parse(text),
            Values::Whole { max, read, .. } => match text.parse() {
                Ok(number) if (1..=*max).contains(&number) => Ok(read(number)),
                _ => Err(format!("{text:?} is not a whole number from 1 to {max}")),
            },
            Values::OneOf(values) => {
                let found = values.iter().find(|(value, _)| *value == text);
                found.map(|(_, value)| value.clone()).ok_or_else(|| {
                    let names = values.iter().map(|(value, _)| *value);
                    let names: Vec<&str> = names.filter(|value| !value.is_empty()).collect();
                    format!("{text:?} is neither {}", names.join(" nor "))
                })
            }
        }
    }

    fn schema(&self, absent: Option<&T>) -> ObjectBuilder {
        match self {
            Values::Text { schema, .. } => schema(),
            Values::Whole { max, default, .. } => ObjectBuilder::new()
                .schema_type(Type::Integer)
                .minimum(Some(1))
                .maximum(Some(*max))
                .default(Some(Value::from(*default))),
            Values::OneOf(values) => {
                let default = values.iter().find(|(_, value)| Some(value) == absent);
                one_of(values.iter().map(|(value, _)| *value).collect())
                    .default(default.map(|(value, _)| Value::from(*value)))
            }
        }
    }
}

/// The only parameter that can be given several times.
const KEY: &str = "key";

/// The keys in a query, before the permission check.
pub(crate) struct KeyTexts(Vec<String>);

impl Params for KeyTexts {
    fn read(given: &Given<'_>) -> Result<KeyTexts, Problem> {
        let keys = given.0.iter().filter(|(name, _)| name == KEY);
        let keys: Vec<_> = keys.map(|(_, text)| text.to_string()).collect();
        if keys.len() > limits::BATCH_ITEMS_MAX {
            return Err(refuse(KEY, &format!("at most {} keys", limits::BATCH_ITEMS_MAX)));
        }
        Ok(KeyTexts(keys))
    }

    fn each(visit: &mut dyn FnMut(&dyn Describe)) {
        visit(&KeyTexts(Vec::new()));
    }
}

impl Describe for KeyTexts {
    fn name(&self) -> &'static str {
        KEY
    }

    fn describe(&self) -> Described {
        let text = "A key, as `KIND/GROUP/NAME`. Up to 1,000 of them, if they fit into an address of 8 KiB. Each part is \
                    percent-encoded as in a path, and all of it again as in a query: a slash in the group is `%252F` in the URL";
        ParameterBuilder::new()
            .name(KEY)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(text))
            .schema(Some(ArrayBuilder::new().items(text_of_key()).max_items(Some(1000))))
            .example(Some(Value::from(vec!["counter/site/home"])))
            .build()
    }
}

fn text_of_key() -> ObjectBuilder {
    text().pattern(Some("^[a-z_]+/[^/]+/.+$"))
}

impl KeyTexts {
    /// The keys. Their parts are percent-encoded, as in a path.
    pub(crate) fn to(&self, permit: Permit<'_>) -> Result<Vec<Key>, Problem> {
        let key = |text: &String| match &text.splitn(3, '/').collect::<Vec<_>>()[..] {
            [kind, group, name] => permit.key(kind, &part(group)?, &part(name)?),
            _ => Err(refuse(KEY, &format!("{text:?} is not KIND/GROUP/NAME"))),
        };
        self.0.iter().map(key).collect()
    }
}

pub(crate) const GROUP: Parameter<Option<String>> = Parameter {
    name: "group",
    description: "A group, as `KIND/GROUP`, instead of `key`: up to 1,000 keys of it. A slash in the group is `%252F` \
                  in the URL",
    example: None,
    values: Values::Text {
        schema: || text().pattern(Some("^[a-z_]+/[^/]+$")),
        parse: |text| Ok(Some(text.to_owned())),
    },
    absent: Some(None),
};

/// The group that [`GROUP`] names.
pub(crate) fn group_of(permit: Permit<'_>, text: &str) -> Result<(Kind, Name), Problem> {
    match text.split('/').collect::<Vec<_>>()[..] {
        [kind, group] => permit.group(kind, &part(group)?),
        _ => Err(refuse(GROUP.name, &format!("{text:?} is not KIND/GROUP"))),
    }
}

/// A part of a key, which is percent-encoded as in a path.
fn part(text: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode_str(text).decode_utf8().map_err(|_| bad_path(StatusCode::BAD_REQUEST))
}

/// The query of a request: names and decoded values. Each name but [`KEY`] is given once.
pub(crate) struct Given<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Given<'_> {
    /// Splits a query into parameters and refuses those that `P` does not have.
    fn split<P: Params>(query: &str) -> Result<Given<'_>, Problem> {
        let mut given = Vec::<(Cow<'_, str>, Cow<'_, str>)>::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            let known = P::names();
            if !known.contains(&name.as_ref()) {
                let known = match &known[..] {
                    [] => "this endpoint has none".to_owned(),
                    known => format!("this endpoint has: {}", known.join(", ")),
                };
                return Err(bad_query(format!("Unknown query parameter {name:?}; {known}.")));
            }
            if name != KEY && given.iter().any(|(earlier, _)| *earlier == name) {
                return Err(bad_query(format!("{name} is given twice; give it once.")));
            }
            given.push((name, value));
        }
        Ok(Given(given))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_ref())
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, Problem> {
    let decoded = if text.contains('+') {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().map(|text| Cow::Owned(text.into_owned()))
    } else {
        percent_decode_str(text).decode_utf8()
    };
    decoded.map_err(|_| {
        Problem::new(ProblemType::BadAddress, "The query is not UTF-8 after percent-decoding.")
    })
}

pub(crate) fn bad_query(detail: String) -> Problem {
    Problem::new(ProblemType::BadQuery, detail)
}

/// The problem of a parameter whose value breaks this rule.
pub(crate) fn refuse(parameter: &str, rule: &str) -> Problem {
    bad_query(format!("{parameter}: {rule}."))
}

/// Extracts the query parameters of an endpoint.
pub(crate) struct Query<P>(pub(crate) P);

impl<S: Send + Sync, P: Params> FromRequestParts<S> for Query<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<P>, Problem> {
        P::read(&Given::split::<P>(parts.uri.query().unwrap_or(""))?).map(Query)
    }
}

/// The header with the entity tags that a client has.
pub(crate) struct IfNoneMatch;

fn kind_in_path() -> Described {
    part_of_path("kind", "Data type", "counter", schemas::kind())
}

fn name_in_path(name: &str, example: &str) -> Described {
    part_of_path(name, "1 to 256 bytes of UTF-8; `/` as `%2F`", example, schemas::name())
}

fn part_of_path(name: &str, description: &str, example: &str, schema: ObjectBuilder) -> Described {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema))
        .example(Some(Value::from(example)))
        .build()
}

impl IntoParams for KindPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
        vec![kind_in_path()]
    }
}

impl IntoParams for GroupPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
        vec![kind_in_path(), name_in_path("group", "site")]
    }
}

impl IntoParams for KeyPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
        vec![kind_in_path(), name_in_path("group", "site"), name_in_path("name", "home")]
    }
}

impl IntoParams for ResetPath {
    fn into_params(in_place: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
        let id = ParameterBuilder::new().name("id").parameter_in(ParameterIn::Path);
        let id = id.description(Some("The `id` of the answer to the reset"));
        let id =
            id.required(Required::True).schema(Some(text().pattern(Some("^[0-9]+-[0-9a-f]{32}$"))));
        let mut all = KeyPath::into_params(in_place);
        all.push(id.build());
        all
    }
}

impl IntoParams for IfNoneMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Described> {
        let header =
            ParameterBuilder::new().name("If-None-Match").parameter_in(ParameterIn::Header);
        let header = header.description(Some("Entity tags. Returns 304 if one matches"));
        vec![header.required(Required::False).schema(Some(text())).build()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    params! {
        struct TestParams {
            needed: usize = Parameter {
                name: "a",
                description: "a length",
                example: None,
                values: Values::Text { schema: text, parse: |text| Ok(text.len()) },
                absent: None,
            },
            flag: bool = flag("b", "a flag"),
        }
    }

    fn split(query: &str) -> Result<Vec<(String, String)>, String> {
        let owned = |given: Given<'_>| {
            given.0.into_iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect()
        };
        let given = Given::split::<TestParams>(query);
        given.map(owned).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn query_parameters_are_known_and_given_once() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(split("a=1&b=x+y%2B").unwrap(), [pair("a", "1"), pair("b", "x y+")]);
        assert_eq!(split("a&&").unwrap(), [pair("a", "")]);
        assert!(split("c=1").unwrap_err().contains("this endpoint has: a, b"));
        assert!(split("a=1&%61=2").unwrap_err().contains("twice"));
        assert!(split("a=%FF").unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_parameter_is_read_as_it_is_described() {
        let read = |query: &str| {
            let read = TestParams::read(&Given::split::<TestParams>(query).expect("known names"));
            let read = read.map_err(|problem| problem.detail().to_owned());
            read.map(|TestParams { needed, flag }| (needed, flag))
        };
        assert_eq!(read("a=xyz"), Ok((3, false)));
        for (given, is_set) in [("b", true), ("b=true", true), ("b=false", false)] {
            assert_eq!(read(&format!("a=xyz&{given}")), Ok((3, is_set)));
        }
        assert_eq!(read("b"), Err("a: it is required (a length).".to_owned()));
        assert_eq!(read("a=&b=maybe"), Err("b: \"maybe\" is neither false nor true.".to_owned()));
        let described = serde_json::to_value(TestParams::into_params(|| None)).expect("JSON");
        assert_eq!(
            described,
            serde_json::json!([
                {"name": "a", "in": "query", "description": "a length", "required": true,
                    "schema": {"type": "string"}},
                {"name": "b", "in": "query", "description": "a flag", "required": false,
                    "schema": {"type": "string", "enum": ["", "false", "true"], "default": "false"}},
            ])
        );
    }

    #[test]
    fn the_bound_of_quantiles_is_described() {
        assert!(QUANTILES.description.contains(&format!("up to {} ", limits::QUANTILES_MAX)));
    }
}
