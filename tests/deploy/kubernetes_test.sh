#!/usr/bin/env bash
# The manifests fit Kubernetes' schemas, and their parts fit each other. No cluster runs them.
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
# refused WHAT FROM WHY CHANGE: CHANGE makes the manifests of FROM inconsistent, and the error tells WHY.
refused() {
  local what=$1 from=$2 why=$3 change=$4
  kubectl kustomize "deploy/kubernetes/$from" | "$python" -c '
import sys, yaml
documents = list(yaml.safe_load_all(sys.stdin))
of = {one["kind"]: one["spec"] for one in documents}
pod = of["StatefulSet"]["template"]["spec"]
variables = {one["name"]: one for one in pod["initContainers"][-1]["env"]}
exec(sys.argv[1])
yaml.safe_dump_all(documents, sys.stdout)' "$change" >"$work/wrong.yaml"
  "$python" tests/deploy/pods.py "$work/wrong.yaml" >"$work/faults" && echo "nothing found" >"$work/faults"
  expect "$what" grep --quiet "$why" "$work/faults"
}
refused "an end that is too short" base 'want more than 625' 'pod["terminationGracePeriodSeconds"] = 30'
refused "a budget for all pods of the namespace" base "budget: want only the training's pods" \
  'of["PodDisruptionBudget"]["selector"] = {}'
refused "a world that restores by itself" overlays/world 'nobody restores' \
  'variables["PARAMSHARD_RESTORE"].update(value="latest", valueFrom={})'
refused "a policy for all pods of the namespace" overlays/world "policy: want only the training's pods" \
  'of["NetworkPolicy"]["podSelector"] = {}'
refused "one that lets all of them in" overlays/world 'nobody else, are to be let in' \
  'of["NetworkPolicy"]["ingress"][0]["from"] = [{"podSelector": {}}]'
refused "one that lets another namespace in" overlays/world 'nobody else, are to be let in' \
  'of["NetworkPolicy"]["ingress"][0]["from"][0]["namespaceSelector"] = {}'
refused "one that lets everybody in" overlays/world 'nobody else, are to be let in' \
  'del of["NetworkPolicy"]["ingress"][0]["from"]'
refused "a folder of saves for each pod" overlays/world 'in a claim that all pods share' \
  'of["PersistentVolumeClaim"]["accessModes"] = ["ReadWriteOnce"]'
refused "a state folder that goes with the pod" overlays/world 'which outlives the pod' \
  'variables["PARAMSHARD_STATE_DIR"]["value"] = "/sockets/state"'
refused "a state folder that nobody makes" overlays/world 'is to be made before' \
  'pod["initContainers"][0]["command"].remove("/state/paramshard")'
refused "a key that is nowhere" overlays/world 'PARAMSHARD_TLS_KEY is to be in a volume' \
  'variables["PARAMSHARD_TLS_KEY"]["value"] = "/nowhere/node.key"'
