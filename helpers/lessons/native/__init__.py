"""C, C++ and Triton by learners, built and run where a crash does no harm."""
