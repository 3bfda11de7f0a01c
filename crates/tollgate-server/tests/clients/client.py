"""Talks to a listener as applications do, by redis-py: client.py PORT PROTOCOL."""

import sys

import redis

port, protocol = int(sys.argv[1]), int(sys.argv[2])
client = redis.Redis(
    port=port, protocol=protocol, client_name="py", username="default", password="sesame", decode_responses=True
)
assert client.ping()
key = f"py{protocol}"
assert client.execute_command("CL.THROTTLE", key, 1, 1, 60) == [0, 2, 1, -1, 60]
assert client.execute_command("CL.THROTTLE", key, 1, 1, 60) == [0, 2, 0, -1, 120]
assert client.execute_command("CL.THROTTLE", key, 1, 1, 60) == [1, 2, 0, 60, 120]
assert client.exists(key) == 1
assert client.ttl(key) == 120
assert client.delete(key) == 1
assert client.exists(key) == 0

with client.pipeline(transaction=False) as pipeline:
    for _ in range(20):
        pipeline.execute_command("CL.THROTTLE", f"{key}-pipeline", 4, 1, 60)
    assert [reply[0] for reply in pipeline.execute()] == [0] * 5 + [1] * 15

# As it comes, a pipeline is a transaction.
with client.pipeline() as pipeline:
    for _ in range(20):
        pipeline.execute_command("CL.THROTTLE", f"{key}-transaction", 4, 1, 60)
    assert [reply[0] for reply in pipeline.execute()] == [0] * 5 + [1] * 15
with client.pipeline() as pipeline:
    pipeline.execute_command("CL.THROTTLE", f"{key}-aborted", 4, 1, 60)
    pipeline.get("a")
    try:
        pipeline.execute()
        raise SystemExit("an unknown command was taken")
    except redis.ResponseError as error:
        assert "unknown command" in str(error), error
assert client.exists(f"{key}-aborted") == 0

checked = client.execute_command("TG.CHECK", "per-user", key, 2)
if protocol == 3:
    assert checked == {
        "allowed": True,
        "limit": 3,
        "remaining": 1,
        "retry_after_ms": 0,
        "reset_after_ms": 40000,
        "refused_by": None,
    }, checked
else:
    assert checked == [1, 3, 1, 0, 40000, None], checked
try:
    client.execute_command("TG.CHECK", "per-us", key)
    raise SystemExit("an unknown policy was taken")
except redis.ResponseError as error:
    assert "did you mean" in str(error), error

commands = client.command()
assert len(commands) == client.command_count() == len(client.command_list()), commands
assert commands["tg.check"]["arity"] == -3 and commands["cl.throttle"]["first_key_pos"] == 1
documented = client.execute_command("COMMAND DOCS")
assert len(documented) == len(commands) * (1 if protocol == 3 else 2), documented
if protocol == 3:
    assert set(documented) == set(commands)
    assert all({"summary", "since", "group"} <= set(docs) for docs in documented.values()), documented
    assert "client|no-evict" in documented["client"]["subcommands"]
assert client.client_no_evict("ON") and client.client_no_touch("OFF")
try:
    client.client_no_evict("maybe")
    raise SystemExit("neither ON nor OFF was taken")
except redis.ResponseError as error:
    assert "syntax error" in str(error), error

info = client.info("server")
assert info["redis_version"]
# Of a clock that stands still.
assert info["uptime_in_seconds"] == 0
assert client.client_getname() == "py"
assert client.dbsize() > 0
assert client.config_get("*") == {}
print("ok")
