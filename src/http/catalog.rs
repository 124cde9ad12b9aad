//! Every problem that the server can answer. `GET /problems/{slug}` serves this text, and the
//! OpenAPI document lists it.

use axum::http::StatusCode;

/// One row of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Last part of the problem's `type`.
    pub slug: &'static str,
    /// HTTP status.
    pub status: StatusCode,
    /// Short name, the same for every occurrence.
    pub title: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Seconds for `Retry-After`, where sending the same again later can help.
    pub retry_after_s: Option<u32>,
}

macro_rules! catalog {
    ($($variant:ident: $status:ident $(retry $retry:literal)?, $slug:literal, $title:literal,
       $meaning:literal, $remedy:literal;)+) => {
        /// The type of a problem: what its `type` member points to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProblemType { $(#[doc = $title] $variant),+ }

        impl ProblemType {
            /// Every problem type.
            pub const ALL: &'static [ProblemType] = &[$(ProblemType::$variant),+];

            /// Its row of the catalog.
            #[must_use]
            pub fn entry(self) -> Entry {
                match self {
                    $(ProblemType::$variant => Entry {
                        slug: $slug,
                        status: StatusCode::$status,
                        title: $title,
                        meaning: $meaning,
                        remedy: $remedy,
                        retry_after_s: catalog!(@retry $($retry)?),
                    }),+
                }
            }
        }
    };
    (@retry) => { None };
    (@retry $seconds:literal) => { Some($seconds) };
}

catalog! {
    UnknownRoute: NOT_FOUND, "unknown-route", "No such address",
        "No endpoint has this path.",
        "Keys live at /v1/{kind}/{group}/{name}; GET /openapi.json lists every endpoint. Group and \
         name have at least one byte each, and a / inside them is written as %2F.";
    UnknownKind: NOT_FOUND, "unknown-kind", "Unknown kind",
        "The first part of a key's address is its data type, and this server knows none of that \
         name.",
        "Use one of the kinds that GET /v1/kinds lists; names are written in lower case.";
    KeyAbsent: NOT_FOUND, "key-absent", "The key does not exist",
        "No acknowledged update of this key was found at the consistency level of the read.",
        "Check the spelling, POST to the key to create it, or read with ?default=empty to get a value \
         for absent keys.";
    Unauthenticated: UNAUTHORIZED, "unauthenticated", "A token is needed",
        "The request names nobody whom this server knows.",
        "Send the header `Authorization: Bearer` with a token that the server's policy file knows and that \
         has not expired. Operators: `orderfree token new` makes one.";
    Forbidden: FORBIDDEN, "forbidden", "Not allowed",
        "The token is known, but none of its grants names this verb for this group.",
        "Use another token or another group. Operators: grants stand in the policy file; SIGHUP has the pod \
         read it anew.";
    TooFast: TOO_MANY_REQUESTS retry 1, "too-fast", "Too many requests of this token",
        "The token sends more requests and updates than its rate allows, or has as many streams in progress as \
         it may. Nothing was applied.",
        "Send it again after Retry-After. Several updates of one key go into one list of ops, which counts \
         as one.";
    OverQuota: TOO_MANY_REQUESTS retry 10, "over-quota", "The group's quota is used up",
        "Groups that begin so have as many keys in this pod as they may, or got as many new ones in a minute. \
         Nothing was applied. Keys that are being updated go on.",
        "Send the update again later. Operators: quotas stand in the policy file.";
    BornTooOften: TOO_MANY_REQUESTS retry 3600, "born-too-often", "The key was forgotten too often",
        "This pod forgot the key for want of memory and began a new row for it a hundred times today. With more \
         rows the key could not be read any more. Nothing was applied.",
        "Send the update to another pod, or again tomorrow. Operators: give the pod more memory for keys at rest \
         (ORDERFREE_RESTING_BYTES).";
    BadName: BAD_REQUEST, "bad-name", "Bad group or name",
        "Groups and names are 1 to 256 bytes of UTF-8 without control characters.",
        "Change the group or the name so that it keeps the rule; percent-encode what an address \
         may not hold.";
    BadAddress: BAD_REQUEST, "bad-address", "Malformed address",
        "The path or the query holds a broken percent-encoding, or bytes that are not UTF-8.",
        "Percent-encode the UTF-8 bytes of every part; a percent sign itself is %25.";
    BadQuery: BAD_REQUEST, "bad-query", "Bad query parameter",
        "A query parameter is unknown to this endpoint, given twice, or has a value it can't have.",
        "Leave it out or correct it. Unknown parameters are refused, because a misspelt one would \
         otherwise be ignored in silence.";
    BadBody: BAD_REQUEST, "bad-body", "Malformed body",
        "The body is not what its content type says, has fields that this endpoint does not know, \
         or ended early.",
        "Correct the body; the detail says where it went wrong.";
    BadOp: BAD_REQUEST, "bad-op", "Not an op of this kind",
        "The body is well-formed, but it is not an operation that this kind of key has.",
        "GET /v1/kinds shows an example op of each kind.";
    BadHeader: BAD_REQUEST, "unsupported-header", "A header that is not supported",
        "The request asks, by a header, for something that this server can't do yet: an \
         idempotency key or a precondition on an update. It is refused, never ignored.",
        "Leave the header out. Be aware that an update sent again after the outcome `unknown` may \
         count twice.";
    OutOfRange: CONFLICT, "out-of-range", "The value would leave its range",
        "The op, or the merge of the keys, would take the value beyond the range of its kind.",
        "Send a smaller amount, use another key, or merge fewer keys.";
    StateTooLarge: CONFLICT, "state-too-large", "The state would grow too large",
        "The op alone is too large for a state, or this pod has as much of the key as it may have until it is \
         folded, or what is folded of the key is as large as it may be.",
        "Do what `detail` says: send a smaller op, send it to another pod or again tomorrow, remove items, or \
         spread them over more keys.";
    MethodNotAllowed: METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed",
        "The address exists, but not with this method. Keys can't be deleted or set yet: a counter \
         only ever adds.",
        "Use one of the methods in the Allow header. To begin again at zero, count under a new \
         name, or add the negative of what a read answers.";
    ContentType: UNSUPPORTED_MEDIA_TYPE, "content-type", "Content type not supported",
        "The body's content type, or its content encoding, is not one that this endpoint reads.",
        "Send application/json or, for a bare amount or item, text/plain. With curl, -d needs a header: \
         curl -H 'content-type: text/plain' -d 5 URL. A sketch goes in JSON: \
         {\"op\":\"merge\",\"sketch\":\"BASE64\"}.";
    NotAcceptable: NOT_ACCEPTABLE, "not-acceptable", "Not in this form",
        "The request accepts bytes alone, and this kind has no form in bytes.",
        "Accept application/json. The sketches of distinct and audience have one in bytes.";
    BodyTooLarge: PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large",
        "A body may have 1 MiB; an application/x-ndjson stream 64 MiB after decompression.",
        "Split it over several requests.";
    BodyTooSlow: REQUEST_TIMEOUT, "body-too-slow", "The body did not come in time",
        "A body must be complete within 30 s. Nothing was applied.",
        "Send the request again, or in smaller parts. A stream of updates that comes slowly goes \
         to /v1/batch as application/x-ndjson.";
    UriTooLong: URI_TOO_LONG, "uri-too-long", "The address is too long",
        "Path and query together may have 8 KiB.",
        "Use shorter names, or POST /v1/query to read many keys.";
    Overloaded: SERVICE_UNAVAILABLE retry 1, "overloaded", "This pod has too much to do",
        "A limit that keeps this pod's memory bounded was reached. Nothing was applied, unless it stands \
         beside an update as its `read_problem`: then only the read after it was refused.",
        "Send the request again later, or to another pod; in the second case read the key instead.";
    Clock: SERVICE_UNAVAILABLE retry 10, "clock", "The clock can't be trusted",
        "This pod's clock was not measured against the store's lately, or differs too much. \
         Updates and folds wait, as counts could be lost otherwise; reads go on. Nothing was \
         applied.",
        "Send the update to another pod. Operators: check NTP on this machine and on the store's.";
    StoreRefused: SERVICE_UNAVAILABLE retry 1, "store-refused", "The store took no write",
        "The update was not applied: too few nodes of the store were there, the disk of the store is full, or the \
         update asked for ?ack=memory while no write of its key was being acknowledged.",
        "Send the update again later: it is certainly not counted.";
    Unsent: SERVICE_UNAVAILABLE retry 1, "unsent", "The update was never sent",
        "The update waited for its turn until its time was over, and was taken out unsent.",
        "Send the update again later: it is certainly not counted.";
    Stopping: SERVICE_UNAVAILABLE retry 1, "stopping", "This pod is shutting down",
        "The pod takes no more updates. Nothing was applied.",
        "Send the update again: another pod will take it.";
    StoreUnavailable: SERVICE_UNAVAILABLE retry 1, "store-unavailable", "The store can't answer",
        "Too few nodes of the store answered in time for a read at this consistency level.",
        "Read again later, or at a lower ?consistency= if an older value will do.";
    OutcomeUnknown: GATEWAY_TIMEOUT, "outcome-unknown", "The update may or may not be counted",
        "The write was sent, but the store did not acknowledge it in time. It may be counted, now \
         or later. Or a stream ended early: its summary says what became of the lines before.",
        "Sending it again may count it twice; not sending it again may not count it at all. Choose \
         what your numbers can bear. Proxies must not retry this status.";
    TooManyRows: INTERNAL_SERVER_ERROR, "too-many-rows", "The key has too many rows",
        "Its shards are too many for one list, or too many of them have one expiry. Reads and folds take the \
         shards of a key in parts, but never divide those of one expiry.",
        "Read the key's value instead of its shards, or fold it first: POST to its address with /fold. \
         Operators: if reads of the value fail as well, something else writes to the table.";
    AnswerFull: UNPROCESSABLE_ENTITY, "answer-full", "The answer would grow too large",
        "An answer holds the values of about 16 MiB of rows, or as much text, and a merge a state of 64 MiB of memory.",
        "Ask for fewer keys at once; of a query, for those again that have this problem.";
    Unmergeable: INTERNAL_SERVER_ERROR, "unmergeable", "The key's rows can't be merged",
        "Writers that do not know of each other took what is too much together, such as sketches that \
         somebody has made by hand; or a row was forged. Nothing is left out: a partial value would be \
         a wrong one.",
        "Begin a new key. Operators: see who writes to this one.";
    Undecodable: INTERNAL_SERVER_ERROR, "undecodable", "A row can't be decoded",
        "A row of this key is damaged, or was written by a newer release. It is neither skipped \
         nor overwritten: a partial sum would be a wrong sum.",
        "Operators: run the newest release on every pod; if that does not help, restore the row \
         from a backup.";
    Corrupt: INTERNAL_SERVER_ERROR, "corrupt", "The store returned what it must not",
        "An answer of the store breaks a rule that every row keeps.",
        "Operators: look at the log of this pod; something else may be writing to the table.";
    FoldPaused: SERVICE_UNAVAILABLE retry 10, "fold-paused", "Folding waits",
        "The clocks or the nodes' schema do not allow a fold now, or folds are switched off \
         (ORDERFREE_FOLD=off). The key is as it was.",
        "Fold later; nothing is lost by waiting. Operators: folds are off for a reason, such as a restore; \
         end that first.";
    FoldBusy: CONFLICT retry 1, "fold-busy", "The key is being folded already",
        "Another fold of this key is running in this pod.",
        "Wait for it, then look at the key's /shards.";
    FoldUnknown: GATEWAY_TIMEOUT, "fold-unknown", "The fold's write was not acknowledged",
        "It may have been applied. The value is the same either way.",
        "Fold again: that is always safe.";
    RowAbsent: NOT_FOUND, "row-absent", "No such row",
        "The key has no row of this mutator: it was folded, discarded, or never there.",
        "Look at the key's /shards.";
    NotDiscardable: CONFLICT, "not-discardable", "The row stays",
        "Only a shard that nobody can decode, and whose mutator is dead for long, can be discarded. This one \
         counts, may still be written, or is a tally.",
        "The detail says which. Newer releases decode what older ones can't; for a damaged tally there is a \
         procedure in the runbook, docs/operate/backup.md.";
    DiscardUnknown: GATEWAY_TIMEOUT, "discard-unknown", "The removal was not acknowledged",
        "The row may be there or gone.",
        "Look at the key's /shards, and discard it again: that is always safe.";
    NotReady: SERVICE_UNAVAILABLE retry 1, "not-ready", "Not ready",
        "This pod is starting, shutting down, or has a clock that was measured to be wrong.",
        "Send requests to another pod; GET /readyz?verbose says which check does not pass.";
    UnknownProblem: NOT_FOUND, "unknown-problem", "No such problem type",
        "No problem of this server has this name.",
        "GET /problems lists them all.";
    BadRequest: BAD_REQUEST, "bad-request", "Malformed request",
        "The request breaks a rule of HTTP or of this server.",
        "Correct the request; the detail says what is wrong.";
    Internal: INTERNAL_SERVER_ERROR, "internal", "A bug in this server",
        "The request met an impossible state. An update that met it may or may not be counted.",
        "Report it, with the request id and this pod's log.";
}

