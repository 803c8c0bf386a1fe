# The image of compose.yaml: a scheduler, workers and the command line, with all kernels compiled.
FROM python:3.13-slim
WORKDIR /opt/greedymiser
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[cli,dask]"
# Compiled for the processor that builds the image; docs/containers.md tells of others.
ENV NUMBA_CACHE_DIR=/opt/compiled HOME=/tmp
RUN python -m greedymiser.warm
WORKDIR /srv
USER nobody
CMD ["greedymiser", "--help"]
