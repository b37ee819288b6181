# syntax=docker/dockerfile:1
# The service as an image: built in one stage and run in another, without compilers, as an unprivileged user that can
# write to /data and /tmp only. See docs/how-to/serve.md.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
# Choose a package index with --build-arg PIP_INDEX_URL=...
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /source
RUN python -m venv /opt/veritracer
ENV PATH=/opt/veritracer/bin:$PATH
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[cli,serve,postgres,encryption]"

FROM python:${PYTHON} AS run
LABEL org.opencontainers.image.title="veritracer" \
      org.opencontainers.image.description="Decisions, certified recourse and promises" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/veritracer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1 \
    HOME=/tmp
RUN groupadd --gid 10001 veritracer \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin veritracer \
    && install --directory --owner=10001 --group=10001 /data
COPY --from=build /opt/veritracer /opt/veritracer
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["veritracer", "serve"]
CMD ["/data/model", "--keys", "/data/keys.json", "--host", "0.0.0.0", "--port", "8080"]
