//! Parsing of policy files, and what a policy allows.

use std::time::Duration;

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Name, Overrides};

use super::*;
use crate::limits;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn key(kind: Kind, group: &str) -> Key {
    Key { kind, group: name(group), name: name("n") }
}

fn constants() -> Constants {
    Constants::resolve(Overrides::default()).expect("defaults")
}

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn entry(name: &str, token: &NewToken, rest: &str) -> String {
    format!("[[token]]\nname = {name:?}\nsha256 = {:?}\n{rest}\n", token.sha256)
}

fn find(policies: &Policies, header: &str) -> Result<Caller, Denied> {
    policies.authenticate(Some(header.as_bytes()), NOW)
}

#[test]
fn the_longest_prefix_decides() {
    let policy = Policy::from_str(
        r#"
        [[precision]]
        kind = "topk"
        k = 10

        [[precision]]
        kind = "topk"
        group_prefix = "site:big"
        k = 1000

        [[precision]]
        kind = "topk"
        group_prefix = "site:"
        k = 100
        "#,
    )
    .expect("a policy");
    let k = |group| policy.precision(&key(Kind::TopK, group));
    assert_eq!(k("other"), Some(10));
    assert_eq!(k("site:small"), Some(100));
    assert_eq!(k("site:bigger"), Some(1000));
    assert_eq!(policy.precision(&key(Kind::Counter, "site:")), None);
    assert!(!Policy::from_str("").expect("nothing is a policy").has_tokens());
}

#[test]
fn keys_are_forgotten_by_the_longest_prefix_and_then_by_kind() {
    let policies: Policies = r#"
        [[lifecycle]]
        group_prefix = "session:"
        idle_ttl = "30d"

        [[lifecycle]]
        group_prefix = "session:"
        kind = "distinct"
        idle_ttl = "7d"

        [[lifecycle]]
        group_prefix = "session:vip:"
        idle_ttl = "365days"
    "#
    .parse::<Policy>()
    .expect("a policy")
    .into();
    let days = |kind, group| policies.idle_ttl(&key(kind, group)).map(|ttl| ttl.as_secs() / 86_400);
    assert_eq!(days(Kind::Counter, "session:a"), Some(30));
    assert_eq!(days(Kind::Distinct, "session:a"), Some(7));
    assert_eq!(days(Kind::Distinct, "session:vip:a"), Some(365));
    assert_eq!(days(Kind::Counter, "session"), None);
}

/// The pod keeps its old policy, whatever the new one forgets.
#[test]
fn a_lifecycle_that_the_times_do_not_allow_is_refused() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("policy.toml");
    let write = |idle_ttl: &str| {
        let text = format!("[[lifecycle]]\ngroup_prefix = \"g\"\nidle_ttl = {idle_ttl:?}\n");
        fs::write(&file, text).expect("written");
    };
    write("24h");
    let error = Policies::open(Some(&file), constants()).map(drop).expect_err("too short");
    let error = format!("{error:#}");
    assert!(
        error.contains("the lifecycle of the prefix \"g\": idle_ttl 86400s is too short"),
        "{error}"
    );
    write("26h");
    let policies = Policies::open(Some(&file), constants()).expect("long enough");
    write("1s");
    assert!(policies.reload().is_err());
    let ttl = || policies.idle_ttl(&key(Kind::Counter, "g")).expect("a rule").as_secs();
    assert_eq!(ttl(), 26 * 3_600);
    write("40d");
    policies.reload().expect("long enough");
    assert_eq!(ttl(), 40 * 86_400);
    let cutoff = Some(Duration::from_secs(42));
    let short = Constants::resolve(Overrides { cutoff, ..Overrides::default() }).expect("short");
    let error = Policies::open(Some(&file), short).map(drop).expect_err("a short cutoff");
    assert!(format!("{error:#}").contains("choose a longer cutoff"), "{error:#}");
}

