"""What is examined: how any callable is called, copied, and asked for its gradients.

`subject.py` holds the function, `calls.py` the calls of a program, and `private.py` all
that PyTorch does not document: where its next version breaks the doctor, this is the
file to mend. A newcomer may change what `source.py` takes for harmless, and the limits
of `budget.py`.
"""