impl ProblemType {
    /// The problem type of this slug.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<ProblemType> {
        ProblemType::ALL.iter().copied().find(|kind| kind.entry().slug == slug)
    }

    /// The page about this type, for people.
    #[must_use]
    pub fn page(self) -> String {
        let Entry { slug, status, title, meaning, remedy, .. } = self.entry();
        let status = status.as_u16();
        format!(
            "{title}\n({slug}, HTTP status {status})\n\nMeaning: {meaning}\n\nRemedy: {remedy}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slugs_are_unique_and_every_text_is_a_sentence() {
        let slugs: HashSet<_> = ProblemType::ALL.iter().map(|kind| kind.entry().slug).collect();
        assert_eq!(slugs.len(), ProblemType::ALL.len());
        for &kind in ProblemType::ALL {
            let entry = kind.entry();
            assert_eq!(ProblemType::from_slug(entry.slug), Some(kind));
            assert!(entry.meaning.ends_with('.') && entry.remedy.ends_with('.'), "{}", entry.slug);
            assert!(!kind.page().to_lowercase().contains("failed"), "{}", entry.slug);
            let is_503 = entry.status == StatusCode::SERVICE_UNAVAILABLE;
            assert!(!is_503 || entry.retry_after_s.is_some(), "{} needs Retry-After", entry.slug);
        }
    }
}
