//! The page at /docs comes from the pod alone, and its policy for browsers forbids everything else.

use crate::pod::Setup;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_script_come_only_from_the_pod() {
    let pod = Setup::new().start().await;
    let page = pod.get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let html = page.text();
    for elsewhere in ["http://", "https://", "src=\"//", "href=\"//", "url(//"] {
        assert!(!html.contains(elsewhere), "the page names another host: {html}");
    }
    assert!(html.contains("docs/script.js") && html.contains("openapi.json"), "{html}");

    let policy = page.header("content-security-policy");
    let rules: Vec<&str> = policy.split(';').map(str::trim).collect();
    for rule in
        ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(rules.contains(&rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("http") && !policy.contains('*'), "no other host: {policy}");
    assert!(!policy.contains("unsafe-eval"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");

    let script = pod.get("/docs/script.js").await;
    assert_eq!(
        (script.status, script.header("content-type")),
        (200, "text/javascript; charset=utf-8")
    );
    assert!(script.body.len() > 100_000, "a script of only {} bytes", script.body.len());
    let described = pod.get("/openapi.json").await.json();
    assert!(described["paths"]["/v1/{kind}/{group}/{name}"]["post"].is_object());
}
