//! A full disk: the pod refuses updates, and has no other trouble.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::pod::Setup;

const KEY: &str = "/v1/counter/site/home";

/// The space that the pod leaves free, and some room for its file.
const DISK_MIB: usize = 64 + 16;

/// A small disk in memory, visible only to the processes in its namespace. It needs user namespaces or root.
pub(crate) struct SmallDisk {
    folder: TempDir,
    /// A process that keeps the namespace and thereby the disk.
    holder: Child,
}

impl SmallDisk {
    pub(crate) fn new() -> SmallDisk {
        let folder = TempDir::new().expect("a folder");
        let mount = format!(
            "mount -t tmpfs -o size={DISK_MIB}m none {0} && touch {0}/mounted",
            folder.path().display()
        );
        let holder = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", &format!("{mount} && exec sleep 600")])
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare runs");
        let disk = SmallDisk { folder, holder };
        let began = Instant::now();
        while !disk.path("mounted").exists() {
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(10),
                "no small disk: allow user namespaces, or be root"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        disk
    }

    /// The path of a file on the disk for this process, which is outside the namespace.
    fn path(&self, name: &str) -> PathBuf {
        let inside = self.folder.path().join(name);
        let inside = inside.strip_prefix("/").expect("an absolute path");
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
    }

    /// A pod with its file on the disk.
    pub(crate) fn holding(&self, setup: &Setup) -> Setup {
        let holder = self.holder.id().to_string();
        let enter =
            ["nsenter", "--target", &holder, "--user", "--mount", "--preserve-credentials", "--"];
        let data = self.folder.path().join("rows.redb");
        setup.clone().within(&enter).arg("--data", data.display())
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        let mut file =
            OpenOptions::new().create(true).append(true).open(self.path("filler")).expect("a file");
        let megabyte = vec![1; 1 << 20];
        while file.write_all(&megabyte).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.path("filler")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_updates_and_nothing_else() {
    let disk = SmallDisk::new();
    let setup = disk.holding(&Setup::without_store()).arg("--unready-grace", "0s");
    let mut pod = setup.start().await;
    let text = [("content-type", "text/plain")];
    assert_eq!(pod.ask("POST", KEY, &text, "5").await.status, 200);
    for restarts in 0..3 {
        disk.fill();
        let refused = pod.ask("POST", KEY, &text, "1").await;
        assert_eq!(refused.status, 503, "{}", refused.text());
        for says in ["/problems/store-refused", "\"refused\"", "rows.redb", "make room"] {
            assert!(refused.text().contains(says), "{says}: {}", refused.text());
        }
        assert_eq!(pod.count(KEY).await, 5 + restarts);
        for probe in ["/livez", "/readyz"] {
            assert_eq!(pod.get(probe).await.status, 200, "{probe}");
        }
        // However it ended, the next pod starts on the full disk and reads.
        if restarts > 0 {
            pod.signal(if restarts == 1 { Signal::KILL } else { Signal::TERM });
            pod.ended(Duration::from_secs(20)).await;
            pod = setup.start().await;
            assert_eq!(pod.count(KEY).await, 5 + restarts);
            assert_eq!(pod.ask("POST", KEY, &text, "1").await.status, 503);
        }
        disk.free();
        let began = Instant::now();
        while pod.ask("POST", KEY, &text, "1").await.status != 200 {
            assert!(began.elapsed() < Duration::from_secs(20), "the pod writes again by itself");
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(pod.count(KEY).await, 6 + restarts, "refused updates are not counted");
    }
}
