//! Every problem that the server can return. `GET /problems/{slug}` serves this text, and the
//! OpenAPI document lists it.

use axum::http::StatusCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Last part of the problem's `type`.
    pub slug: &'static str,
    pub status: StatusCode,
    /// Short name. It is the same for every occurrence.
    pub title: &'static str,
    pub meaning: &'static str,
    pub remedy: &'static str,
    /// Seconds for `Retry-After`, if sending the request again later can help.
    pub retry_after_s: Option<u32>,
}

macro_rules! catalog {
    ($($variant:ident: $status:ident $(retry $retry:literal)?, $slug:literal, $title:literal,
       $meaning:literal, $remedy:literal;)+) => {
        /// The type of a problem. Its `type` member points to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProblemType { $(#[doc = $title] $variant),+ }

        impl ProblemType {
            pub const ALL: &'static [ProblemType] = &[$(ProblemType::$variant),+];

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
        "Keys live at /v1/{kind}/{group}/{name}. GET /openapi.json lists every endpoint. Group and name \
         have at least one byte each. Write a / inside them as %2F.";
    UnknownKind: NOT_FOUND, "unknown-kind", "Unknown kind",
        "The first part of a key's address is its data type, and this server has no data type of this \
         name.",
        "Use one of the kinds that GET /v1/kinds lists. Names are in lower case.";
    KeyAbsent: NOT_FOUND, "key-absent", "The key does not exist",
        "No acknowledged update of this key was found at the consistency level of the read.",
        "Check the spelling, POST to the key to create it, or read with ?default=empty to get a value \
         for absent keys.";
    Unauthenticated: UNAUTHORIZED, "unauthenticated", "A token is required",
        "The request has no token, or a token that this server does not accept.",
        "Send the header `Authorization: Bearer` with a token that is in the server's policy file and \
         has not expired. Operators: `orderfree token new` makes one.";
    Forbidden: FORBIDDEN, "forbidden", "Not allowed",
        "The token is valid, but none of its grants allows this verb in this group.",
        "Use another token or another group. Operators: grants are in the policy file.";
    TooFast: TOO_MANY_REQUESTS retry 1, "too-fast", "Too many requests",
        "The token sends more requests and updates than its rate allows, or already has the maximum \
         number of streams in progress. Or pictures that count are loaded faster than their group allows. Nothing was applied.",
        "Send the request again after Retry-After. Send several updates of one key as one list of ops, \
         which counts as one update.";
    OverQuota: TOO_MANY_REQUESTS retry 10, "over-quota", "The group's quota is used up",
        "Groups with this prefix have reached their maximum number of keys in this pod, or of new keys \
         per minute. Nothing was applied. Keys that are already being updated are not affected.",
        "Send the update again later. Operators: quotas are in the policy file.";
    BornTooOften: TOO_MANY_REQUESTS retry 3600, "born-too-often", "The key was forgotten too often",
        "A hundred times today, this pod ran out of memory for resting keys, forgot this key and then \
         began a new row for it. With more rows, the key could no longer be read. Nothing was applied.",
        "Send the update to another pod, or again tomorrow. Operators: give the pod more memory for \
         resting keys (ORDERFREE_RESTING_BYTES).";
    BadName: BAD_REQUEST, "bad-name", "Bad group or name",
        "Groups and names are 1 to 256 bytes of UTF-8 without control characters. HTTP clients and proxies \
         remove `.` and `..` from addresses, so neither can be a group or a name.",
        "Change the group or the name to follow this rule. Percent-encode characters that an address \
         can't contain.";
    BadAddress: BAD_REQUEST, "bad-address", "Malformed address",
        "The path or the query has a broken percent-encoding, or bytes that are not UTF-8.",
        "Percent-encode the UTF-8 bytes of every part. Write a percent sign as %25.";
    BadQuery: BAD_REQUEST, "bad-query", "Bad query parameter",
        "A query parameter is unknown to this endpoint, is given twice although this endpoint takes it once, or has an \
         invalid value.",
        "Remove or correct it. The server rejects unknown parameters, because a misspelt one would \
         otherwise be silently ignored.";
    BadBody: BAD_REQUEST, "bad-body", "Malformed body",
        "The body does not match its content type, has fields that this endpoint does not know, or ended \
         early.",
        "Correct the body. The detail says where it is wrong.";
    BadOp: BAD_REQUEST, "bad-op", "Not an op of this kind",
        "The body is well-formed, but it is not an operation of this kind of key.",
        "GET /v1/kinds shows an example op of each kind.";
    BadHeader: BAD_REQUEST, "unsupported-header", "Unsupported header",
        "The request has a header for something that this server can't do: a precondition on an update, an id on a \
         request that changes nothing, or a time to wait that is not a whole number of seconds from 0 to 60. The server \
         rejects such headers and never ignores them.",
        "Leave the header out, or correct it as the detail says.";
    BadId: UNPROCESSABLE_ENTITY, "bad-id", "Not an id",
        "An id, its time or its window is malformed, or the request has two of them.",
        "Do what `detail` says. Nothing was counted.";
    IdWithoutTime: UNPROCESSABLE_ENTITY, "id-without-time", "The id has no time",
        "An id counts once within a window that begins at its time. This one has no time inside it, and none \
         came with it.",
        "Send Idempotency-Time (or `time`) with the id, the same at each retry, or use UUIDs of version 7: \
         POST /v1/ids makes them.";
    IdAhead: UNPROCESSABLE_ENTITY, "id-ahead", "The id is from the future",
        "The time of the id is further ahead of this server's clock than two right clocks can differ.",
        "Set the client's clock. Nothing was counted by this request: an update that was never sent before may \
         have a new id from POST /v1/ids. Send any other one again with the same id.";
    IdExpired: UNPROCESSABLE_ENTITY, "id-expired", "The window of the id is over",
        "The id is too old to be taken. This request counted or reset nothing. An earlier request with the id may \
         have done so, and no later one can.",
        "Stop sending this id. If no earlier request with it was sent, send the request with a new id; \
         otherwise its outcome stays unknown. If it is a reset or a deletion, read the key.";
    IdBeforeReset: UNPROCESSABLE_ENTITY, "id-before-reset", "The key was reset at about the time of the id",
        "The key was reset after the time of this id, or up to a minute before. This request counted nothing. An \
         earlier request with the id may be counted, in what the reset cleared or after it. Only running totals \
         and kinds that ignore ids have this problem.",
        "Stop sending this id. If no earlier request with it was sent, send the update with a new id at least a \
         minute after the reset, or now without an id.";
    IdReused: UNPROCESSABLE_ENTITY, "id-reused", "The id belongs to another request",
        "This pod has an update of the key with this id and other content, or another reset or deletion in the group \
         had this id. Each kind has groups of its own. An id names one update, or one reset or deletion of a key.",
        "Send the request that the id was made for, or use a new id for this one.";
    SequenceBehind: CONFLICT, "sequence-behind", "A later total is known",
        "This pod has a later total of this sender: one with the same id and a greater `sequence`. It may not be \
         stored yet.",
        "Drop this total if it is a late retry: the later one includes it, so send that one until it \
         is acked. If the sender lost its total and \
         began again, use a new id.";
    TooManyIds: TOO_MANY_REQUESTS retry 60, "too-many-ids", "Too many ids of one key",
        "This pod has as many ids of the key for one window as it can have, or a read of the key has met too many, \
         or a reset would clear too many. Ids stay until no retry can come any more and a fold has taken them.",
        "Send this update again with the same id, window and key, to another pod or later: with another window or \
         key it can count twice. For later updates, use more keys or the window `minute`. Send a reset again when \
         the windows of its ids have ended.";
    OutOfRange: CONFLICT, "out-of-range", "The value would be out of range",
        "The op, or the merge of the keys, would take the value beyond the range of its kind.",
        "Send a smaller amount, use another key, or merge fewer keys.";
    StateTooLarge: CONFLICT, "state-too-large", "The state would be too large",
        "The op alone is too large for a state, or this pod has reached its maximum of unfolded bytes of \
         the key, or the key's tally has reached its maximum size.",
        "Do what `detail` says: send a smaller op, send it to another pod or again tomorrow, remove \
         items, or spread them over more keys.";
    OtherItem: CONFLICT, "other-item", "The token of another item",
        "A remove came with the token of another item, or a clear with the token of one item. It would \
         remove nothing, or something else. Nothing was applied.",
        "Read the key again. Send an item's own `seen` or the `context` to remove it, and the `context` to \
         clear the key.";
    MethodNotAllowed: METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed",
        "The address exists, but not with this method. Keys can't be set: a counter only adds.",
        "Use one of the methods in the Allow header. To start again at zero, POST to the key's /reset.";
    ContentType: UNSUPPORTED_MEDIA_TYPE, "content-type", "Content type not supported",
        "This endpoint does not read the body's content type or its content encoding.",
        "Send application/json or, for a bare amount or item, text/plain. With curl, JSON needs a header: \
         curl -H 'content-type: application/json' -d '{\"op\":\"add\"}' URL. Send a sketch as JSON: \
         {\"op\":\"merge\",\"sketch\":\"BASE64\"}.";
    NotAcceptable: NOT_ACCEPTABLE, "not-acceptable", "Format not available",
        "The request accepts only text or only bytes, and values of this kind have no such format. Nothing was \
         applied.",
        "Accept application/json. Numbers, sketches, sets and registers have a bare value as text; the sketches of \
         distinct and audience have a binary format.";
    BodyTooLarge: PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large",
        "The limit is 1 MiB, or 64 MiB after decompression for an application/x-ndjson stream.",
        "Split the body over several requests.";
    BodyTooSlow: REQUEST_TIMEOUT, "body-too-slow", "The body did not arrive in time",
        "A body must be complete within 30 s. Nothing was applied.",
        "Send the request again, or in smaller parts. Send a slow stream of updates to /v1/batch as \
         application/x-ndjson.";
    UriTooLong: URI_TOO_LONG, "uri-too-long", "The address is too long",
        "Path and query together are limited to 8 KiB.",
        "Use shorter names, or POST /v1/query to read many keys.";
    Overloaded: SERVICE_UNAVAILABLE retry 1, "overloaded", "This pod is overloaded",
        "This pod reached a limit that bounds its memory, or a read of a large value was not done in time. Nothing was \
         applied, with one exception: as the `read_problem` of an update, it means that only the read after the \
         update was refused.",
        "Send the request again later, or to another pod. After a `read_problem`, read the key instead.";
    Clock: SERVICE_UNAVAILABLE retry 10, "clock", "The clock can't be trusted",
        "This pod has not compared its clock with the store's recently, or they differ too much, or its data centre has no \
         replica any more. Updates and folds wait, because counts could be lost. Reads continue. Nothing was applied.",
        "Send the update to another pod. Operators: check NTP on this machine and on the store's, and where the keyspace has \
         replicas.";
    ResetLogUnread: SERVICE_UNAVAILABLE retry 1, "reset-log-unread", "The log of resets was not read recently",
        "Keys of this installation can be reset, and for ten seconds this pod could not read the part of the log of resets \
         that has this group, or the log has lost resets. The key could have been reset meanwhile. Reads continue. Nothing was \
         applied.",
        "Send the update again, or to another pod. Operators: too few nodes of the store answer this pod, its clock is \
         behind, or the log was lost. /readyz?verbose says which.";
    StoreRefused: SERVICE_UNAVAILABLE retry 1, "store-refused", "The store did not take the write",
        "The update was not applied: too few nodes of the store were available, the store's disk is \
         full, or the update used ?ack=memory while no write of its key was being acknowledged.",
        "Send the update again later: it is certainly not counted.";
    Unsent: SERVICE_UNAVAILABLE retry 1, "unsent", "The update was never sent",
        "The update waited for its turn until its time ran out, and left the queue unsent.",
        "Send the update again later: it is certainly not counted.";
    Stopping: SERVICE_UNAVAILABLE retry 1, "stopping", "This pod is shutting down",
        "The pod takes no more updates. Nothing was applied.",
        "Send the update again: another pod will take it.";
    StoreUnavailable: SERVICE_UNAVAILABLE retry 1, "store-unavailable", "The store can't answer",
        "Too few nodes of the store answered in time for a read at this consistency level.",
        "Read again later, or at a lower ?consistency= if an older value is acceptable.";
    OutcomeUnknown: GATEWAY_TIMEOUT, "outcome-unknown", "The update may or may not be counted",
        "The write was sent, but the store did not acknowledge it in time. It may be counted, now or \
         later. Or a stream ended early: its summary shows the outcomes of the lines before.",
        "With an id, send it again with the same id: it counts once. Without one, it may count twice if you \
         send it again, and not at all if you do not. Proxies must retry this status only for requests with an \
         Idempotency-Key.";
    TooManyRows: INTERNAL_SERVER_ERROR, "too-many-rows", "The key has too many rows",
        "The key has too many shards for one list, or too many shards with the same expiry. Reads and \
         folds process the shards of a key in parts, but can't split the shards of one expiry.",
        "Read the key's value instead of its shards, or fold it first: POST to its address with /fold. \
         Operators: if reads of the value have this problem as well, something else writes to the table.";
    AnswerFull: UNPROCESSABLE_ENTITY, "answer-full", "The answer would be too large",
        "An answer is limited to the values of about 16 MiB of rows, and to about 16 MiB of text. A \
         merge is limited to 64 MiB of memory, the summary of a stream to 10,000 ranges of lines that were not \
         acknowledged, and the text of a watched key to 32 KiB.",
        "Request fewer keys at once. After a query, request the keys with this problem again. After a stream, \
         correct the lines that its summary names, and send the remaining lines. Read a large key instead of \
         watching it.";
    Unmergeable: INTERNAL_SERVER_ERROR, "unmergeable", "The key's rows can't be merged",
        "Independent writers together exceeded what the kind can hold, for example with hand-made \
         sketches, or a row was forged. The server leaves nothing out, because a partial value would be \
         wrong.",
        "Use a new key. Operators: find out what writes to this one.";
    Undecodable: INTERNAL_SERVER_ERROR, "undecodable", "A row can't be decoded",
        "A row of this key is damaged, or a newer release wrote it. The server neither skips nor \
         overwrites it: a partial sum would be a wrong sum.",
        "Operators: run the newest release on every pod. If that does not help, restore the row from a \
         backup.";
    Corrupt: INTERNAL_SERVER_ERROR, "corrupt", "The store returned invalid data",
        "An answer from the store breaks a rule that every row keeps.",
        "Operators: look at this pod's log. Something else may be writing to the table.";
    ResetAbsent: NOT_FOUND, "reset-absent", "There is no such reset",
        "No reset of the key has this id, or it was more than three days ago.",
        "Check the id. If the request that reset the key got no answer, send it again with its Idempotency-Key.";
    NotResettable: CONFLICT, "not-resettable", "The key can't be reset",
        "A row of the key can't be decoded, so it is not known what would be cleared, or the key has more rows than a \
         reset reads. Nothing was changed.",
        "If a row can't be decoded, GET the key's /shards to see which row it is. Upgrade all pods, or discard the row, then \
         reset the key. If there are too many rows, wait until folds have taken some. If you reset a key often, use names \
         with a date instead.";
    ResetOvertaken: CONFLICT retry 1, "reset-overtaken", "Something else came before the reset",
        "Another reset, a fold or a clock came before this reset. Nothing was changed.",
        "Reset the key again.";
    ResetPaused: SERVICE_UNAVAILABLE retry 60, "reset-paused", "Keys can't be reset now",
        "Resets are switched off, the store has no table for them or one that is less than five minutes old, the log of \
         resets was lost, the cutoff is too short for them, the file of the embedded store has 200,000 names of \
         keys that were reset, or folds are not safe now. Nothing was changed.",
        "The detail says which. Operators: run `orderfree schema apply` or `orderfree export > /dev/null`, or set \
         ORDERFREE_RESETS, ORDERFREE_FOLD or ORDERFREE_CUTOFF.";
    TooManyResets: TOO_MANY_REQUESTS retry 60, "too-many-resets", "Too many resets",
        "This pod already makes 1,000 resets at the same time, or remembers 200,000 keys that were reset in the last two \
         days. Or, with Cassandra, the part of the log that has this group already has 15,000 resets or 200,000 names, each \
         kept for about three days. Nothing was changed.",
        "Send the request again later; the detail says when. If you reset a key often, use names with a date or a time \
         instead.";
    TooManyWatched: TOO_MANY_REQUESTS retry 10, "too-many-watched", "Too many watched keys",
        "This pod already watches 10,000 different keys, or its clients together watch 200,000. A key counts once for each \
         client, and a group counts as one more key. One token can have half of each.",
        "Watch fewer keys, send the request again later, or send it to another pod.";
    ResetsTooFast: TOO_MANY_REQUESTS retry 10, "resets-too-fast", "Too many resets per second",
        "A pod resets 100 keys per second on average, and 1,000 at once after a pause. Every pod reads the log of \
         resets all the time, so a longer log would slow down all of them. Nothing was changed.",
        "Send the request again after Retry-After. If you reset a key often, use names with a date or a time instead.";
    ResetUnknown: GATEWAY_TIMEOUT, "reset-unknown", "The reset was not acknowledged",
        "The key is reset as of the time of the request, or never. Until that is settled, reads can show either value. \
         The value from before the reset can be lost.",
        "Send the request again with its Idempotency-Key: for about two minutes, a pod can find out the outcome. Otherwise \
         read the key, or reset or delete it again with a new id.";
    FoldPaused: SERVICE_UNAVAILABLE retry 10, "fold-paused", "Folding is paused",
        "The clocks, the nodes' schema or the keyspace's replication do not allow a fold now, or folds are switched off \
         (ORDERFREE_FOLD=off). The key is unchanged.",
        "Fold later. Waiting loses nothing. Operators: the alert OrderfreeFoldsStalled says what to do. Folds are switched \
         off for a reason, such as a restore. Finish that first.";
    FoldBusy: CONFLICT retry 1, "fold-busy", "The key is already being folded",
        "Another fold of this key is running in this pod.",
        "Wait for it, then look at the key's /shards.";
    FoldUnknown: GATEWAY_TIMEOUT, "fold-unknown", "The fold's write was not acknowledged",
        "It may have been applied. The value is the same either way.",
        "Fold again: that is always safe.";
    RowAbsent: NOT_FOUND, "row-absent", "No such row",
        "The key has no row of this mutator: it was folded or discarded, or never existed.",
        "Look at the key's /shards.";
    NotDiscardable: CONFLICT, "not-discardable", "The row can't be discarded",
        "Only an undecodable shard whose mutator has been dead for long enough can be discarded. This \
         row counts, can still be written, or is a tally.",
        "The detail says which. Newer releases can decode what older ones can't. For a damaged tally, \
         follow the procedure in the runbook, docs/operate/backup.md.";
    DiscardUnknown: GATEWAY_TIMEOUT, "discard-unknown", "The removal was not acknowledged",
        "The row may or may not still exist.",
        "Look at the key's /shards, and discard it again: that is always safe.";
    NotReady: SERVICE_UNAVAILABLE retry 1, "not-ready", "Not ready",
        "This pod is starting or shutting down, its clock was measured to be wrong, it has not read the log of \
         resets, or no quorum of its data centre answers and it needs one (ORDERFREE_READY_NEEDS_QUORUM).",
        "Send requests to another pod. GET /readyz?verbose says which check does not pass.";
    UnknownProblem: NOT_FOUND, "unknown-problem", "No such problem type",
        "This server has no problem type of this name.",
        "GET /problems lists them all.";
    BadRequest: BAD_REQUEST, "bad-request", "Malformed request",
        "The request breaks a rule of HTTP, such as the one that requires a Host header, or of this server.",
        "Correct the request. The detail says what is wrong.";
    Internal: INTERNAL_SERVER_ERROR, "internal", "A bug in this server",
        "The request met an impossible state. If it is an update, it may or may not be counted.",
        "Report it, with the request id and this pod's log.";
}

impl ProblemType {
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<ProblemType> {
        ProblemType::ALL.iter().copied().find(|kind| kind.entry().slug == slug)
    }

    /// The address of its page on this server.
    #[must_use]
    pub fn address(self) -> String {
        format!("/problems/{}", self.entry().slug)
    }

    /// The page that explains this type to people.
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
