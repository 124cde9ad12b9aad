"""Rules that an OpenAPI document can't express. Without them, schemathesis sends or reports the wrong things.

Each exception is as narrow as its reason. All other findings fail the run.
"""

import base64
import itertools
import json
import re

import jsonschema_rs
import schemathesis

TURNS = itertools.count()
VIOLATION_ACCEPTED, VALID_REJECTED = "ST201", "ST202"
BODY_BYTES_MAX, ADDRESS_BYTES_MAX = 1 << 20, 8 << 10


@schemathesis.hook
def before_call(context, case, kwargs):
    """Asks for each documented media type in turn, and replaces each text that could be a cursor by a valid one: no
    pattern describes the `next` of a page, and invalid ones would spoil most requests for pages."""
    answers = context.operation.definition.raw["responses"].get("200", {}).get("content")
    if answers:
        case.headers["Accept"] = list(answers)[next(TURNS) % len(answers)]
    cursor = (case.query or {}).get("cursor")
    if isinstance(cursor, str) and re.fullmatch("[A-Za-z0-9_-]+", cursor):
        of_groups = case.path == "/v1/{kind}"
        place = str(len(cursor)) if of_groups else cursor[:256]
        case.query["cursor"] = base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


# Rules that no schema expresses: tokens that only a server can make, and values from elsewhere.
SEALED = re.compile(r"`(seen|context|sketch|after)` (?!has \d+ bytes)(is|claims|has|was)\b")
# The time of an id is compared with the clock, a quoted id is a string of structured fields, and a schema counts letters
# where the limit is in bytes of UTF-8.
OF_AN_ID = re.compile(
    r"^(Idempotency-Time|`time`) is |^The (quoted )?Idempotency-Key |^The id has no time"
    r"|^The header idempotency-(key|time) is not UTF-8|^Idempotency-Key has \d+ bytes"
    r"|^The request has an Idempotency-(Time|Window), but no|^The item has a `time`, but no"
    r"|^A `sequence` belongs to|^Kind [a-z_]+ has no running totals"
    r"|^The time of this id is |^This id could be sent until |^An id for a whole stream"
)
# One path stands for all kinds, but these depend on the kind: parameters, defaults, empty bodies, plain text, forms
# of an answer.
OF_THE_KIND = re.compile(
    r"^Kind \w+ has no parameter |^Kind (?!distinct|audience)\w+ has no binary format"
    r"|^Kind (stats|extrema|histogram|topk) has no bare value"
    r"|^A badge shows one value, and kind (stats|extrema|histogram|topk|gset|lww_set|or_set) has none"
    r"|is neither `empty` nor a bare value of kind (?!counter|sum)"
    r"|\"[^\"]*\.[^\"]*\" is neither `empty` nor a bare value of kind counter"
    r"|^An empty body is not an op of kind (?!counter)"
    r"|^The text is not an op of kind (?!counter|sum)"
)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Whether a failure is a real one."""
    if failure.code in (VIOLATION_ACCEPTED, VALID_REJECTED):
        # No schema limits a whole body or a whole address. One that is too long is refused before it is parsed.
        if response.status_code == 413:
            return len(response.request.body) <= BODY_BYTES_MAX
        if response.status_code == 414:
            return len(response.request.path_url) <= ADDRESS_BYTES_MAX
    if failure.code == VALID_REJECTED:
        detail = json.loads(response.content)["detail"]
        # White space around an item is no part of it, and no pattern says what counts as white space here.
        if detail.startswith("contains: the item has 0 bytes"):
            return False
        # A parameter that excludes another.
        excludes = ("return=value reads the stored value", "Say which keys to delete", "The request has both `prefix`")
        if detail.startswith(excludes):
            return False
        if OF_THE_KIND.search(detail) or SEALED.search(detail) or OF_AN_ID.search(detail) or is_of_another_kind(case):
            return False
    if failure.code == VIOLATION_ACCEPTED and case.path in ("/v1/batch", "/v1/query"):
        # A bad item spoils only itself: the answer is 200 with that item's problem.
        answer = json.loads(response.content)
        items = answer.get("results") or answer.get("errors") or []
        return not any("problem" in item or "detail" in item for item in items)
    return True


def is_of_another_kind(case):
    """Whether the body has an op that the schema of the key's own kind does not allow."""
    if case.path != "/v1/{kind}/{group}/{name}" or not isinstance(case.body, dict):
        return False
    schema = case.operation.schema.raw_schema
    op = "".join(part.capitalize() for part in case.path_parameters["kind"].split("_")) + "Op"
    root = {"$ref": f"#/components/schemas/{op}", "components": schema["components"]}
    validator = jsonschema_rs.Draft202012Validator(root)
    return not all(validator.is_valid(op) for op in case.body.get("ops", [case.body]))
