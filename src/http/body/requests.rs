//! What clients send as JSON. Each type reads a body and is also its description in the OpenAPI document, so
//! the two cannot differ.
//!
//! Ops stay text until their kind is known. Updates of a batch and keys of a query stay text until each is
//! read, so that a bad one spoils only itself. The parsed values borrow from the text, because a batch has
//! hundreds of short strings and each is used once.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use orderfree_core::crdt::json::rule;
use orderfree_core::crdt::{Expression, Kind, Op};
use orderfree_core::protocol::Key;
use orderfree_core::protocol::consistency::{Level, UnknownLevel};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json as literal};
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, OneOfBuilder, Schema};
use utoipa::openapi::{ObjectBuilder, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::engine::write::Update;
use crate::http::body::ids::{IdHeaders, ItemId, Place};
use crate::http::body::json;
use crate::http::body::schemas;
use crate::http::catalog::ProblemType;
use crate::http::guard::access::Permit;
use crate::http::problem::Problem;
use crate::limits;

/// The body of an update: one op, or a list of ops. Either all ops of a list are applied or none.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum UpdateBody<'a> {
    One(OpText<'a>),
    Many(OpsBody<'a>),
}

/// A list of ops.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpsBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<OpText>, min_items = 1, max_items = 1000)]
    ops: OpList<'a>,
    /// Only with an id, and for kinds with amounts: the ops are the sender's running total, and the greatest
    /// number of an id counts.
    #[serde(default, deserialize_with = "given_whole_number")]
    #[schema(nullable = false)]
    sequence: Option<u64>,
}

/// The ops of an update, and the number of its running total.
pub(crate) struct Ops {
    pub(crate) ops: Vec<Op>,
    pub(crate) sequence: Option<u64>,
}

impl From<Vec<Op>> for Ops {
    fn from(ops: Vec<Op>) -> Ops {
        Ops { ops, sequence: None }
    }
}

/// An op as JSON. Its kind describes it and reads it.
#[derive(Deserialize)]
#[serde(from = "&'a RawValue", bound(deserialize = "'de: 'a"))]
pub(crate) struct OpText<'a>(&'a str);

type OpList<'a> = List<OpText<'a>, { limits::OPS_MAX }>;

/// Updates of any keys.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<UpdateItem>, min_items = 1, max_items = 1000)]
    pub(crate) updates: List<&'a RawValue, { limits::BATCH_ITEMS_MAX }>,
}

/// One update: a key, and an op or a list of ops (all or none). Also one line of an NDJSON stream.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateItem<'a> {
    #[serde(borrow)]
    kind: KindText<'a>,
    #[serde(borrow)]
    group: NameText<'a>,
    #[serde(borrow)]
    name: NameText<'a>,
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(nullable = false)]
    op: Option<OpText<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<Vec<OpText>>, min_items = 1, max_items = 1000)]
    ops: Option<OpList<'a>>,
    /// The id under which the update counts once, however often and to whichever pod it is sent.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(schema_with = schemas::id)]
    id: Option<NameText<'a>>,
    /// The time of the id, the same at each retry: RFC 3339, or a Unix time of 10, 13 or 16 digits. UUIDs of
    /// versions 1, 6 and 7 and ULIDs have one inside.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(nullable = false)]
    time: Option<TimeValue<'a>>,
    /// Only with an id, and for kinds with amounts: the ops are the sender's running total, and the greatest
    /// number of an id counts.
    #[serde(default, deserialize_with = "given_whole_number")]
    #[schema(nullable = false)]
    sequence: Option<u64>,
}

/// A time as text or as a number.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TimeValue<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Number(#[serde(deserialize_with = "whole_number")] u64),
}

/// Keys to read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<KeyBody>, min_items = 1, max_items = 1000)]
    pub(crate) keys: List<&'a RawValue, { limits::BATCH_ITEMS_MAX }>,
    /// Consistency level of the read. The default is the server's setting.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) consistency: Option<LevelName>,
}

/// Keys to watch.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<KeyBody>, min_items = 1, max_items = 1000)]
    pub(crate) keys: List<&'a RawValue, { limits::BATCH_ITEMS_MAX }>,
}

/// A key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody<'a> {
    #[serde(borrow)]
    kind: KindText<'a>,
    #[serde(borrow)]
    group: NameText<'a>,
    #[serde(borrow)]
    name: NameText<'a>,
}

