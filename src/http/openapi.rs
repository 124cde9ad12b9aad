//! The interface as OpenAPI 3.1. It is built from the routes that serve it, and lists every problem that each
//! endpoint can return.

use std::collections::BTreeMap;

use orderfree_core::crdt::Kind;
use serde_json::{Value, json};
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::{HttpMethod, Operation};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, OpenApiBuilder, Ref, RefOr, Required};
use utoipa::{PartialSchema, ToSchema};

use crate::http::all_routes;
use crate::http::body::{requests, schemas};
use crate::http::catalog::{Entry, ProblemType};
use crate::http::problem::ProblemBody;

/// The name of the security scheme.
const TOKEN: &str = "token";

const PROBLEM: &str = "application/problem+json";

/// The document of `GET /openapi.json` and `orderfree openapi`.
#[must_use]
pub fn openapi() -> Value {
    let mut document = serde_json::to_value(typed()).expect("invariant: the document is JSON");
    let schemas = document["components"]["schemas"].as_object_mut();
    let schemas = schemas.expect("invariant: there are components");
    schemas.extend(schemas::of_kinds());
    requests::describe_choices(schemas);
    add_examples(&mut document);
    document
}

/// The part of the document that the routes and their types define.
fn typed() -> OpenApi {
    let mut document = all_routes().into_openapi();
    let components = document.components.get_or_insert_default();
    components.schemas.insert(ProblemBody::name().into_owned(), ProblemBody::schema());
    let mut schemas = Vec::new();
    ProblemBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let update = document.paths.paths.get_mut("/v1/{kind}/{group}/{name}");
    let update = update.and_then(|item| item.post.as_mut());
    if let Some(RefOr::T(body)) = update.and_then(|update| update.request_body.as_mut()) {
        // An empty body is a valid op.
        body.required = Some(Required::False);
    }
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Post, &mut item.post),
            (HttpMethod::Delete, &mut item.delete),
        ] {
            if let Some(operation) = operation {
                add_problems(operation, &problems_of(path, &method));
            }
        }
    }
    document
}

/// Adds an op and a value of each kind. The tests execute them.
fn add_examples(document: &mut Value) {
    let parse = |text| -> Value { serde_json::from_str(text).expect("invariant: a test reads it") };
    let address = &mut document["paths"]["/v1/{kind}/{group}/{name}"];
    for kind in Kind::ALL {
        let (name, about) = (kind.name(), kind.about());
        let body = &mut address["post"]["requestBody"]["content"]["application/json"];
        body["examples"][name] =
            json!({"summary": about.summary, "value": parse(about.example_op)});
        let answer = &mut address["get"]["responses"]["200"]["content"]["application/json"];
        answer["examples"][name] = json!({"summary": about.summary, "value": {
            "kind": name, "group": "site", "name": "home", "value": parse(about.example_value),
            "exact": about.is_exact, "as_of": "2026-11-21T08:00:00.123456Z",
            "consistency": "local_quorum", "shards": 1, "folded_through": null,
        }});
    }
}

/// The document without its paths.
pub(crate) fn head() -> OpenApi {
    let mut info = Info::new("Orderfree", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Counters and other mergeable data types over HTTP, without coordination. An update is `acked`, \
         `refused` (certainly not counted by this request, so it is safe to send it again) or `unknown` (it \
         may be counted; with an `Idempotency-Key` send it again, without one it may count twice). Every error is `application/problem+json`."
            .to_owned(),
    );
    info.license = Some(License::new("MIT OR Apache-2.0"));
    let mut components = Components::new();
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("orderfree_…");
    let token = token.description(Some("Required if the server's policy has tokens"));
    components.add_security_scheme(TOKEN, SecurityScheme::Http(token.build()));
    let none_or_token = [SecurityRequirement::default(), SecurityRequirement::new(TOKEN, [""; 0])];
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some(none_or_token))
        .build()
}