#[test]
fn wrong_files_are_refused_with_the_rule() {
    for (text, says) in [
        ("[[precision]]\nkind = \"topk\"", "topk needs exactly `k`"),
        ("[[precision]]\nkind = \"topk\"\nk = 0", "from 1 to 4096"),
        ("[[precision]]\nkind = \"topk\"\nk = 5000", "from 1 to 4096"),
        ("[[precision]]\nkind = \"topk\"\nlg_k = 5", "topk needs exactly `k`"),
        ("[[precision]]\nkind = \"topk\"\nk = 5\nscale = 5", "topk needs exactly `k`"),
        ("[[precision]]\nkind = \"topk\"\nk = \"5\"", "invalid type"),
        ("[[precision]]\nkind = \"counter\"\nk = 5", "counter has no precision"),
        ("[[precision]]\nkind = \"top\"\nk = 5", "no kind \"top\""),
        ("[[precisions]]", "unknown field `precisions`"),
        ("[[precision]]\nkind = \"topk\"\nprefix = \"a\"\nk = 5", "unknown field `prefix`"),
        (
            "[[precision]]\nkind = \"topk\"\nk = 5\n[[precision]]\nkind = \"topk\"\nk = 6",
            "two precisions",
        ),
        ("[[lifecycle]]\nidle_ttl = \"9d\"", "missing field `group_prefix`"),
        ("[[lifecycle]]\ngroup_prefix = \"a\"", "missing field `idle_ttl`"),
        ("[[lifecycle]]\ngroup_prefix = \"a\"\nidle_ttl = 9", "invalid type"),
        ("[[lifecycle]]\ngroup_prefix = \"a\"\nidle_ttl = \"soon\"", "such as \"30d\""),
        (
            "[[lifecycle]]\ngroup_prefix = \"a\"\nkind = \"top\"\nidle_ttl = \"9d\"",
            "no kind \"top\"",
        ),
        (
            "[[lifecycle]]\ngroup_prefix = \"a\"\nidle_ttl = \"9d\"\n[[lifecycle]]\ngroup_prefix = \"a\"\nidle_ttl = \"9d\"",
            "two lifecycles for the prefix \"a\" and all kinds; keep one",
        ),
    ] {
        let error = format!("{:#}", Policy::from_str(text).expect_err(text));
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn an_origin_may_read_the_groups_of_its_prefixes() {
    let policy: Policy = r#"
        [[cors]]
        group_prefix = "site:"
        origins = ["https://example.org", "http://localhost:3000"]
        [[cors]]
        group_prefix = "site:public:"
        origins = ["*"]
        [[cors]]
        group_prefix = ""
        origins = ["https://admin.example.org"]
    "#
    .parse()
    .expect("a policy");
    let policies = Policies::from(policy);
    let (page, admin, other) = ("https://example.org", "https://admin.example.org", "https://a.b");
    for (group, allowed) in [
        (Some("site:a"), [Some(page), Some(admin), None]),
        (Some("site:public:a"), [Some("*"); 3]),
        (Some("site"), [None, Some(admin), None]),
        (Some("Site:a"), [None, Some(admin), None]),
        (None, [None, Some(admin), None]),
    ] {
        let of = [page, admin, other].map(|origin| policies.allowed_origin(origin, group));
        assert_eq!(of, allowed, "{group:?}");
    }
    for alike in ["http://example.org", "https://example.org:444", "https://EXAMPLE.org", "null"] {
        assert_eq!(policies.allowed_origin(alike, Some("site:a")), None, "{alike}");
    }
    assert!(policies.has_origins() && !Policies::default().has_origins());
}

#[test]
fn origins_that_no_browser_sends_are_refused() {
    let read = |origins: &str| {
        let text = format!("[[cors]]\ngroup_prefix = \"a\"\norigins = {origins}\n");
        text.parse::<Policy>().map_err(|error| format!("{error:#}"))
    };
    for good in ["http://[::1]:8080", "https://xn--bcher-kva.example", "*", "http://127.0.0.1"] {
        assert!(read(&format!("[{good:?}]")).is_ok(), "{good}");
    }
    for (bad, says) in [
        ("https://example.org/", "write \"https://example.org\""),
        ("https://example.org/page", "write \"https://example.org\""),
        ("https://example.org:443", "write \"https://example.org\""),
        ("HTTPS://Example.org", "write \"https://example.org\""),
        ("https://bücher.example", "write \"https://xn--bcher-kva.example\""),
        ("example.org", "such as https://example.org:8443"),
        ("localhost:3000", "such as https://example.org:8443"),
        ("//example.org", "such as https://example.org:8443"),
        ("https://*.example.org", "such as https://example.org:8443"),
        ("https://", "such as https://example.org:8443"),
        ("file:///a", "such as https://example.org:8443"),
        ("null", "such as https://example.org:8443"),
        ("", "such as https://example.org:8443"),
    ] {
        let error = read(&format!("[\"https://a.b\", {bad:?}]")).expect_err(bad);
        assert!(error.contains(&format!("{bad:?}")) && error.contains(says), "{error}");
    }
    assert!(read("[]").expect_err("none").contains("has no origins"));
    let twice = "[[cors]]\ngroup_prefix = \"a\"\norigins = [\"*\"]\n".repeat(2);
    let error = twice.parse::<Policy>().expect_err("one prefix twice").to_string();
    assert!(error.contains("two cors tables for the prefix \"a\""), "{error}");
    let error = "[[cors]]\norigins = [\"*\"]".parse::<Policy>().expect_err("no prefix").to_string();
    assert!(error.contains("group_prefix"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = Policy::read(Path::new("/nowhere/policy.toml")).expect_err("no file");
    assert!(format!("{error:#}").starts_with("the policy file /nowhere/policy.toml: "));
}

#[test]
fn only_the_token_itself_is_let_in() {
    let token = NewToken::draw();
    let grant = "[[token.grant]]\ngroup_prefix = \"shop:\"\nverbs = [\"read\"]";
    let policy: Policy = entry("a", &token, grant).parse().expect("a policy");
    let policies = Policies::from(policy);
    let NewToken { token, sha256 } = token;
    for good in [format!("Bearer {token}"), format!("bearer {token}")] {
        assert_eq!(find(&policies, &good).expect("known").name(), "a");
    }
    assert_eq!(policies.authenticate(None, NOW).unwrap_err(), Denied::Missing);
    let other = NewToken::draw().token;
    assert_eq!(find(&policies, &format!("Bearer {other}")).unwrap_err(), Denied::Unknown);
    for bad in [
        String::new(),
        "Bearer".to_owned(),
        token.clone(),
        format!("Basic {token}"),
        format!("Bearer  {token}"),
        format!("Bearer {token} "),
        format!("Bearer {}", token.to_uppercase()),
        format!("Bearer {}", &token[1..]),
        format!("Bearer {sha256}"),
        format!("Bearer {TOKEN_PREFIX}{}", &sha256[1..]),
    ] {
        assert_eq!(find(&policies, &bad).unwrap_err(), Denied::Malformed, "{bad}");
    }
}

#[test]
fn a_caller_may_do_what_a_grant_names_and_nothing_else() {
    let token = NewToken::draw();
    let grants = r#"
        [[token.grant]]
        group_prefix = "shop:"
        verbs = ["read", "write"]
        [[token.grant]]
        group_prefix = "shop:eu"
        verbs = ["admin"]
        [[token.grant]]
        group = "site"
        verbs = ["read"]
    "#;
    let policy: Policy = entry("a", &token, grants).parse().expect("a policy");
    let caller = find(&policy.into(), &format!("Bearer {}", token.token)).expect("known");
    let may = |verb, group| caller.may(verb, &name(group));
    assert!(may(Verb::Read, "shop:") && may(Verb::Write, "shop:us"));
    assert!(may(Verb::Admin, "shop:eu-1") && !may(Verb::Admin, "shop:us"));
    assert!(may(Verb::Read, "site") && !may(Verb::Write, "site") && !may(Verb::Admin, "site"));
    for longer in ["site2", "site:eu", "sit", "Site"] {
        assert!(Verb::ALL.iter().all(|&verb| !may(verb, longer)), "{longer}");
    }
    for alike in
        ["shop", "Shop:", "shop%3A", "xshop:", "/shop:", "../shop:", "ｓhop:", "s\u{200b}hop:"]
    {
        assert!(Verb::ALL.iter().all(|&verb| !may(verb, alike)), "{alike}");
    }
    assert!(Verb::ALL.iter().all(|&verb| Caller::anonymous().may(verb, &name("any"))));
    let nothing: Policy = entry("b", &token, "").parse().expect("a policy");
    let caller = find(&nothing.into(), &format!("Bearer {}", token.token)).expect("known");
    assert!(
        Verb::ALL.iter().all(|&verb| !caller.may(verb, &name("g")) && !caller.may_somewhere(verb))
    );
}

#[test]
fn a_token_expires() {
    let token = NewToken::draw();
    let of = |expires: &str| {
        let policy = entry("a", &token, &format!("expires = {expires:?}")).parse::<Policy>();
        find(&policy.expect("a policy").into(), &format!("Bearer {}", token.token))
    };
    // NOW is 2027-01-15T08:00:00Z.
    assert!(of("2027-01-15T08:00:01Z").is_ok());
    assert_eq!(of("2027-01-15T08:00:00Z").unwrap_err(), Denied::Unknown);
    assert!(of("2027-01-15T10:00:01+02:00").is_ok());
}

#[test]
fn a_caller_is_slowed_down_and_a_reload_is_no_way_around_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let token = NewToken::draw();
    std::fs::write(&file, entry("a", &token, "rate = 1")).expect("written");
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let caller = || find(&policies, &format!("Bearer {}", token.token)).expect("known");
    caller().pass(1_001).expect("a batch and its request fit");
    let slow = caller().pass(1).expect_err("too fast");
    assert!(slow.again_in > Duration::ZERO && slow.again_in <= Duration::from_secs(1), "{slow:?}");
    policies.reload().expect("the same");
    assert!(caller().pass(1).is_err());
    std::fs::write(&file, entry("a", &token, "rate = 2")).expect("written");
    policies.reload().expect("another rate");
    caller().pass(1).expect("a new rate starts fresh");
}

#[test]
fn a_token_has_its_streams_and_a_reload_is_no_way_around_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let token = NewToken::draw();
    std::fs::write(&file, entry("a", &token, "")).expect("written");
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let caller = || find(&policies, &format!("Bearer {}", token.token)).expect("known");
    let mut streams: Vec<_> =
        (0..limits::STREAMS_OF_TOKEN_MAX).map(|_| caller().stream().expect("a place")).collect();
    assert_eq!(caller().stream().unwrap_err(), TooManyStreams);
    policies.reload().expect("the same");
    assert_eq!(caller().stream().unwrap_err(), TooManyStreams);
    streams.pop();
    assert!(caller().stream().is_ok());
    assert!(Caller::anonymous().stream().expect("no bound of its own").is_none());
}

#[test]
fn what_a_token_watches_is_kept_by_a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let token = NewToken::draw();
    std::fs::write(&file, entry("a", &token, "")).expect("written");
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let room = || {
        let caller = find(&policies, &format!("Bearer {}", token.token)).expect("known");
        caller.watch_room().expect("a token has a limit")
    };
    let _keys = room().keys.try_acquire_many_owned(10).expect("room");
    let _places = room().places.try_acquire_many_owned(20).expect("room");
    policies.reload().expect("the same");
    let left = (room().keys.available_permits(), room().places.available_permits());
    let (keys, places) = (limits::WATCHED_KEYS_MAX / 2, limits::WATCHED_PLACES_MAX / 2);
    assert_eq!(left, (keys - 10, places - 20));
    assert!(Caller::anonymous().watch_room().is_none());
}

#[test]
fn pictures_count_no_faster_after_a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let write = |per_second: u32| {
        let text = format!("[[pixel]]\ngroup_prefix = \"a\"\nper_second = {per_second}\n");
        std::fs::write(&file, text).expect("written");
    };
    write(1);
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let pass = || policies.pass_pixel(&key(Kind::Counter, "a1")).expect("pictures count");
    pass().expect("the first");
    assert!(pass().is_err());
    policies.reload().expect("the same");
    assert!(pass().is_err(), "a reload is a way around the rate");
    write(2);
    policies.reload().expect("another rate");
    pass().expect("a new rate starts fresh");
}

