//! Which shared record is meant, and who asks for it.

use super::*;

const SLOTS: u32 = 1 << 20;

#[test]
fn index_is_read_only_as_it_is_written() {
    for (number, asker, text) in [
        (0, 0, "0"),
        (42, 0, "42"),
        (u32::MAX, 0xab, "4294967295-000000ab"),
    ] {
        let index = Index { number, asker };
        assert_eq!(index.to_string(), text);
        let read: Index = text.parse().expect(text);
        assert_eq!((read.number, read.asker), (number, asker));
    }
    for text in [
        "",
        "+1",
        "01",
        "1-",
        "-1",
        "1-ab",
        "1-00000000",
        "1-000000AB",
        "4294967296",
    ] {
        assert!(text.parse::<Index>().is_err(), "{text}");
    }
}

#[test]
fn records_of_one_slot_differ_by_the_number_of_slots() {
    let key = |number: u32| run(1, "x").shared(number).key;
    assert_eq!(run(1, "x").key.slot(), None);
    assert_eq!(key(7).slot(), Some(7));
    assert_eq!(key(3 * SLOTS + 7).slot(), Some(7));
    assert_ne!(key(7), key(SLOTS + 7));
    let asked_by_another = Index {
        number: 7,
        asker: 1,
    };
    assert_eq!(Index::from(7), asked_by_another);
}

#[test]
fn digest_is_that_of_a_process_or_owner_who_may_ask_again() {
    let digest = |asker: Asker| request("x").by(asker).asker_digest();
    let of_process = |number| digest(Asker::Process(process(number)));
    assert_ne!(of_process(7), 0);
    assert_ne!(of_process(7), of_process(8));
    assert_eq!(digest(Asker::Derived(process(7))), of_process(7));
    assert_eq!(digest(Asker::Caller), 0);
    assert_eq!(digest(Asker::Lease), 0);
    let of_lease = |owner: &str| request("x").by(Asker::Lease).owned_by(owner).asker_digest();
    assert_ne!(of_lease("a"), of_lease("b"));
    assert_eq!(of_lease(""), 0);
}

#[test]
fn shared_hold_is_found_again_by_its_revision() {
    let (first, second) = (run(1, "x").shared(0), run(2, "x").shared(1));
    let found = |memory: Memory| {
        let found = memory.shared_shown(&name("x"), &second.revision).unwrap();
        found.map(|found| found.handle)
    };
    assert_eq!(found(memory([first.clone(), second.clone()])), Some(2));
    assert_eq!(found(memory([first])), None);
}
