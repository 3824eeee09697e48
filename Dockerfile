# Untested: it has not been built yet.
#   docker build -t seedbed .                              # CPU
#   docker build -t seedbed --build-arg DEVICE=cuda .      # NVIDIA GPUs
FROM python:3.11-slim
ARG DEVICE=cpu
ENV PATH=/seedbed/.venv/bin:$PATH
# git records the commit of a run; make is for `make test`, g++ for torch.compile.
RUN apt-get update && apt-get install -y --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /seedbed
COPY . .
RUN UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1 make install PYTHON=python $(if [ "$DEVICE" = cpu ]; then echo CPU=1; fi)
CMD ["python", "train.py"]
