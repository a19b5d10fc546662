# The one home of versions and names of the development cluster. Sourced, sets variables only.
# shellcheck shell=bash disable=SC2034

# 1.34 is the last Kubernetes whose kubelet starts on cgroup v1 as it is.
readonly KUBERNETES_VERSION=v1.34.4
readonly ETCD_VERSION=v3.6.5 COREDNS_VERSION=v1.12.1 PAUSE_VERSION=3.10.1 # that kubeadm asks for
readonly ETCD_TAG=3.6.5-0
readonly KIND_VERSION=v0.33.0 HELM_VERSION=v3.22.0
readonly VERSITYGW_VERSION=v1.8.0 # the S3 server of the tests
readonly PROMETHEUS_VERSION=v0.315.1 # as a Go module: Prometheus 3.15.1, for the tests of alerts

# The stock node image of this version of kind, as its release notes name it.
readonly STOCK_NODE_IMAGE=kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d

# Go: the oldest that builds all of the above, and what is fetched where the machine's is older.
readonly GO_MINIMUM=1.26.0 GO_FETCHED=1.26.8

# Debian with the Python of .venv: for worker pods, and to build our own images on.
readonly BASE_IMAGE=ddpjob-base:py

# Who runs in a pod of the cluster: no root, and known to /etc/passwd of the base image.
readonly POD_USER=65532
