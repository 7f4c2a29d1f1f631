"""Processes that a notebook or a test hands functions to.

    with Team(4) as team:
        team(function, *arguments)  # [what it returned in process 0, in process 1, ...]

Each process finds the environment that `torchrun` makes: RANK, WORLD_SIZE, MASTER_ADDR
and so on.
"""

import contextlib
import copyreg
import faulthandler
import gc
import io
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import connection, get_context
from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist

# Processes forked from one that has imported torch are there in milliseconds. Windows
# cannot fork, and on macOS a library that torch uses may not be forked: there each
# process imports it again.
PRELOADED = {  # where the one that starts them has imported this, they will want that
    # Which the first backward imports.
    "torch": "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo": "torch._dynamo",
    "torch.distributed.fsdp": "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel": "torch.distributed.tensor.parallel",
    "helpers.lessons.parallel_digits": "sklearn.model_selection",
}
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
# It is no module, but looks like one.
copyreg.pickle(type(torch.ops), lambda ops: (getattr, (torch, "ops")))
# A module, but not imported.
sys.modules.setdefault("torch._C._functions", torch._C._functions)


class TeamError(RuntimeError):
    """What went wrong, and in which process; `errors` has it by rank."""

    def __init__(self, errors):
        self.errors = errors
        super().__init__(
            "\n".join(f"rank {rank}: {errors[rank]}" for rank in sorted(errors))
        )


class InProcessError(Exception):
    """The cause of a TeamError: the tracebacks of the processes, as text."""


class Team:
    """`size` processes that are one `torch.distributed` group, with the backend gloo.

    limit:   seconds that a call may take; then the processes are ended, and a TeamError
             is raised.
    timeout: seconds that a collective waits for the others; `limit` unless given.

    They start at the first call, and again at the first call after a TeamError. What
    they print is printed, rank by rank, when all of them have answered: the first
    `most_lines` of each.
    """

    most_lines = 20
    start_method = "forkserver" if sys.platform == "linux" else "spawn"

    def __init__(self, size, limit=20, timeout=None):
        self.size, self.limit, self.timeout = size, limit, timeout or limit
        self.processes, self.connections = [], []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()

    def __reduce__(self):
        raise TypeError(
            "a team cannot be used in its own processes: there each calls the function"
        )

    def __call__(self, function, *arguments):
        if not self.processes:
            self._start()
        message = cloudpickle.dumps((function, arguments))
        for pipe in self.connections:
            # It has died: the next lines find that out.
            with contextlib.suppress(OSError):
                pipe.send_bytes(message)
        answers = self._answers()
        for rank, (_, _, printed) in sorted(answers.items()):
            lines = printed.splitlines()
            if len(lines) > self.most_lines:
                lines[self.most_lines :] = [
                    f"... {len(lines) - self.most_lines} more lines"
                ]
            for line in lines:
                print(f"rank {rank}: {line}")
        errors = {rank: said for rank, (said, _, _) in answers.items() if said}
        if errors:
            self.stop()
            tracebacks = [answers[rank][1] for rank in sorted(errors)]
            raise TeamError(errors) from InProcessError("\n".join(["", *tracebacks]))
        return [answers[rank][1] for rank in range(self.size)]

    def stop(self):
        """End the processes now, whatever they are doing."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.connections:
            pipe.close()
        if self.processes:
            self.folder.cleanup()
        self.processes, self.connections, self.store = [], [], None

    def _start(self):
        context = get_context(self.start_method)
        wanted = [
            wanted for imported, wanted in PRELOADED.items() if imported in sys.modules
        ]
        context.set_forkserver_preload([*wanted, __name__])
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        use_libuv = sys.platform != "win32"  # torch for Windows is built without it
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv
        )
        environment = {
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self.store.port,
            "CUDA_VISIBLE_DEVICES": "",  # gloo is for CPUs; GPUs may be fewer than ranks
            # The store is served here, as by torchrun.
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "USE_LIBUV": int(use_libuv),
        }
        if sys.platform in LOOPBACK:
            environment["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            settings = environment | {"RANK": rank, "LOCAL_RANK": rank}
            settings = {name: str(value) for name, value in settings.items()}
            stack = Path(self.folder.name) / f"{rank}.txt"
            process = context.Process(
                target=_serve,
                args=(theirs, settings, self.timeout, self.limit, stack),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def _answers(self):
        """{rank: (error or "", result or traceback, what was printed)}."""
        answers, until = {}, time.monotonic() + self.limit + 1
        waiting = dict(zip(self.connections, range(self.size), strict=True))
        while waiting:
            ready = connection.wait(waiting, max(until - time.monotonic(), 0))
            if not ready:
                break
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = cloudpickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    self.processes[rank].join(1)
                    code = self.processes[rank].exitcode
                    answers[rank] = f"the process ended with exit code {code}", "", ""
                # The others may wait for it: they get a second more.
                if answers[rank][0]:
                    until = min(until, time.monotonic() + 1)
        if not any(said for said, _, _ in answers.values()):
            for rank in waiting.values():
                stack = Path(self.folder.name) / f"{rank}.txt"
                words = f"no answer in {self.limit} s; the process was ended"
                answers[rank] = words, stack.read_text() if stack.exists() else "", ""
        return answers


def bytes_sent():
    """How much this process has written so far, to sockets and elsewhere.

    Raises ImportError where the system does not count it: chapter 14 says so and goes
    on.
    """
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        raise ImportError("only Linux counts what a process writes") from None
    return int(dict(line.split(": ") for line in lines)["wchar"])


def _serve(pipe, settings, timeout, limit, stack):
    """What a process of a team does.

    It calls what it is sent, until the other end is gone.
    """
    gc.freeze()  # looking at what was forked would copy its memory
    os.environ.update(settings)
    torch.set_num_threads(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # what libraries log; what Python prints is collected
        os.dup2(silence, descriptor)
    with contextlib.suppress(EOFError), open(stack, "w") as file:
        while True:
            message = pipe.recv_bytes()
            faulthandler.dump_traceback_later(limit, file=file)
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    # It imports: before they meet.
                    function, arguments = cloudpickle.loads(message)
                    if not dist.is_initialized():
                        dist.init_process_group(
                            "gloo", timeout=timedelta(seconds=limit)
                        )
                        dist.distributed_c10d._set_pg_timeout(
                            timedelta(seconds=timeout)
                        )
                    result = "", function(*arguments), printed.getvalue()
                answer = cloudpickle.dumps(result)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
                answer = cloudpickle.dumps(
                    (said, traceback.format_exc(), printed.getvalue())
                )
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(answer)
