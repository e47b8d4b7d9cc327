"""Lines of 10 MB into the run's own record, a record that claims to be over, and a torn end."""

from tests.hostile.agents.common import main_beats, run_dir

with open(run_dir() / "manifest.jsonl", "ab") as record:
    for fill in (b"x", b"{", b"\xff", b"["):
        record.write(fill * (10 << 20) + b"\n")
    record.write(b'{"v": 1, "event": "run.ended", "run_id": "other", "code": 0}\n')
    record.write(b'{"v": 1, "event": "task.exited", "task_id": "main", "pid": 1, "code": 0')
main_beats()
