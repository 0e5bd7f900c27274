from plainsql_server.lane.caller cimport Caller


cdef class Callers:
    # By secret and database, as they are sent; the oldest first.
    cdef dict by_sent

    cpdef Caller find(self, bytes secret, bytes database)
    cpdef int add(self, Caller caller, bytes secret, bytes database) except -1
    cdef int drop(self, Caller caller) except -1
    cpdef int forget(self, organization_id) except -1