/// Keys of one group, or set algebra over them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeBody<'a> {
    #[serde(borrow)]
    pub(crate) kind: KindText<'a>,
    #[serde(borrow)]
    pub(crate) group: NameText<'a>,
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(schema_with = unique_names)]
    pub(crate) names: Option<List<NameText<'a>, { limits::MERGE_KEYS_MAX }>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) expression: Option<ExpressionBody>,
    /// Consistency level of the read. The default is the server's setting.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) consistency: Option<LevelName>,
}

/// A name, `{"and":[…]}`, `{"or":[…]}` or, within `and`, `{"not":…}`.
#[derive(Deserialize)]
pub(crate) struct ExpressionBody(pub(crate) Expression);

/// The name of a kind.
#[derive(Deserialize)]
pub(crate) struct KindText<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A group or a name.
#[derive(Deserialize)]
pub(crate) struct NameText<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The name of a consistency level.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct LevelName(pub(crate) Level);

/// An array of 1 to `MAX` items.
pub(crate) struct List<T, const MAX: usize>(pub(crate) Vec<T>);

const OP_LIST_EXAMPLE: &str = r#"{"ops":[{"op":"add"},{"op":"add"}]}"#;
const UPDATE_EXAMPLE: &str = r#"{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}"#;
const KEY_EXAMPLE: &str = r#"{"kind":"counter","group":"site","name":"home"}"#;

/// Reads the ops of a body whose key has this kind.
pub(crate) fn ops(kind: Kind, body: &[u8]) -> Result<Ops, Problem> {
    /// Without the other fields, because those of an op are not known here.
    #[derive(Deserialize)]
    struct HasOps {
        #[serde(default, deserialize_with = "given")]
        ops: Option<IgnoredAny>,
    }

    let text = json::text(body)?;
    let is_list =
        json::is_object(text)? && json::read::<HasOps>(text, OP_LIST_EXAMPLE)?.ops.is_some();
    let body = if is_list {
        UpdateBody::Many(json::read(text, OP_LIST_EXAMPLE)?)
    } else {
        UpdateBody::One(OpText(text))
    };
    match body {
        UpdateBody::One(op) => Ok(vec![op.read(kind)?].into()),
        UpdateBody::Many(OpsBody { ops, sequence }) => {
            Ok(Ops { ops: ops.read(kind).collect::<Result<_, _>>()?, sequence })
        }
    }
}

/// Reads one update, at a place of a request with these headers.
pub(crate) fn update(
    permit: Permit<'_>,
    ids: &IdHeaders,
    place: Place,
    text: &str,
) -> Result<(Key, Update), Problem> {
    let item: UpdateItem<'_> = json::read(text, UPDATE_EXAMPLE)?;
    let key = permit.key(&item.kind.0, &item.group.0, &item.name.0)?;
    let ops = match (item.op, item.ops) {
        (Some(op), None) => vec![op.read(key.kind)?],
        (None, Some(list)) => list.read(key.kind).collect::<Result<_, _>>()?,
        _ => {
            let detail = format!("An update needs either `op` or `ops`, such as {UPDATE_EXAMPLE}.");
            return Err(json::bad_body(detail));
        }
    };
    let UpdateItem { id, time, sequence, .. } = item;
    let (id, time) = (id.map(|id| id.0), time.map(TimeValue::into_text));
    let name = ids.name_item(key.kind, place, ItemId { id, time, sequence })?;
    Ok((key, Update { ops, name }))
}

/// The number of ops of an update, also of one that is refused: the same on every pod. 0 if the text is no
/// update.
pub(crate) fn count_ops(text: &str) -> usize {
    #[derive(Deserialize)]
    struct Counted {
        op: Option<IgnoredAny>,
        #[serde(default)]
        ops: Vec<IgnoredAny>,
    }
    let counted = serde_json::from_str::<Counted>(text);
    counted.map_or(0, |counted| usize::from(counted.op.is_some()) + counted.ops.len())
}

/// Reads one key of a query.
pub(crate) fn key(permit: Permit<'_>, text: &str) -> Result<Key, Problem> {
    let key: KeyBody<'_> = json::read(text, KEY_EXAMPLE)?;
    permit.key(&key.kind.0, &key.group.0, &key.name.0)
}

impl<'a> TimeValue<'a> {
    fn into_text(self) -> Cow<'a, str> {
        match self {
            TimeValue::Text(text) => text,
            TimeValue::Number(number) => number.to_string().into(),
        }
    }
}

