"""CUDA without a GPU: kernels run on the CPU, and compile for every architecture.

`emulator.py` compiles it with a C++ compiler and runs it thread by thread:
`vocabulary.h` gives `__global__`, `blockIdx` and the like a meaning, `watch.h` watches
every access to memory. `every_architecture.py` compiles it with NVRTC, to machine code
that nothing here could run. `involution.py` has the kernels of `helpers/ops/involution`
run so.
"""
