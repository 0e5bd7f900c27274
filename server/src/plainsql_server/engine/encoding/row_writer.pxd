from cpython.object cimport PyObject


cdef struct Output:
    # Where rows are written: memory of PyMem, or of a bytes object, the holder.
    PyObject *holder
    char *start
    Py_ssize_t used
    Py_ssize_t room


cdef class RowWriter:
    cdef list encoders
    cdef tuple between
    cdef bytes null
    cdef PyObject **pieces
    cdef int *kinds
    cdef int columns
    cdef bint as_csv

    cdef int write_into(self, void *pgresult, int rows, char **start, Py_ssize_t *used, Py_ssize_t *room) except -1
    cdef int write_row(self, Output *out, void *pgresult, int row) except -1 nogil
    cdef int add_value(self, Output *out, int column, const char *value, Py_ssize_t size) except -1 nogil
    cdef int add_encoded(self, Output *out, int column, const char *value, Py_ssize_t size) except -1 nogil
    cdef PyObject *encoded(self, int column, const char *value, Py_ssize_t size) except NULL
    cdef bytes long_row(self, void *pgresult, int row)
