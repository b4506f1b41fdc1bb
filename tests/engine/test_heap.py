"""What threads have freed goes back to the system: glibc would keep the most that each of them ever took."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Four threads that stay: each frees what lies before a piece that it keeps, and what lies behind it.
SCRIPT = """
import threading
import numpy as np
from pathlib import Path
from interlingua.engine.native._native import bound_free_heap, trim_heap

def resident_mb():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) // 1024

kept, done, over = [], threading.Semaphore(0), threading.Event()

def work():
    before = [np.ones(1 << 17) for _ in range(24)]
    kept.append(np.ones(1 << 10))
    behind = [np.ones(1 << 17) for _ in range(24)]
    del before, behind
    done.release()
    over.wait()

bound_free_heap(4 << 20)
for _ in range(2):
    np.ones(3 << 20)  # freed at once: from then on glibc, left alone, keeps up to 48 MB
start = resident_mb()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in threads:
    done.acquire()
trim_heap()
print(resident_mb() - start)
over.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's allocator")
def test_both_together_leave_nothing() -> None:
    """1 MB; without the bound 73, without trimming 97, without both 192."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True, timeout=60)
    assert int(done.stdout) < 24, "MB; each thread may keep 4"
