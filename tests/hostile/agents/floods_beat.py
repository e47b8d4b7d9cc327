"""`beat/` full of files of all kinds, its own mark one line of 50 MB."""

import os

from tests.hostile.agents.common import main_beats, run_dir

beats = run_dir() / "beat"
for number in range(2000):
    (beats / f"t{number}").write_bytes(b'{"seq": ')
os.mkfifo(beats / "fifo")
(beats / "folder").mkdir()
(beats / "loop").symlink_to("loop")
(beats / "zero").symlink_to("/dev/zero")
(beats / "\udcff\n\x1b[2J").touch()
(beats / "main").write_bytes(b"9" * (50 << 20))
with open(beats / "sparse", "wb") as file:
    file.truncate(1 << 40)
main_beats()
