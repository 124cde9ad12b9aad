//! The pages for people come from the pod alone, and their policy for browsers forbids everything else.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::pod::{Setup, free_port};
use crate::wire::Answer;

/// Most bytes of the live page, compressed.
const PAGE_BYTES_MAX: usize = 60 * 1024;

fn gzipped(bytes: &[u8]) -> usize {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).expect("memory");
    gzip.finish().expect("memory").len()
}

/// Checks the headers of a file of a page.
fn is_safe(file: &Answer, media: &str) {
    assert_eq!((file.status, file.header("content-type")), (200, media));
    let policy = file.header("content-security-policy");
    let rules: Vec<&str> = policy.split(';').map(str::trim).collect();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(rules.contains(&rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("http") && !policy.contains('*'), "no other host: {policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(file.header("x-content-type-options"), "nosniff");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_and_their_scripts_come_only_from_the_pod() {
    let pod = Setup::new().start().await;
    let mut bytes = 0;
    for (path, media) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/app.css", "text/css; charset=utf-8"),
    ] {
        let file = pod.get(path).await;
        is_safe(&file, media);
        bytes += gzipped(&file.body);
    }
    assert!(bytes <= PAGE_BYTES_MAX, "the page has {bytes} bytes");
    let docs = pod.get("/docs").await;
    is_safe(&docs, "text/html; charset=utf-8");
    for html in [docs.text(), pod.get("/").await.text()] {
        // The name space of an embedded picture is no address.
        let html = html.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http://", "https://", "src=\"//", "href=\"//", "url(//"] {
            assert!(!html.contains(elsewhere), "the page names another host: {html}");
        }
        for inline in ["<style", " style=", "onclick=", "<script>"] {
            assert!(!html.contains(inline), "the policy forbids {inline}: {html}");
        }
    }
    assert!(docs.text().contains("POST /v1/{kind}/{group}/{name}"));
    let described = pod.get("/openapi.json").await.json();
    assert!(described["paths"]["/v1/{kind}/{group}/{name}"]["post"].is_object());
}

/// The page shows what operators may see, so it is where they are. It needs the routes for users there.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_at_the_operators_address_with_all_that_it_needs() {
    let admins = free_port();
    let setup = Setup::new().arg("--admin-listen", format!("127.0.0.1:{admins}"));
    let pod = setup.start().await;
    assert_eq!(pod.get("/").await.status, 404);
    let status = async |path: &str| {
        let answer = reqwest::get(format!("http://127.0.0.1:{admins}{path}")).await;
        answer.expect("an answer").status().as_u16()
    };
    for path in ["/", "/page/app.js", "/page/app.css", "/version", "/v1/kinds", "/v1/hottest"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
    assert_eq!(status("/v1/counter/site/home").await, 404, "the key does not exist");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_the_page_does_not_serve_it() {
    let admins = free_port();
    let setup = Setup::new().arg("--admin-listen", format!("127.0.0.1:{admins}"));
    let pod = setup.arg("--page", "off").start().await;
    let status = async |port: u16, path: &str| {
        let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await;
        answer.expect("an answer").status().as_u16()
    };
    let both = async |path| (status(admins, path).await, status(pod.port(), path).await);
    for path in ["/", "/page/app.js"] {
        assert_eq!(both(path).await, (404, 404), "{path}");
    }
    for path in ["/docs", "/page/app.css"] {
        assert_eq!(both(path).await, (200, 200), "{path}");
    }
    assert_eq!(status(admins, "/v1/counter/site").await, 404, "operators have no routes for users");
    assert_eq!(status(admins, "/v1/hottest").await, 200);
}
