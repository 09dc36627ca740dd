import time

import pytest

import onehold


def test_lease_outlives_its_process(processes):
    process = processes('import onehold; print(onehold.acquire("a", ttl="1h", message="later").number)')
    number = int(process.stdout.readline())
    assert process.wait() == 0
    held = onehold.check("a")
    assert (held["state"], held["kind"], held["hold"], held["message"]) == ("held", "lease", number, "later")


def test_renew_and_release():
    with onehold.acquire("a", "b", ttl=60) as lease:
        first = lease.expires_at
        lease.renew(ttl="1h")
        assert (lease.expires_at - first).total_seconds() > 3000
        assert onehold.try_lock("a") is None and onehold.try_lock("b") is None
        with pytest.raises(onehold.Locked):
            onehold.acquire("a", ttl=60)
        with pytest.raises(onehold.TimedOut):
            onehold.acquire("a", ttl=60, wait=0.05)
    assert [onehold.check(name)["state"] for name in "ab"] == ["free"] * 2
    lease.release()


def test_same_owner_gets_the_same_lease():
    first = onehold.acquire("a", ttl=60, owner="job")
    assert onehold.acquire("a", ttl=60, owner="job").number == first.number
    first.release()


def test_expired_lease_is_lost_at_the_end_of_the_block():
    with pytest.raises(onehold.Lost) as error:
        with onehold.acquire("a", ttl=0.05) as lease:
            with onehold.lock("a", wait=10):
                with pytest.raises(onehold.Lost) as renewed:
                    lease.renew()
    assert (error.value.reason, error.value.number) == ("expired", lease.number)
    assert renewed.value.number == lease.number
    with pytest.raises(ZeroDivisionError):
        with onehold.acquire("a", ttl=0.001):
            time.sleep(0.01)
            1 / 0


def test_8_leases_of_slots():
    leases = [onehold.acquire("a", ttl=60, slots=8) for _ in range(8)]
    assert sorted(lease.slot for lease in leases) == list(range(8))
    with pytest.raises(onehold.Locked):
        onehold.acquire("a", ttl=60, slots=8)
    leases[3].release()
    assert onehold.acquire("a", ttl=60, slots=8).slot == 3
