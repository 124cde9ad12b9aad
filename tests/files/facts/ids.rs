//! What a key bears of ids, as `docs/operate/capacity.md` states it, follows from the limits.

use orderfree::limits::KEY_IDS_MAX;
use orderfree_core::crdt::pack::{IdOp, OpId};
use orderfree_core::crdt::{CounterOp, Kind, Op};
use orderfree_core::protocol::op_id::Window;
use orderfree_core::protocol::{Constants, KEY_STATES_BYTES_MAX, Overrides};

use super::read;

/// A limit with two digits at least, rounded down.
fn shown(limit: f64) -> String {
    if limit >= 10.0 {
        format!("{}", limit.floor())
    } else {
        format!("{}", (10.0 * limit).floor() / 10.0)
    }
}

#[test]
fn what_a_key_bears_follows_from_the_limits() {
    let text = read("docs/operate/capacity.md");
    let constants = Constants::resolve(Overrides::default()).expect("the defaults");
    let id = OpId { id: [7; 16], index: 0 };
    let add = IdOp::new(Kind::Counter, id, 0, &[Op::Counter(CounterOp::Add { by: 1 })]);
    // The id, its index, its sequence number and the length of its delta.
    let bytes = 16 + 3 + add.expect("valid").heap_bytes();
    let of_pod = KEY_STATES_BYTES_MAX / bytes;
    assert_eq!(KEY_STATES_BYTES_MAX, 1024 * 1024);
    for fact in [
        format!("about {bytes} bytes in the store"),
        format!("about {},000 of a counter", of_pod / 1_000),
        format!("finds more than {},000 ids", KEY_IDS_MAX / 1_000),
        format!("bears {},000 / (2 × window + cutoff)", KEY_IDS_MAX / 1_000),
    ] {
        assert!(text.contains(&fact), "docs/operate/capacity.md does not say `{fact}`");
    }
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let (key, pod) = (KEY_IDS_MAX as f64, of_pod as f64);
    let rows = Window::ALL.map(|window| {
        let length = window.length().as_secs_f64();
        let all = key / (2.0 * length + constants.cutoff().as_secs_f64());
        format!("| `{}` | {} | {} |\n", window.name(), shown(all), shown(pod / length))
    });
    let table = rows.concat();
    assert!(text.contains(&table), "docs/operate/capacity.md should have these rows:\n{table}");
}