/// The problems that an endpoint can return.
fn problems_of(path: &str, method: &HttpMethod) -> Vec<ProblemType> {
    use ProblemType::{
        AnswerFull, BadAddress, BadBody, BadHeader, BadId, BadName, BadOp, BadQuery, BadRequest,
        BodyTooLarge, BodyTooSlow, BornTooOften, Clock, ContentType, Corrupt, DiscardUnknown,
        FoldBusy, FoldPaused, FoldUnknown, Forbidden, IdAhead, IdBeforeReset, IdExpired, IdReused,
        IdWithoutTime, Internal, KeyAbsent, NotAcceptable, NotDiscardable, NotReady, NotResettable,
        OtherItem, OutOfRange, OutcomeUnknown, OverQuota, Overloaded, ResetAbsent, ResetLogUnread,
        ResetOvertaken, ResetPaused, ResetUnknown, ResetsTooFast, RowAbsent, SequenceBehind,
        StateTooLarge, Stopping, StoreRefused, StoreUnavailable, TooFast, TooManyIds,
        TooManyResets, TooManyRows, TooManyWatched, Unauthenticated, Undecodable, UnknownKind,
        UnknownProblem, Unmergeable, Unsent, UriTooLong,
    };
    const ANY: &[ProblemType] = &[BadAddress, BadRequest, UriTooLong, Internal];
    const CALLED: &[ProblemType] = &[Unauthenticated, Forbidden, TooFast];
    const ADDRESSED: &[ProblemType] = &[UnknownKind, BadName, BadQuery, Overloaded];
    const BODY: &[ProblemType] =
        &[BadQuery, BadBody, ContentType, BodyTooLarge, BodyTooSlow, Overloaded];
    const WRITE: &[ProblemType] = &[
        BadOp,
        BadHeader,
        OtherItem,
        OutOfRange,
        StateTooLarge,
        OverQuota,
        BornTooOften,
        Clock,
        ResetLogUnread,
        StoreRefused,
        Unsent,
        Stopping,
        OutcomeUnknown,
    ];
    const IDS: &[ProblemType] = &[
        BadId,
        IdWithoutTime,
        IdAhead,
        IdExpired,
        IdBeforeReset,
        IdReused,
        SequenceBehind,
        TooManyIds,
    ];
    const READ: &[ProblemType] =
        &[BadHeader, StoreUnavailable, TooManyRows, Undecodable, Unmergeable, Corrupt];
    const FOLD: &[ProblemType] = &[FoldPaused, FoldBusy, FoldUnknown];
    const RESET: &[ProblemType] = &[
        BadHeader,
        KeyAbsent,
        NotResettable,
        ResetOvertaken,
        ResetPaused,
        ResetUnknown,
        TooManyResets,
        ResetsTooFast,
        TooManyIds,
        Clock,
        StoreUnavailable,
    ];
    const RESET_IDS: &[ProblemType] = &[BadId, IdWithoutTime, IdAhead, IdExpired, IdReused];
    let of_path: &[&[ProblemType]] = match (path, method) {
        ("/v1/{kind}/{group}/{name}", HttpMethod::Post) => {
            &[ADDRESSED, BODY, WRITE, IDS, &[NotAcceptable]]
        }
        ("/v1/{kind}/{group}/{name}", HttpMethod::Delete)
        | ("/v1/{kind}/{group}/{name}/reset", _) => &[ADDRESSED, BODY, RESET, RESET_IDS],
        ("/v1/{kind}/{group}/{name}/resets/{id}", _) => &[ADDRESSED, RESET, &[ResetAbsent]],
        ("/v1/{kind}/{group}", HttpMethod::Delete) => {
            &[ADDRESSED, READ, RESET, &[BadId, IdWithoutTime]]
        }
        ("/v1/{kind}/{group}/{name}", _) => {
            &[ADDRESSED, READ, &[KeyAbsent, NotAcceptable, AnswerFull]]
        }
        ("/v1/{kind}/{group}", _) => &[ADDRESSED, &[BadHeader, StoreUnavailable, Corrupt]],
        ("/v1/{kind}/{group}/{name}/shards", _) => &[ADDRESSED, READ, &[KeyAbsent]],
        ("/v1/{kind}/{group}/{name}/fold", _) => &[ADDRESSED, READ, FOLD],
        ("/v1/{kind}/{group}/{name}/discard", _) => &[
            ADDRESSED,
            &[StoreUnavailable, TooManyRows, Corrupt],
            &[RowAbsent, NotDiscardable, DiscardUnknown],
        ],
        ("/v1/{kind}", _) => &[&[UnknownKind, BadQuery, Overloaded, StoreUnavailable, Corrupt]],
        ("/metrics", _) => &[&[Unauthenticated, Forbidden]],
        ("/v1/batch", _) => &[BODY, WRITE, IDS, &[UnknownKind, BadName, AnswerFull]],
        ("/v1/query", _) => &[BODY, &[BadHeader]],
        ("/v1/watch", HttpMethod::Post) => {
            &[BODY, &[BadHeader, UnknownKind, BadName, TooManyWatched, Stopping]]
        }
        ("/v1/watch", _) => {
            &[ADDRESSED, &[BadHeader, StoreUnavailable, Corrupt, TooManyWatched, Stopping]]
        }
        ("/v1/{kind}/{group}/{name}/badge.svg", _) => &[ADDRESSED, READ, &[NotAcceptable]],
        ("/hit/{group}/{file}", _) => &[WRITE, READ, &[BadName, BadQuery, Forbidden, TooFast]],
        ("/v1/hottest", _) => &[&[BadQuery, Overloaded]],
        ("/v1/ids", _) => &[&[BadQuery, BadHeader, Overloaded, Clock]],
        ("/v1/merge", _) => {
            &[ADDRESSED, BODY, READ, &[KeyAbsent, NotAcceptable, OutOfRange, AnswerFull]]
        }
        ("/v1/kinds", _) => &[&[BadQuery, Overloaded]],
        ("/readyz", _) => &[&[BadQuery, NotReady]],
        ("/version", _) => &[&[BadQuery]],
        ("/problems/{slug}", _) => &[&[UnknownProblem]],
        _ => &[],
    };
    let mut problems: Vec<ProblemType> = of_path.concat();
    problems.extend(ANY);
    if path.starts_with("/v1/") {
        problems.extend(CALLED);
    }
    problems.sort_unstable();
    problems.dedup();
    problems
}

