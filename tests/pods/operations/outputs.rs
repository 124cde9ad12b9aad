//! Outputs of commands that can't be written: `/dev/full` is a full disk, and a pipe may have no reader.

use std::fs::File;
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;

use crate::pod::Setup;

const KEY: &str = "counter/outputs/key";

/// Where an output goes.
#[derive(Clone, Copy)]
enum Sink {
    Kept,
    Full,
    ReaderGone,
}

impl Sink {
    fn open(self) -> Stdio {
        match self {
            Sink::Kept => Stdio::piped(),
            Sink::Full => File::options().write(true).open("/dev/full").expect("a device").into(),
            Sink::ReaderGone => std::io::pipe().expect("a pipe").1.into(),
        }
    }
}

/// The exit code and the error message of a command with these outputs.
async fn run(arguments: &[&str], answers: Sink, complaints: Sink) -> (Option<i32>, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(answers.open())
        .stderr(complaints.open())
        .kill_on_drop(true)
        .spawn();
    let output = command.expect("the program runs").wait_with_output().await.expect("it ends");
    (ExitStatus::code(&output.status), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_tells_of_an_output_that_cannot_be_written() {
    let pod = Setup::new().start().await;
    let url = format!("http://127.0.0.1:{}", pod.port());
    let (add, get) = (["add", "--url", &url, KEY], ["get", "--url", &url, KEY]);
    for answers in [Sink::Full, Sink::ReaderGone] {
        // With any other code, an operator could count it twice.
        let (code, complaint) = run(&add, answers, Sink::Kept).await;
        assert_eq!(code, Some(0), "{complaint}");
        assert!(complaint.contains("the standard output can't be written"), "{complaint}");
        for strict in [&get[..], &["token", "new", "--name", "a", "--grant", "=read"]] {
            let (code, complaint) = run(strict, answers, Sink::Kept).await;
            assert_eq!(code, Some(1), "{strict:?}: {complaint}");
            assert!(complaint.contains("the standard output can't be written"), "{complaint}");
            assert_eq!(run(strict, answers, Sink::Full).await.0, Some(1), "{strict:?}");
        }
        for long in [["schema", "print"].as_slice(), &["openapi"]] {
            let (code, complaint) = run(long, answers, Sink::Kept).await;
            let has_seen_enough = matches!(answers, Sink::ReaderGone);
            assert_eq!(code, Some(if has_seen_enough { 0 } else { 1 }), "{long:?}: {complaint}");
        }
    }
    let (code, _) = run(&["get", "--url", "http://127.0.0.1:1", KEY], Sink::Kept, Sink::Full).await;
    assert_eq!(code, Some(1), "no server listens there, and the message can't be written");
    let (code, _) = run(&get, Sink::Kept, Sink::Kept).await;
    assert_eq!(code, Some(0));
}