impl OpText<'_> {
    fn read(self, kind: Kind) -> Result<Op, Problem> {
        let example = kind.about().example_op;
        if !json::is_object(self.0)? {
            let detail = format!(
                "An op must be a JSON object; an example of kind {kind} is {example}. A bare value needs the header \
                 `Content-Type: text/plain`."
            );
            return Err(Problem::new(ProblemType::BadOp, detail));
        }
        kind.read_op(self.0).map_err(|error| {
            if !error.is_data() {
                return json::not_json(&error);
            }
            let rule = rule(&error).replace("variant identifier", "the name of an op");
            let detail = format!("This is not an op of kind {kind}: {rule}. Example: {example}.");
            Problem::new(ProblemType::BadOp, detail)
        })
    }
}

impl OpList<'_> {
    fn read(self, kind: Kind) -> impl Iterator<Item = Result<Op, Problem>> {
        let at = move |(index, op): (usize, OpText<'_>)| {
            op.read(kind).map_err(|problem| problem.within(&format!("ops[{index}]")))
        };
        self.0.into_iter().enumerate().map(at)
    }
}

impl<'a> From<&'a RawValue> for OpText<'a> {
    fn from(text: &'a RawValue) -> OpText<'a> {
        OpText(text.get())
    }
}

impl TryFrom<String> for LevelName {
    type Error = UnknownLevel;

    fn try_from(name: String) -> Result<LevelName, UnknownLevel> {
        name.parse().map(LevelName)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T, MAX>, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of 1 to {MAX} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T, MAX>, A::Error> {
                let (mut items, mut count) = (Vec::new(), 0);
                while let Some(item) = seq.next_element()? {
                    count += 1;
                    if count <= MAX {
                        items.push(item);
                    }
                }
                if count == 0 || count > MAX {
                    return Err(de::Error::invalid_length(count, &self));
                }
                Ok(List(items))
            }
        }

        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// Reads an optional field. If it is there, it must not be null.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// As [`given`], for a whole number.
fn given_whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    whole_number(deserializer).map(Some)
}

/// Reads a whole number, also from `5.0` or `5e0`.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Written;

    impl Visitor<'_> for Written {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 to 18446744073709551615")
        }

        fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_f64<E: de::Error>(self, double: f64) -> Result<u64, E> {
            /// From here on, a double can stand for several whole numbers.
            const END: f64 = 9_007_199_254_740_992.0;
            // The text has a sign or a point unless the double is a whole number from 0.
            let number = double.to_string().parse().ok().filter(|_| double < END);
            number.ok_or_else(|| E::invalid_value(Unexpected::Float(double), &self))
        }
    }

    deserializer.deserialize_any(Written)
}

/// Adds to the components of the document what no attribute of `utoipa` can say: which fields exclude each
/// other.
pub(crate) fn describe_choices(components: &mut Map<String, Value>) {
    components["UpdateItem"]["oneOf"] = literal!([{"required": ["op"]}, {"required": ["ops"]}]);
    // An absent key with a default has a value, and otherwise none.
    components["ReadResult"]["oneOf"][1]["not"] = literal!({"required": ["value"]});
    let audience = literal!({"enum": [Kind::Audience.name()]});
    components["MergeBody"]["oneOf"] = literal!([
        {"required": ["names"], "not": {"required": ["expression"]}},
        {"required": ["expression"], "not": {"required": ["names"]}, "properties": {"kind": audience}},
    ]);
}

impl PartialSchema for OpText<'_> {
    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("Op").into()
    }
}

impl PartialSchema for ExpressionBody {
    fn schema() -> RefOr<Schema> {
        let parts = |name| {
            let names = name_array().min_items(Some(1)).max_items(Some(8));
            let one = ObjectBuilder::new().property(name, names).required(name);
            one.additional_properties(Some(AdditionalProperties::FreeForm(false)))
        };
        OneOfBuilder::new().item(schemas::name()).item(parts("and")).item(parts("or")).into()
    }
}

impl PartialSchema for KindText<'_> {
    fn schema() -> RefOr<Schema> {
        schemas::kind().description(Some("Data type.")).into()
    }
}

impl PartialSchema for NameText<'_> {
    fn schema() -> RefOr<Schema> {
        let description =
            "1 to 256 bytes of UTF-8 without control characters, but not `.` or `..`.";
        schemas::name().description(Some(description)).into()
    }
}

impl PartialSchema for LevelName {
    fn schema() -> RefOr<Schema> {
        let description = "The consistency level: which replicas must answer.";
        let names = Level::ALL.iter().map(|level| level.name()).collect();
        schemas::one_of(names).description(Some(description)).into()
    }
}

