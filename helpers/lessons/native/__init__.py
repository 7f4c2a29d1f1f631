"""What learners write in C, C++ and Triton, built and run where a crash does no
harm.
"""