#[test]
fn a_text_for_the_log_is_cut_where_tokens_begin() {
    let NewToken { token, .. } = NewToken::draw();
    for (text, cut) in [
        (String::new(), ""),
        ("limit=10&cursor=orderfree_x".to_owned(), "limit=10&cursor=orderfree_x"),
        (format!("a={token}&b=1&c={token}"), "a=orderfree_…&b=1&c=orderfree_…"),
        (format!("/v1/counter/{token}/n"), "/v1/counter/orderfree_…/n"),
    ] {
        assert_eq!(without_tokens(&text), cut);
    }
}

#[test]
fn a_changed_file_is_taken_over_and_a_wrong_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let (old, new) = (NewToken::draw(), NewToken::draw());
    std::fs::write(&file, entry("old", &old, "")).expect("written");
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let knows = |token: &NewToken| find(&policies, &format!("Bearer {}", token.token)).is_ok();
    assert!(knows(&old) && !knows(&new));
    let early = find(&policies, &format!("Bearer {}", old.token)).expect("known");
    assert_eq!(policies.renew(&early, NOW).expect("still").name(), "old");
    std::fs::write(&file, "[[token]]\nnonsense").expect("written");
    assert!(policies.reload().is_err() && knows(&old));
    std::fs::write(&file, entry("new", &new, "")).expect("written");
    policies.reload().expect("a policy");
    assert!(!knows(&old) && knows(&new), "the old one is revoked");
    assert_eq!(policies.renew(&early, NOW).unwrap_err(), Denied::Unknown, "also during a request");
    std::fs::write(&file, "").expect("written");
    policies.reload().expect("a policy without tokens");
    assert!(!knows(&new) && policies.authenticate(None, NOW).is_err(), "nothing opens");

    let open = Policies::open(Some(&file), constants()).expect("a policy");
    assert!(open.authenticate(None, NOW).is_ok());
    std::fs::write(&file, entry("new", &new, "")).expect("written");
    let refused = open.reload().expect_err("tokens are fixed at the start").to_string();
    assert!(refused.contains("restart it"), "{refused}");
}

