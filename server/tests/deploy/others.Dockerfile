# Stands for the official images of PostgreSQL, Redis, nginx and Prometheus where no registry is reachable: the same
# programs from Debian, with the numeric users of the official images.
ARG BASE
FROM ${BASE}
# hadolint ignore=DL3008
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \
    && mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        nginx-light postgresql-15 prometheus redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 999 -g 999 /var/lib/postgresql/data && install -d -o 65534 -g 65534 /prometheus
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
