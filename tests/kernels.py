"""Kernels for nbval that are forks of one process, which has imported what every notebook imports.

A kernel of its own takes two to three seconds of a core to import torch, matplotlib and
scikit-learn; a fork has them at once. It shares nothing else: a process of its own, whose folder
and environment are those that were asked for, and in which no cell has run.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache

from jupyter_client.provisioning import local_provisioner

SERVER = """
import gc, json, os, signal, sys

import ipykernel.kernelapp, matplotlib.pyplot, sklearn.datasets, sklearn.model_selection, torch
import torch._dynamo  # with sympy; backward imports the one, the compiler the other

gc.freeze()  # a kernel that collects garbage does not copy what it shares with the others
signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
for line in sys.stdin:
    command, folder, environment = json.loads(line)
    kernel = os.fork()
    if kernel:
        os.setpgid(kernel, kernel)  # jupyter_client ends a kernel with its whole group
        print(kernel, flush=True)
    else:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        ipykernel.kernelapp.launch_new_instance(command[command.index("-f"):])
        os._exit(0)
"""


@cache
def server():
    """One in each process of pytest, and not before the first notebook."""
    # What is asked for at import: a kernel sets this backend; chapter 15 wants Triton's interpreter
    # where there is no GPU, and the compiler imports Triton.
    no_gpu = not os.path.exists("/dev/nvidiactl")
    environment = os.environ | {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "TRITON_INTERPRET": str(int(no_gpu)),
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", SERVER], env=environment, **pipes)
    atexit.register(process.communicate)  # closes its stdin, which ends it
    return process


class Fork:
    """What jupyter_client asks of the `subprocess.Popen` of a kernel."""

    stdin = stdout = stderr = None

    def __init__(self, command, cwd=None, env=None, **_):
        request = [command, os.fspath(cwd or os.getcwd()), dict(env or os.environ)]
        print(json.dumps(request), file=server().stdin, flush=True)
        self.pid = int(server().stdout.readline())

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    wait = poll  # called when poll has said that it has ended

    def send_signal(self, number):
        os.kill(self.pid, number)


def fork_kernels():
    """Only on Linux; elsewhere a library may not survive a fork, and kernels start as always."""
    if sys.platform == "linux":
        local_provisioner.launch_kernel = Fork