#[test]
fn quotas_bound_the_longest_prefix_that_fits() {
    let policy: Policy = r#"
        [[quota]]
        group_prefix = ""
        live_mutators = 1
        [[quota]]
        group_prefix = "shop:"
        live_mutators = 2
        new_keys_per_minute = 3
    "#
    .parse()
    .expect("a policy");
    let policies = Policies::from(policy);
    let permit = |group: &str| policies.permit(&name(group), Arrival::Born);
    let all = permit("other").expect("the first");
    assert!(matches!(permit("shop"), Err(OverQuota::Live(_))));
    let (one, two) = (permit("shop:a").expect("1"), permit("shop:b").expect("2"));
    let Err(OverQuota::Live(permits)) = permit("shop:c") else { panic!("a third") };
    assert!(one.is_of(&permits) && two.is_of(&permits) && !all.is_of(&permits));
    drop(one);
    let three = permits.take().expect("the permit of the first");
    assert!(permits.take().is_err());
    let OverQuota::NewKeys { per_minute, .. } = permit("shop:d").expect_err("a fourth") else {
        panic!("there is a free permit, and the rate refuses")
    };
    assert_eq!(per_minute.get(), 3);
    drop(two);
    assert!(policies.permit(&name("shop:d"), Arrival::Woken).is_ok(), "it is not a new key");
    drop(three);
    let both = (permits.take(), permits.take());
    assert!(both.0.is_ok() && both.1.is_ok() && permits.take().is_err(), "no permit was lost");
}

