from plainsql_server.lane.answer cimport Answer


cdef class LaneTransactionAnswer(Answer):
    pass
