from libc.stdint cimport uint32_t

ctypedef const char *Text
ctypedef int (*OfConnection)(void *) noexcept
ctypedef size_t (*OfResult)(const void *) noexcept
ctypedef int (*OfConnectionAndNumber)(void *, int) noexcept
ctypedef int (*OfField)(const void *, int) noexcept
ctypedef uint32_t (*TableOfField)(const void *, int) noexcept
ctypedef int (*SendPrepared)(void *, Text, int, Text *, const int *, const int *, int) noexcept
ctypedef int (*SendParams)(void *, Text, int, const uint32_t *, Text *, const int *, const int *, int) noexcept

cdef SendPrepared send_prepared
cdef SendParams send_params
cdef OfConnectionAndNumber set_chunked_rows
cdef OfConnection pipeline_sync, send_flush_request, flush, consume_input, is_busy
cdef OfConnection transaction_status, connection_status
cdef OfConnection has_tls
cdef OfConnection rows_of
cdef OfResult memory_of
cdef TableOfField table_of
cdef OfField column_of, size_of, modifier_of

# libpq's ExecStatusType, ConnStatusType and PGTransactionStatusType, as far as the lane knows them.
cdef enum:
    COMMAND_OK = 1
    TUPLES_OK = 2
    PIPELINE_SYNC = 10
    TUPLES_CHUNK = 12
    CONNECTION_OK = 0
    TRANSACTION_IDLE = 0