#[test]
fn a_tenant_keeps_its_number_when_the_policy_is_reloaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let write = |prefixes: &[&str]| {
        let quota = |prefix| format!("[[quota]]\ngroup_prefix = {prefix:?}\nlive_mutators = 9\n");
        std::fs::write(&file, prefixes.iter().map(quota).collect::<String>()).expect("written");
    };
    write(&["a", "bb"]);
    let policies = Policies::open(Some(&file), constants()).expect("a policy");
    let tenant = |group: &str| policies.uncounted_permit(&name(group)).tenant();
    let (a, b) = (tenant("a1"), tenant("bb1"));
    assert!(a != b && tenant("c1") == Tenant::OTHERS && tenant("b1") == Tenant::OTHERS);
    write(&["ccc", "bb"]);
    policies.reload().expect("a policy");
    let c = tenant("ccc1");
    assert_eq!((tenant("bb1"), tenant("a1")), (b, Tenant::OTHERS));
    assert!(c != a && c != b && c != Tenant::OTHERS, "numbers are not used again");
    write(&["a"]);
    policies.reload().expect("a policy");
    assert_eq!(tenant("a1"), a);
}

#[test]
fn wrong_tokens_and_quotas_are_refused_with_the_rule() {
    let token = NewToken::draw();
    let hash = &token.sha256;
    let two = entry("a", &token, "");
    for (text, says) in [
        (format!("[[token]]\nname = \"a\"\nsha256 = \"{}\"", &hash[1..]), "64 hexadecimal digits"),
        (format!("[[token]]\nname = \"a b\"\nsha256 = {hash:?}"), "visible ASCII"),
        (format!("[[token]]\nname = \"\"\nsha256 = {hash:?}"), "visible ASCII"),
        (entry("anonymous", &token, ""), "the audit log has it"),
        (format!("[[token]]\nname = \"a\"\nsha256 = {:?}", token.token), "revoke it"),
        (format!("{two}{}", entry("a", &NewToken::draw(), "")), "two tokens are named"),
        (format!("{two}{}", entry("b", &token, "")), "have the same hash"),
        (entry("a", &token, "rate = 0"), "nonzero"),
        (entry("a", &token, "expires = \"soon\""), "2027-01-31T00:00:00Z"),
        (entry("a", &token, "[[token.grant]]\ngroup_prefix = \"\"\nverbs = []"), "has no verbs"),
        (
            entry("a", &token, "[[token.grant]]\ngroup_prefix = \"\"\nverbs = [\"delete\"]"),
            "unknown variant",
        ),
        (entry("a", &token, "[[token.grant]]\nverbs = [\"read\"]"), "either `group`"),
        (
            entry(
                "a",
                &token,
                "[[token.grant]]\ngroup = \"g\"\ngroup_prefix = \"g\"\nverbs = [\"read\"]",
            ),
            "either `group`",
        ),
        (
            entry("a", &token, "[[token.grant]]\ngroup = \"\"\nverbs = [\"read\"]"),
            "the `group` of a grant of the token \"a\" is empty",
        ),
        (
            entry("a", &token, "[[token.grant]]\ngroup = \"..\"\nverbs = [\"read\"]"),
            "the `group` of a grant of the token \"a\" can't be `.` or `..`",
        ),
        ("[[quota]]\ngroup_prefix = \"a\"".to_owned(), "limits nothing"),
        (
            "[[quota]]\ngroup_prefix = \"a\"\nlive_mutators = 1\n".repeat(2),
            "two quotas for the prefix",
        ),
        (
            ["a", "b", "a"]
                .map(|prefix| format!("[[quota]]\ngroup_prefix = {prefix:?}\nlive_mutators = 1\n"))
                .concat(),
            "two quotas for the prefix \"a\"",
        ),
    ] {
        let error = format!("{:#}", Policy::from_str(&text).expect_err(&text));
        assert!(error.contains(says), "{text}: {error}");
        assert!(!error.contains(&token.token), "a secret is repeated: {error}");
    }
    // Where the syntax is wrong, the parser would quote the line.
    let broken = format!("[[token]]\nsha256 = {}", token.token);
    let error = format!("{:#}", Policy::from_str(&broken).expect_err("no string"));
    assert!(error.starts_with("line 2: ") && !error.contains(&token.token), "{error}");
}