impl ToSchema for OpText<'_> {
    fn name() -> Cow<'static, str> {
        "Op".into()
    }
}

impl ToSchema for ExpressionBody {}
impl ToSchema for KindText<'_> {}
impl ToSchema for NameText<'_> {}
impl ToSchema for LevelName {}

fn unique_names() -> ArrayBuilder {
    let most = Some(limits::MERGE_KEYS_MAX);
    let each = name_array().min_items(Some(1)).max_items(most).unique_items(true);
    each.description(Some("Names without duplicates."))
}

fn name_array() -> ArrayBuilder {
    ArrayBuilder::new().items(schemas::name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Caller, Verb};
    use orderfree_core::crdt::CounterOp;

    fn add(by: i64) -> Op {
        Op::Counter(CounterOp::Add { by })
    }

    fn read(text: &str) -> Result<Vec<Op>, Problem> {
        ops(Kind::Counter, text.as_bytes()).map(|read| read.ops)
    }

    #[test]
    fn ops_come_alone_or_as_a_list() {
        assert_eq!(read(r#"{"op":"add","by":5}"#), Ok(vec![add(5)]));
        let list = r#"{"\u006fps":[{"op":"add"},{"op":"add","by":"-2"}]}"#;
        assert_eq!(read(list), Ok(vec![add(1), add(-2)]));
        for (body, kind, says) in [
            ("5", ProblemType::BadOp, "JSON object"),
            (r#"["add",1]"#, ProblemType::BadOp, "JSON object"),
            ("nonsense", ProblemType::BadBody, "This is not valid JSON: "),
            (r#"{"ops":[]}"#, ProblemType::BadBody, "array of 1 to 1000"),
            (r#"{"ops":{}}"#, ProblemType::BadBody, "array of 1 to 1000"),
            (r#"{"ops":null}"#, ProblemType::BadBody, "array of 1 to 1000"),
            (r#"{"ops":[{"op":"add"}],"ops":[]}"#, ProblemType::BadBody, "Duplicate field `ops`"),
            (r#"{"ops":[{"op":"add"}],"by":1}"#, ProblemType::BadBody, "Unknown field `by`"),
            (r#"{"ops":[{"op":"add"},{"op":"sub"}]}"#, ProblemType::BadOp, "ops[1]: This is not"),
            (r#"{"ops":[{"op":"add"},null]}"#, ProblemType::BadOp, "ops[1]: An op must be"),
            (r#"{"ops":[{"op":"add","by":1e400}]}"#, ProblemType::BadBody, "ops[0]: This is not"),
            (r#"{"op":"add","by":1.5}"#, ProblemType::BadOp, "whole number"),
            (r#"{"op":"add","by":1,"by":2}"#, ProblemType::BadOp, "duplicate field `by`"),
            (r#"{"op":"add","op":"add"}"#, ProblemType::BadOp, "duplicate field `op`"),
            (r#"{"op":"add","unit":1}"#, ProblemType::BadOp, "unknown field `unit`"),
            (r#"{"by":1}"#, ProblemType::BadOp, "missing field `op`"),
        ] {
            let problem = read(body).expect_err(body);
            assert_eq!(problem.kind(), kind, "{body}: {}", problem.detail());
            assert!(problem.detail().contains(says), "{body}: {}", problem.detail());
        }
        let many = format!(r#"{{"ops":[{}1]}}"#, "1,".repeat(1_000));
        let problem = read(&many).expect_err("too many");
        let says = "`ops`: invalid length 1001, expected an array of 1 to 1000 items.";
        assert_eq!(problem.detail(), says);
    }

    #[test]
    fn an_op_is_read_as_from_serde_jsons_own_value() {
        let texts = [
            "{}",
            r#"{"op":"add"}"#,
            r#"{"op":"add","by":1.5}"#,
            r#"{"op":"add","by":-0.0}"#,
            r#"{"op":"add","by":"7"}"#,
            r#"{"op":"add","x":1}"#,
            r#"{"by":1,"op":"add"}"#,
            r#"{"op":"add","item":"\u00e9","by":18446744073709551615}"#,
            r#"{"op":"add","items":["a",1,null]}"#,
            r#"{"op":"record","value":1e300,"count":2}"#,
            r#"{"op":"record","value":36893488147419103232}"#,
            r#"{"op":"record","value":-0.0}"#,
            r#"{"op":"set","value":{"b":[true,null],"a":{"c":""}},"after":null}"#,
            r#"{"op":"observe","value":9,"label":"eu-1"}"#,
        ];
        for &kind in Kind::ALL {
            for text in texts.into_iter().chain([kind.about().example_op]) {
                let json: Value = serde_json::from_str(text).expect("JSON");
                match (OpText(text).read(kind), kind.parse_op(&json)) {
                    (Ok(op), Ok(expected)) => assert_eq!(op, expected, "{kind} {text}"),
                    // Each parser names the first of two mistakes, and a `Value` sorts its fields.
                    (Err(problem), Err(_)) => assert_eq!(problem.kind(), ProblemType::BadOp),
                    (read, expected) => panic!("{kind} {text}: {read:?}, not {expected:?}"),
                }
            }
            for text in [r#"{"op":0}"#, r#"{"op":["add"]}"#, r#"{"op":null}"#] {
                let problem = OpText(text).read(kind).expect_err(text);
                assert!(problem.detail().contains("expected the name of an op"), "{problem:?}");
            }
        }
    }

    #[test]
    fn a_sequence_is_a_whole_number_however_json_writes_it() {
        let sequence = |text: &str| {
            let body = format!(r#"{{"ops":[{{"op":"add"}}],"sequence":{text}}}"#);
            ops(Kind::Counter, body.as_bytes()).map(|read| read.sequence)
        };
        for text in ["5", "5.0", "5e0", "0.5e1"] {
            assert_eq!(sequence(text), Ok(Some(5)), "{text}");
        }
        assert_eq!(sequence("18446744073709551615"), Ok(Some(u64::MAX)));
        for text in
            ["5.5", "-1", "-1.0", "9007199254740993.0", "18446744073709551616", "\"5\"", "null"]
        {
            let problem = sequence(text).expect_err(text);
            assert_eq!(problem.kind(), ProblemType::BadBody, "{text}");
            assert!(problem.detail().contains("a whole number"), "{text}: {}", problem.detail());
        }
    }

    #[test]
    fn an_update_has_a_key_and_one_of_op_and_ops() {
        let read = |fields: &str| {
            let caller = Caller::anonymous();
            let text = format!(r#"{{"kind":"counter","group":"g","name":"n"{fields}}}"#);
            update(caller.to(Verb::Write), &IdHeaders::default(), Place::default(), &text)
                .map(|(_, update)| update.ops)
        };
        assert_eq!(read(r#","op":{"op":"add"}"#), Ok(vec![add(1)]));
        assert_eq!(read(r#","ops":[{"op":"add"},{"op":"add"}]"#), Ok(vec![add(1); 2]));
        for (fields, says) in [
            ("", "either `op` or `ops`"),
            (r#","op":{"op":"add"},"ops":[{"op":"add"}]"#, "either `op` or `ops`"),
            (r#","op":{"op":"add"},"ops":null"#, "`ops`: invalid type: null, expected an array"),
            (r#","op":null"#, "An op must be a JSON object"),
            (r#","op":["add"]"#, "An op must be a JSON object"),
            (r#","op":{"op":"add"},"op":{"op":"add"}"#, "Duplicate field `op`"),
            (r#","op":{"op":"add"},"group":7"#, "Duplicate field `group`"),
            (r#","op":{"op":"add"},"by":7"#, "Unknown field `by`, expected one of `kind`"),
            (r#","ops":[{"op":"add"},{"op":"sub"}]"#, "ops[1]"),
        ] {
            let problem = read(fields).expect_err(fields);
            assert!(problem.detail().contains(says), "{fields}: {}", problem.detail());
        }
    }

    #[test]
    fn the_described_limits_and_levels_are_the_real_ones() {
        let limits = [limits::OPS_MAX, limits::BATCH_ITEMS_MAX, limits::MERGE_KEYS_MAX];
        assert_eq!(limits, [1000; 3]);
        for level in Level::ALL {
            let name = Value::from(level.name());
            let read = serde_json::from_value::<LevelName>(name.clone()).expect("a level");
            assert_eq!(read.0, level);
        }
        let body = |level: &str| {
            let text = format!(r#"{{"keys":[1],"consistency":{level}}}"#);
            let read = json::read::<QueryBody<'_>>(&text, "THIS");
            read.err().map_or_else(String::new, |problem| problem.detail().to_owned())
        };
        assert_eq!(body("\"Quorum\""), "");
        assert!(body("\"most\"").starts_with("`consistency`: `most` is not a consistency level"));
        assert!(body("null").starts_with("`consistency`: invalid type: null"));
    }
}
