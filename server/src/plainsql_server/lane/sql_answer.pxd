from plainsql_server.lane.answer cimport Answer


cdef class LaneSqlAnswer(Answer):
    # What is before the rows, by command tag.
    cdef dict openings

    cdef bytes opening_of(self, bytes tag)
