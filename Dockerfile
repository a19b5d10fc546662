# The operator's image, and the agent's (--target agent). Build them with `make images`: it first
# puts the locked packages into build/image, so that nothing is fetched in here (docs/adr/0015).
# For BuildKit and for the classic builder.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
COPY build/image/operator /opt/ddpjob
# Compiled here, because no pod can do it for the next one. By hash and not by time, so that the
# same packages give the same files.
RUN python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/ddpjob/lib \
 && PYTHONPATH=/opt/ddpjob/lib python3 -m ddpjob_operator.agent_bundle /opt/ddpjob/agent.pyz

# Init container of worker pods, which copies the file, and image of rendezvous pods, which run it.
FROM ${BASE_IMAGE} AS agent
ARG VERSION=unknown
LABEL org.opencontainers.image.title="ddpjob agent" \
      org.opencontainers.image.description="Rendezvous service of elastic PyTorch DDP jobs, and the agent for their pods" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/ddpjob/agent.pyz /opt/ddpjob/agent.pyz
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "/opt/ddpjob/agent.pyz"]

FROM ${BASE_IMAGE} AS operator
ARG VERSION=unknown
LABEL org.opencontainers.image.title="ddpjob operator" \
      org.opencontainers.image.description="Runs elastic PyTorch DDP jobs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/ddpjob /opt/ddpjob
COPY --from=build /opt/ddpjob/bin/ddpjob /usr/local/bin/ddpjob
# Any user may run it, also one that /etc/passwd does not know: hence USER and HOME.
ENV PYTHONPATH=/opt/ddpjob/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 USER=ddpjob HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["ddpjob"]
CMD ["operator", "run"]
