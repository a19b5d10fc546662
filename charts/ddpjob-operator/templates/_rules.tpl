{{/*
All that the operator may do, in all namespaces or in those of watchNamespaces. On purpose not
here: reading secrets, nodes, exec, changing pods that exist, and anything that reaches further.
*/}}
{{- define "ddpjob-operator.rules" -}}
- apiGroups: [ddpjob.io]
  resources: [ddpjobs]
  verbs: [get, list, watch, delete] # delete: for ttlSecondsAfterFinished
- apiGroups: [ddpjob.io]
  resources: [ddpjobs/status]
  verbs: [update]
- apiGroups: [ddpjob.io] # to name a job as the owner of its pods, where that is enforced
  resources: [ddpjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create]
- apiGroups: [networking.k8s.io] # one for each job, see networkPolicy.jobs
  resources: [networkpolicies]
  verbs: [get, list, watch, create]
- apiGroups: [""] # the keys of a job's pods; never get, list or watch
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [""] # to say that a job's claim is missing, instead of leaving its pods pending
  resources: [persistentvolumeclaims]
  verbs: [get]
{{- end }}
