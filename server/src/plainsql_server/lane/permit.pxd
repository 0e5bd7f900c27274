cdef class LanePermit:
    cdef str tier
    cdef readonly long left
    cdef readonly double wait_s

    cdef bytes header_lines(self)
    cdef tuple headers(self)


cdef LanePermit take_permit(permits, principal, limit)
