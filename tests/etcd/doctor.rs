use crate::cluster::{On, shared};
use crate::harness::json_object;

#[test]
fn store_on_a_cluster_is_fit_and_each_member_is_named() {
    let on = On::new(shared());
    let (code, out, _) = on.output(&["doctor", "--json"]);
    assert_eq!(code, 0, "{out}");
    let object = json_object(out.as_bytes());
    let checks = object["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().filter(|check| check["check"] == name).count();
    assert_eq!(
        (named("member"), named("prefix"), named("contention")),
        (3, 1, 1)
    );
    assert!(
        checks.iter().all(|check| check["result"] != "FAILED"),
        "{out}"
    );
    assert!(on.done(&["list", "-q"]).is_empty());
}

#[test]
fn store_that_cannot_be_reached_is_not_fit() {
    let on = On::at("etcd://127.0.0.1:1/x".to_owned());
    let (code, out, told) = on.output(&["doctor"]);
    assert_eq!(code, 1);
    assert!(
        out.contains("cluster        FAILED   no member answers"),
        "{out}"
    );
    assert!(
        told.contains("is not fit for locks: 1 check failed"),
        "{told}"
    );
}