/// Adds one response per status, with one example per problem type.
fn add_problems(operation: &mut Operation, problems: &[ProblemType]) {
    let mut by_status: BTreeMap<u16, Vec<Entry>> = BTreeMap::new();
    for problem in problems {
        let entry = problem.entry();
        by_status.entry(entry.status.as_u16()).or_default().push(entry);
    }
    for (status, entries) in by_status {
        let lines: Vec<String> =
            entries.iter().map(|entry| format!("`{}`: {}", entry.slug, entry.meaning)).collect();
        let mut content =
            ContentBuilder::new().schema(Some(Ref::from_schema_name(ProblemBody::name())));
        for entry in &entries {
            let example = utoipa::openapi::example::ExampleBuilder::new()
                .summary(entry.title)
                .value(Some(json!({
                    "type": format!("/problems/{}", entry.slug),
                    "title": entry.title,
                    "status": status,
                    "detail": entry.meaning,
                    "instance": "5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
                })));
            content = content.examples_from_iter([(entry.slug, example)]);
        }
        let response = ResponseBuilder::new()
            .description(lines.join("\n\n"))
            .content(PROBLEM, content.build());
        let responses = &mut operation.responses.responses;
        responses.insert(status.to_string(), RefOr::T(response.build()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_openapi_3_1_and_every_reference_resolves() {
        let document = openapi();
        let text = document.to_string();
        assert_eq!(document["openapi"], "3.1.0");
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().expect("a quote");
            assert!(schemas.contains_key(name), "{name}");
        }
    }

    #[test]
    fn every_endpoint_says_what_it_is_and_answers() {
        for (path, item) in typed().paths.paths {
            for operation in [item.get, item.post, item.delete].into_iter().flatten() {
                assert!(operation.summary.is_some_and(|text| !text.is_empty()), "{path}");
                let answers: Vec<&String> = operation.responses.responses.keys().collect();
                assert!(answers.iter().any(|status| *status == "200"), "{path}: {answers:?}");
                assert!(answers.iter().any(|status| *status == "500"), "{path}: {answers:?}");
            }
        }
    }
}
