"""The settings of torch that a check relies on, whatever the notebook has set."""

import contextlib

import torch


@contextlib.contextmanager
def usual_settings():
    """PyTorch's global modes as by default, and back again; a decorator, too."""
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # which records, too
        if torch.is_anomaly_enabled():  # it prints a warning when it is set
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield
