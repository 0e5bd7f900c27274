cdef class RequestIds:
    # Random bytes, and how many of them have been used.
    cdef bytes random
    cdef Py_ssize_t used

    cdef bytes new(self)
