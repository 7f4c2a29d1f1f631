"""Kernels for nbval that are forks of one process, which has imported what every notebook imports.

A kernel of its own takes three to four seconds of a core to import torch, matplotlib and
scikit-learn; a fork has them at once. For all notebooks that is a minute of processor time, half
a minute of the tests on two cores. Nothing else is shared: a fork is a process of its own, whose
folder and environment are those that were asked for, and in which no cell has run.
"""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from multiprocessing import connection

from jupyter_client.provisioning import local_provisioner

ADDRESS = "EXTENDING_PYTORCH_KERNELS"  # in the environment: the socket of the server
SERVER = """
import gc, os, signal, sys
from multiprocessing import connection
from socket import socket

places = [sys.stdin, socket(fileno=int(sys.argv[1]))]
if sys.stdin in connection.wait(places):  # the tests have ended, without a notebook
    sys.exit()

import ipykernel.kernelapp, matplotlib.pyplot, sklearn.datasets, sklearn.model_selection, torch
import torch._dynamo  # with sympy; backward imports the one, the compiler the other

gc.freeze()  # a kernel that looked at what it has from here would copy it
signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
while True:
    place = connection.wait(places)[0]
    if place is sys.stdin:
        sys.exit()
    if place is places[1]:
        places.append(connection.Connection(place.accept()[0].detach()))
        continue
    try:
        command, folder, environment = place.recv()
    except EOFError:
        places.remove(place)
        continue
    kernel = os.fork()
    if kernel:
        os.setpgid(kernel, kernel)  # jupyter_client ends a kernel with its whole group
        place.send(kernel)
    else:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place in places[1:]:
            place.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        ipykernel.kernelapp.launch_new_instance(command[command.index("-f"):])
        os._exit(0)
"""


def start_server():
    """One for all processes of pytest; it imports nothing before the first notebook."""
    # What is asked for at import: a kernel sets this backend; chapter 15 wants Triton's interpreter
    # where there is no GPU, and the compiler imports Triton.
    no_gpu = not os.path.exists("/dev/nvidiactl")
    environment = os.environ | {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "TRITON_INTERPRET": str(int(no_gpu)),
    }
    folder = tempfile.TemporaryDirectory()  # that only its owner can enter
    os.environ[ADDRESS] = os.path.join(folder.name, "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[ADDRESS])
        listener.listen()
        command = [sys.executable, "-c", SERVER, str(listener.fileno())]
        pipe = {"stdin": subprocess.PIPE, "pass_fds": [listener.fileno()]}
        process = subprocess.Popen(command, env=environment, **pipe)
    atexit.register(folder.cleanup)
    atexit.register(process.communicate)  # closes its stdin, which ends it


@cache
def server():
    return connection.Client(os.environ[ADDRESS])


class Fork:
    """What jupyter_client asks of the `subprocess.Popen` of a kernel."""

    stdin = stdout = stderr = None

    def __init__(self, command, cwd=None, env=None, **_):
        server().send((command, os.fspath(cwd or os.getcwd()), dict(env or os.environ)))
        self.pid = server().recv()

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
        if ADDRESS not in os.environ:
            start_server()
