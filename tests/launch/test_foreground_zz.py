from tests.launch.foreground_bed import DRIVER as way, shell
import pytest
@pytest.mark.parametrize("n", range(6))
def test_x(n):
    with shell() as sh:
        sh.tty.timeout=4
        sh.type(way.line("sh", "-c", "echo up''; exec sleep 600"))
        sh.see("up\r\n")
        for _ in range(40):
            sh.key("z")
            sh.see("Stopped")
            sh.status()
            sh.type("fg")
            sh.see("sleep 600")
