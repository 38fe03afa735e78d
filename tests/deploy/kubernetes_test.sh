#!/usr/bin/env bash
# The manifests: schemas of Kubernetes know them, and what they say goes together. No cluster runs them.
. tests/deploy/library.sh
needs kubectl
readonly python=$cache/python/bin/python
[[ -x $cache/python/bin/kubernetes-validate ]] ||
  skip "no kubernetes-validate, which ./dev test-deploy installs from PyPI"

for manifests in deploy/kubernetes/base deploy/kubernetes/overlays/*; do
  step "$manifests"
  kubectl kustomize "$manifests" >"$work/manifests.yaml"
  expect "schemas know it" "$cache/python/bin/kubernetes-validate" --strict "$work/manifests.yaml"
  expect "it goes together" "$python" tests/deploy/pods.py "$work/manifests.yaml"
done

step "what is wrong is found"
kubectl kustomize deploy/kubernetes/base >"$work/manifests.yaml"
sed 's/shareProcessNamespace/shareProcesses/' "$work/manifests.yaml" >"$work/unknown.yaml"
expect "a field that there is not" bash -c '! "$@" >/dev/null 2>&1' bash \
  "$cache/python/bin/kubernetes-validate" --strict "$work/unknown.yaml"
sed 's/terminationGracePeriodSeconds: .*/terminationGracePeriodSeconds: 30/' "$work/manifests.yaml" >"$work/short.yaml"
expect "an end that is too short" bash -c '! "$@" >/dev/null 2>&1' bash \
  "$python" tests/deploy/pods.py "$work/short.yaml"
