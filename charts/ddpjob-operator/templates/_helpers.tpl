{{/* Names, labels and images, used by all templates. */}}

{{- define "ddpjob-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "ddpjob-operator.fullname" -}}
{{- $name := include "ddpjob-operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "ddpjob-operator.selector" -}}
app.kubernetes.io/name: {{ include "ddpjob-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ddpjob-operator.labels" -}}
{{- $own := dict
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- $selector := include "ddpjob-operator.selector" . | fromYaml -}}
{{- merge $selector $own .Values.commonLabels | toYaml -}}
{{- end }}

{{- define "ddpjob-operator.serviceAccountName" -}}
{{- default (include "ddpjob-operator.fullname" .) .Values.serviceAccount.name -}}
{{- end }}

{{- define "ddpjob-operator.ownKeySecret" -}}
{{- printf "%s-key" (include "ddpjob-operator.fullname" . | trunc 59) -}}
{{- end }}

{{- define "ddpjob-operator.keySecret" -}}
{{- default (include "ddpjob-operator.ownKeySecret" .) .Values.operatorKey.existingSecret -}}
{{- end }}

{{/* Called with a list: an image of values.yaml, and the root. */}}
{{- define "ddpjob-operator.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{- define "ddpjob-operator.hasNetworkPolicies" -}}
{{- if .Capabilities.APIVersions.Has "networking.k8s.io/v1" }}true{{ end -}}
{{- end }}

{{/* The operator's pods, as the policies of jobs admit them: NAMESPACE/LABEL=VALUE,LABEL=VALUE. */}}
{{- define "ddpjob-operator.pods" -}}
{{- $labels := list -}}
{{- range $name, $value := include "ddpjob-operator.selector" . | fromYaml -}}
{{- $labels = append $labels (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- printf "%s/%s" .Release.Namespace (join "," $labels) -}}
{{- end }}
