# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One statement of an exchange: how it is sent, and what has arrived of its result.

    if step.can_run(plan, connection, by_sql) and step.send(pg, plan): …
    step.write_rows(out)    # when its result is here

Each exchange has some of them, and uses them again. So a step knows the statement that it ran last, and how its rows
are written.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from plainsql_server.lane.engine cimport libpq
from plainsql_server.lane.plans.frame cimport Scalars

from plainsql_server.core.result import NO_COLUMNS
from plainsql_server.engine.encoding.parameters import OIDS_WITH_OWN_STRINGS

cdef bytes no_columns_json = NO_COLUMNS.json


cdef class Step:
    """One statement on one engine connection."""

    cdef bint can_run(self, StepPlan plan, connection, object by_sql) except -1:
        """Whether it can be sent as it is: with parameters, only if the connection has prepared it."""
        cdef Scalars scalars = plan.scalars
        cdef PyObject *found
        if scalars is None:
            self.name = self.prepared = None
            return True
        found = PyDict_GetItem(by_sql, plan.sql)
        if found == NULL:
            return False
        if <object>found is not self.prepared:
            self.use(connection.prepared.find(plan.sql))
        return scalars.count == self.parameters and (plan.takes_text or not scalars.strings & self.own_strings)

    cdef int use(self, prepared) except -1:
        cdef int index = 0
        types = prepared.parameter_types
        self.prepared, self.name, self.parameters = prepared, prepared.name, len(types)
        # A string for a json parameter is JSON itself, quotes included, and one for bytea is base64: the ordinary path
        # converts them.
        self.own_strings = 0
        for type_ in types[:32]:
            if type_.resolved().oid in OIDS_WITH_OWN_STRINGS:
                self.own_strings |= 1u << index
            index += 1
        self.encoding = None
        return 0

    cdef bint send(self, void *pg, StepPlan plan) except -1:
        """Queues the statement. Returns False if libpq does not take it."""
        cdef Scalars scalars = plan.scalars
        self.clear()
        if scalars is None:
            return send_text(pg, plan.text)
        return libpq.send_prepared(pg, PyBytes_AS_STRING(self.name), scalars.count, scalars.values, NULL, NULL, 0)

    cdef bint choose_writer(self, result, catalog, encoding) except -1:
        """Finds out how the rows are written; False if that takes a lookup."""
        cdef long generation = catalog.generation
        if self.has_shape:
            return True
        if self.name is not None and self.encoding is encoding and self.generation == generation:
            if has_origins(result, self.origins):
                self.has_shape = True
                return True
        rendering = self.known_rendering(result, catalog, encoding)
        if rendering is None:
            return False
        writer = rendering.rows.writer
        if writer is None:
            return False
        self.writer, self.shape_json, self.origins = writer, rendering.shape.json, rendering.origins
        self.encoding, self.generation = encoding, generation
        self.has_shape = True
        return True

    cdef object known_rendering(self, result, catalog, encoding):
        """How the rows are written; None if that takes a lookup."""
        rendering = self.prepared.rendering(catalog.generation, encoding) if self.name is not None else None
        if rendering is None or not has_origins(result, rendering.origins):
            rendering = catalog.known_rendering(result, encoding)
            if rendering is not None and self.name is not None:
                self.prepared.remember(catalog.generation, encoding, rendering)
        return rendering

    cdef bytes shape(self):
        return self.shape_json if self.has_shape else no_columns_json

    cdef int write_rows(self, Buffer out) except -1:
        """Writes the rows, with commas between them. Raises what an encoder raises."""
        if self.rows:
            self.writer.write_into(
                <void *><size_t>self.result.pgresult_ptr, self.rows, &out.start, &out.used, &out.room
            )
        return 0

    cdef int clear(self) except -1:
        """Forgets the result."""
        self.result, self.rows, self.has_shape, self.tag = None, 0, False, b""
        return 0


cdef bint has_origins(result, tuple origins) except -1:
    """Whether the columns of a result come from there. They may if the rendering does not say where."""
    cdef void *pgresult
    cdef int field = 0
    if not origins:
        return True
    pgresult = <void *><size_t>result.pgresult_ptr
    for table, column, size, modifier in origins:
        if libpq.table_of(pgresult, field) != <uint32_t>table or libpq.column_of(pgresult, field) != <int>column:
            return False
        if libpq.size_of(pgresult, field) != <int>size or libpq.modifier_of(pgresult, field) != <int>modifier:
            return False
        field += 1
    return True


cdef bint send_text(void *pg, bytes sql) noexcept:
    return libpq.send_params(pg, PyBytes_AS_STRING(sql), 0, NULL, NULL, NULL, NULL, 0)
