//! Checks that shifting a pod's clock works. If the program ignored the preloaded library, other tests would pass
//! without a shift.

use std::time::{Duration, SystemTime};

use crate::pod::{Pod, Setup};

/// A day.
const DAY: Duration = Duration::from_secs(86_400);

/// How far a test on a busy machine may be off.
const SLACK: Duration = Duration::from_secs(60);

/// The wall clock by which a pod answers.
async fn wall(pod: &Pod) -> SystemTime {
    let answer = pod.get("/v1/counter/site/home?default=0").await.json();
    let as_of = answer["as_of"].as_str().expect("a time").to_owned();
    humantime::parse_rfc3339(&as_of).expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_wall_clock_is_shifted_while_it_runs() {
    let setup = Setup::new().with_shifted_clock();
    let pod = setup.start().await;
    for days in [0, 2, -1, 0] {
        setup.shift_clock(days * 86_400);
        let right = SystemTime::now() - 3 * DAY + DAY * u32::try_from(days + 3).expect("positive");
        let wall = wall(&pod).await;
        assert!(wall > right - SLACK && wall < right + SLACK, "{days}: {wall:?} for {right:?}");
    }
}
